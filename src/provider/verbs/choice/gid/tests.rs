use super::*;
use std::string::ToString;
use std::vec;

const LINK_LOCAL: &str = "fe80::ba59:9fff:fe01:203";

fn entry(index: u8, gid: &str, kind: GidKind) -> GidEntry {
    let gid = Gid::from(gid.parse::<IpAddr>().unwrap());
    GidEntry { index, gid, kind, interface: Some("eth0".into()) }
}

/// As a RoCE port of an interface with IPv4 and IPv6 addresses shows it: each twice.
fn table() -> Vec<GidEntry> {
    let addresses = [LINK_LOCAL, "10.1.0.5", "fd00:1::5", "172.16.0.5"];
    let kinds = [GidKind::RoceV1, GidKind::RoceV2];
    let each = addresses.iter().flat_map(|gid| kinds.map(|kind| (*gid, kind)));
    each.enumerate().map(|(index, (gid, kind))| entry(index as u8, gid, kind)).collect()
}

fn chosen(rule: GidRule) -> Result<u8, NoGid> {
    chosen_at(rule, &[])
}

/// The same where these are the host's addresses.
fn chosen_at(rule: GidRule, here: &[&str]) -> Result<u8, NoGid> {
    let here: Vec<IpAddr> = here.iter().map(|ip| ip.parse().unwrap()).collect();
    choose(&table(), LinkLayer::Ethernet, &rule, &here).map(|entry| entry.index)
}

/// Tables show the GIDs of all namespaces.
#[test]
fn address_of_this_namespace_comes_before_others_that_are_allowed() {
    assert_eq!(chosen_at(GidRule::DEFAULT, &["172.16.0.5"]), Ok(7));
    assert_eq!(chosen_at(GidRule::DEFAULT, &["fd00:1::5"]), Ok(5), "IPv6 that is ours");
    assert_eq!(chosen_at(GidRule::DEFAULT, &["fd00:1::5", "10.1.0.5"]), Ok(3));
    assert_eq!(chosen_at(GidRule::DEFAULT, &["192.168.0.1"]), Ok(3), "as if nothing were known");
    let v4 = GidRule { family: Some(Family::V4), ..GidRule::DEFAULT };
    assert_eq!(chosen_at(v4, &["fd00:1::5"]), Ok(3), "what is asked for counts");
    let first = GidRule { index: Some(0), ..GidRule::DEFAULT };
    assert_eq!(chosen_at(first, &["172.16.0.5"]), Ok(0));
}

#[test]
fn gid_of_another_namespace_is_told_from_ours() {
    let table = table();
    let elsewhere = |at: usize, layer, here: &[IpAddr]| is_elsewhere(&table[at], layer, here);
    let ours = [IpAddr::from([10, 1, 0, 5])];
    assert!(!elsewhere(3, LinkLayer::Ethernet, &ours));
    assert!(elsewhere(7, LinkLayer::Ethernet, &ours));
    assert!(!elsewhere(7, LinkLayer::Ethernet, &[]), "nothing is known");
    assert!(!elsewhere(0, LinkLayer::Ethernet, &ours), "one link's alone");
    assert!(!elsewhere(7, LinkLayer::InfiniBand, &ours), "no address");
}

#[test]
fn gids_are_read_as_the_kernel_writes_them() {
    let mapped = Gid::parse("0000:0000:0000:0000:0000:ffff:0a4d:0001\n").unwrap();
    assert_eq!(mapped.ip(), IpAddr::from([10, 77, 0, 1]));
    assert_eq!(mapped.to_string(), "10.77.0.1");
    let local = Gid::parse("fe80:0000:0000:0000:bc83:61ff:fe5c:d34d").unwrap();
    assert!(local.is_link_local() && !mapped.is_link_local());
    assert_eq!(Gid::from(local.ip()), local);
    assert_eq!(Gid::from(mapped.ip()), mapped);
    assert_eq!(Gid::parse("0000:0000:0000:0000:0000:0000:0000:0000"), None);
    assert_eq!(Gid::parse("fe80"), None);
}

#[test]
fn without_settings_it_is_ipv4_in_roce_v2() {
    assert_eq!(chosen(GidRule::DEFAULT), Ok(3));
}

#[test]
fn family_range_and_version_choose() {
    let v6 = GidRule { family: Some(Family::V6), ..GidRule::DEFAULT };
    assert_eq!(chosen(v6), Ok(5));
    let v1 = GidRule { kind: GidKind::RoceV1, ..GidRule::DEFAULT };
    assert_eq!(chosen(v1), Ok(2));
    let range = |text| GidRule { range: Range::parse(text), ..GidRule::DEFAULT };
    assert_eq!(chosen(range("172.16.0.0/12")), Ok(7));
    assert_eq!(chosen(range("fd00::/8")), Ok(5));
    let none = chosen(range("192.168.0.0/16")).unwrap_err().to_string();
    assert!(none.contains("RoCE v2, in 192.168.0.0/16"), "{none}");
    assert!(none.contains("GID 3 10.1.0.5 (RoCE v2, eth0)"), "{none}");
    let across = GidRule { family: Some(Family::V4), ..range("fd00::/8") };
    assert!(chosen(across).is_err());
}

#[test]
fn index_is_taken_as_it_is() {
    let index = |index| GidRule { index: Some(index), ..GidRule::DEFAULT };
    assert_eq!(chosen(index(0)), Ok(0));
    let why = chosen(index(40)).unwrap_err();
    assert_eq!(why, NoGid::Index(40, 8));
    assert!(why.to_string().contains("GID index 40"), "{why}");
}

#[test]
fn ipv6_is_taken_where_there_is_no_ipv4_and_nobody_asks_for_it() {
    let table = vec![
        entry(0, LINK_LOCAL, GidKind::RoceV2),
        entry(1, "2001:db8::1", GidKind::RoceV1),
        entry(2, "2001:db8::1", GidKind::RoceV2),
    ];
    let ask = |rule| choose(&table, LinkLayer::Ethernet, &rule, &[]).map(|entry| entry.index);
    assert_eq!(ask(GidRule::DEFAULT), Ok(2));
    assert!(ask(GidRule { family: Some(Family::V4), ..GidRule::DEFAULT }).is_err());
}

#[test]
fn link_local_gids_are_no_choice_unless_by_index() {
    let table = vec![entry(0, LINK_LOCAL, GidKind::RoceV2)];
    let ask = |rule: GidRule| choose(&table, LinkLayer::Ethernet, &rule, &[]).cloned();
    let why = ask(GidRule::DEFAULT).unwrap_err().to_string();
    assert!(why.contains("of more than one link") && why.contains(LINK_LOCAL), "{why}");
    assert!(ask(GidRule { index: Some(0), ..GidRule::DEFAULT }).is_ok());
    let none = choose(&[], LinkLayer::Ethernet, &GidRule::DEFAULT, &[]).unwrap_err();
    assert_eq!(none, NoGid::Empty);
}

#[test]
fn infiniband_has_its_first_gid_whatever_is_asked_for_roce() {
    let table = vec![entry(0, "fe80::1", GidKind::InfiniBand)];
    let rule = GidRule { index: Some(3), ..GidRule::DEFAULT };
    assert_eq!(choose(&table, LinkLayer::InfiniBand, &rule, &[]).unwrap().index, 0);
}

#[test]
fn ranges_have_a_length_that_their_family_has() {
    assert!(Range::parse("10.0.0.0/33").is_none() && Range::parse("::/129").is_none());
    assert!(Range::parse("10.0.0.0").is_none() && Range::parse("x/8").is_none());
    let all = Range::parse("0.0.0.0/0").unwrap();
    assert!(all.has(IpAddr::from([1, 2, 3, 4])) && !all.has("::1".parse().unwrap()));
}
