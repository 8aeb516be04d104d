//! Variables of NCCL's own networks that have no effect here, and why: each that is set is a line
//! of the log, so that nobody takes it for obeyed. `doc/verbs.md` has the same table.
//!
//! *Source*: NCCL's user guide, "Environment Variables", and its `transport/net_ib` and
//! `transport/net_socket.cc`.
#![forbid(unsafe_code)]

use super::{device, log};
use crosstie::memory::Variables;
use crosstie::provider::verbs::settings;

/// What variables of RDMA ports begin with.
const OF_PORTS: &str = "NCCL_IB_";
/// Why one of those has no effect that has no counterpart either.
const UNKNOWN: &str = "crosstie has no such setting";
/// Why one has no effect whose counterpart is set.
const OURS: &str = "is set, too, and takes precedence";

/// Variables, and those that begin like them; why they have no effect.
const UNHEARD: &[(&[&str], &str)] = &[
    (
        &["NCCL_IB_SPLIT_DATA_ON_QPS"],
        "how a message is cut depends on its length and on how busy the rails are",
    ),
    (
        &["NCCL_IB_FIFO_TC", "NCCL_GIN_IB_TC"],
        "control uses the queue pairs of data, and these have the class of NCCL_IB_TC",
    ),
    (&["NCCL_IB_ROUTABLE_FLID_GID_INDEX"], "on InfiniBand GID 0 is used"),
    (&["NCCL_IB_USE_INLINE"], "short data goes inline, as far as the device has room for it"),
    (&["NCCL_IB_OOO_RQ"], "no device is asked to receive out of order"),
    (
        &["NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME"],
        "receives are posted before a queue pair can receive, and both ends pair messages alike",
    ),
    (
        &["NCCL_IB_SUBNET_AWARE_ROUTING", "NCCL_IB_SUBNET_PREFIX_LEN", "NCCL_IB_WARN_RAIL_LOCAL"],
        "ports are always matched by their subnets, with the length of the interface's address",
    ),
    (&["NCCL_IB_DEVICE_PCI_ORDER"], "ports are always in the order of their PCI functions"),
    (&["NCCL_IB_QUERY_PORT_SPEED"], "the library is always asked for the speed"),
    (&["NCCL_IB_MERGE_NICS"], "devices are merged as NCCL asks (NCCL_NET_MERGE_LEVEL)"),
    (
        &["NCCL_IB_RESILIENCY_PORT_FAILOVER", "NCCL_IB_RESILIENCY_PORT_RECOVERY"],
        "when a port fails, other rails always carry its data, and the port comes back",
    ),
    (
        &["NCCL_IB_MQP_RETRY_ALL", "NCCL_IB_MQP_RETRY_CNT", "NCCL_IB_MQP_RETRY_SLEEP_MSEC"],
        "a queue pair that is refused is always asked for again",
    ),
    (
        &["NCCL_IB_RETURN_ASYNC_EVENTS"],
        "a device's events are always read, and end no request while a rail works",
    ),
    (
        &["NCCL_IB_DATA_DIRECT", "NCCL_GDR_FLUSH_DISABLE"],
        "ports register the driver's usual dma-bufs, and every flush of NCCL's is made",
    ),
    (&["NCCL_SOCKET_NTHREADS"], "CROSSTIE_TCP_THREADS says how many threads move long messages"),
    (&["NCCL_NSOCKS_PERTHREAD"], "CROSSTIE_TCP_STREAMS says how many sockets a rail has"),
];

/// Says which variables are set and have no effect.
pub fn say() {
    let all = Variables::of_process().iter().filter_map(|(name, value)| {
        let value = value.to_string_lossy().into_owned();
        name.to_str().map(|name| (name.to_string(), value))
    });
    sentences(&all.collect::<Vec<_>>()).iter().for_each(|text| log::info(text));
}

/// They, of variables and their values, by name. Empty ones are not set.
fn sentences(all: &[(String, String)]) -> Vec<String> {
    let is_set = |name: &str| all.iter().any(|(it, value)| it == name && !value.trim().is_empty());
    let sentence = |(name, value): &(String, String)| {
        let why = why(name, is_set)?;
        is_set(name).then(|| format!("{name}={value} has no effect: {why}"))
    };
    let mut texts: Vec<String> = all.iter().filter_map(sentence).collect();
    texts.sort();
    texts
}

/// Why a variable of NCCL's has no effect; `None`: it has, or is none of its networks'.
fn why(name: &str, is_set: impl Fn(&str) -> bool) -> Option<String> {
    let begins = |names: &[&str]| names.iter().any(|it| name.starts_with(it));
    if let Some((_, why)) = UNHEARD.iter().find(|(names, _)| begins(names)) {
        return Some((*why).into());
    }
    let ours = name.replacen("NCCL_", "CROSSTIE_", 1);
    let counterpart = settings::VARIABLES.iter().any(|it| settings::nccl_name(it) == name);
    match counterpart || name == device::NCCL_CHOICE {
        true => is_set(&ours).then(|| format!("{ours} {OURS}")),
        false => name.starts_with(OF_PORTS).then(|| UNKNOWN.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pairs: &[(&str, &str)]) -> Vec<String> {
        let pair = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        let all: Vec<_> = pairs.iter().map(pair).collect();
        sentences(&all)
    }

    /// They were passed over without a word.
    #[test]
    fn variables_without_an_effect_are_said_with_the_reason() {
        let pairs = [
            ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
            ("NCCL_IB_FIFO_TC", "106"),
            ("NCCL_IB_RESILIENCY_PORT_FAILOVER_X", "1"),
            ("NCCL_IB_TIMEOT", "22"),
            ("NCCL_SOCKET_NTHREADS", "4"),
        ];
        assert_eq!(
            said(&pairs),
            [
                "NCCL_IB_FIFO_TC=106 has no effect: control uses the queue pairs of data, and \
                 these have the class of NCCL_IB_TC",
                "NCCL_IB_RESILIENCY_PORT_FAILOVER_X=1 has no effect: when a port fails, other \
                 rails always carry its data, and the port comes back",
                "NCCL_IB_SPLIT_DATA_ON_QPS=1 has no effect: how a message is cut depends on its \
                 length and on how busy the rails are",
                "NCCL_IB_TIMEOT=22 has no effect: crosstie has no such setting",
                "NCCL_SOCKET_NTHREADS=4 has no effect: CROSSTIE_TCP_THREADS says how many threads \
                 move long messages",
            ]
        );
    }

    #[test]
    fn variables_that_count_are_not_said() {
        let pairs = [
            ("NCCL_IB_TC", "106"),
            ("NCCL_IB_HCA", "mlx5_0"),
            ("NCCL_SOCKET_IFNAME", "eth0"),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_IB_FIFO_TC", " "),
            ("CROSSTIE_IB_SL", "3"),
        ];
        assert_eq!(said(&pairs), [""; 0]);
        let ours = [("CROSSTIE_IB_TC", "8"), ("CROSSTIE_SOCKET_IFNAME", "lo")];
        assert_eq!(
            said(&[&pairs[..], &ours].concat()),
            [
                "NCCL_IB_TC=106 has no effect: CROSSTIE_IB_TC is set, too, and takes precedence",
                "NCCL_SOCKET_IFNAME=eth0 has no effect: CROSSTIE_SOCKET_IFNAME is set, too, and \
                 takes precedence",
            ]
        );
    }

    /// All variables of the table there are in the one here, and the other way round.
    #[test]
    fn page_has_the_same_variables() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../doc/verbs.md");
        let page = std::fs::read_to_string(page).unwrap();
        let table = page.split("| NCCL's | Here |").nth(1).expect("the table");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let names = |row: &str| row.split('|').nth(1).unwrap_or_default().to_string();
        let quoted = |cell: String| -> Vec<String> {
            cell.split('`').skip(1).step_by(2).map(String::from).collect()
        };
        let mut of_page: Vec<String> = rows.map(names).flat_map(quoted).collect();
        let mut ours: Vec<&str> = UNHEARD.iter().flat_map(|(names, _)| *names).copied().collect();
        of_page.sort();
        ours.sort();
        assert_eq!(of_page, ours);
    }
}
