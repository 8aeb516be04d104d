//! Which of the library's offers a rail is opened on, and what follows from it.

use crate::memory::cuda;
use crate::provider::libfabric::area::AHEAD;
use crate::provider::libfabric::domain::turns::Callers;
use crate::provider::libfabric::domain::{Keys, Scope};
use crate::provider::libfabric::sys::abi::InfoRaw;
use crate::provider::libfabric::sys::gpu_attr::DMABUF_SINCE;
use crate::provider::libfabric::sys::library::text;
use crate::provider::libfabric::sys::{Code, Info, Library, numbers as n};
use crate::provider::libfabric::{Config, Limits, OpenError, Step};
use core::ffi::CStr;

/// What memory must be for us to cope with.
const MR_MODE: i32 = n::MR_LOCAL
    | n::MR_VIRT_ADDR
    | n::MR_ALLOCATED
    | n::MR_PROV_KEY
    | n::MR_ENDPOINT
    // memory of devices is registered too, as all memory is
    | n::MR_HMEM;
/// What we do for the library if it wants it.
const MODE: u64 = n::CONTEXT | n::CONTEXT2 | n::RX_CQ_DATA;
/// Longest transfer: the length of one is a number of 32 bits in some providers.
const TRANSFER_MAX: u64 = 1 << 30;
/// Most bytes that a call may copy: they are put together on the stack.
pub const INJECT_MAX: usize = 256;

/// Shortest keys of ours, where we choose them.
const KEY_BYTES_MIN: usize = 4;
/// Since this version an offer says of which device it is.
const NIC_SINCE: u32 = n::version(1, 7);

/// All but write after read and send after read: for those we wait.
const ORDERS: u64 = n::ORDER_RAR
    | n::ORDER_RAW
    | n::ORDER_RAS
    | n::ORDER_WAW
    | n::ORDER_WAS
    | n::ORDER_SAW
    | n::ORDER_SAS;

/// Providers of software that are refused, also under `ofi_rxm` or `ofi_rxd`: nobody deploys them,
/// and each has faults of its own.
const REFUSED: [&[u8]; 3] = [b"net", b"sockets", b"udp"];

/// What an offer means for us.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Traits {
    /// To what registrations belong.
    pub scope: Scope,
    /// Who chooses keys.
    pub keys: Keys,
    /// Whether peers name memory by address, or by offset into a region.
    pub by_address: bool,
    /// Whether a write carries a word of 64 bits.
    pub carries_words: bool,
    /// Whether such a word takes a receive.
    pub words_take_receives: bool,
    /// Whether messages arrive in the order in which they were sent.
    pub messages_ordered: bool,
    /// Whether all ops take effect in order, as far as we wait for reads.
    pub ordered: bool,
    /// Whether nothing overtakes a read either.
    pub reads_ordered: bool,
    /// Bytes that a call may copy.
    pub inject_max: usize,
    /// Longest write or read.
    pub transfer_max: u64,
    /// Whether data moves without our polls.
    pub moves_alone: bool,
    /// Whether memory may be that of GPUs.
    pub reaches_gpus: bool,
    /// Whether that may be named by a dma-buf.
    pub takes_dmabufs: bool,
    /// Which threads may call at once.
    pub callers: Callers,
}

impl Traits {
    /// What the library's calls name a place of memory by: its address, or the offset that it has
    /// in the region that begins at `start`.
    #[inline(always)]
    pub fn library_address(&self, start: u64, address: u64) -> u64 {
        address.wrapping_sub(if self.by_address { 0 } else { start })
    }

    fn of(info: &Info, version: u32) -> Traits {
        let raw = info.get();
        // SAFETY: the library allocates all parts of an offer.
        let (domain, ep, tx, rx) =
            unsafe { (&*raw.domain_attr, &*raw.ep_attr, &*raw.tx_attr, &*raw.rx_attr) };
        let has = |bit: i32| domain.mr_mode & bit != 0;
        let order = tx.msg_order & rx.msg_order;
        let carries_words = carries_words(raw);
        Traits {
            scope: if has(n::MR_ENDPOINT) { Scope::Endpoint } else { Scope::Domain },
            keys: match has(n::MR_PROV_KEY) {
                true => Keys::Library,
                false => Keys::Ours(domain.mr_key_size.min(8) as u8),
            },
            by_address: has(n::MR_VIRT_ADDR),
            carries_words,
            words_take_receives: (raw.mode | rx.mode) & n::RX_CQ_DATA != 0,
            messages_ordered: orders_messages(raw),
            // a word that goes behind its write as a message comes later than what it belongs to
            ordered: carries_words
                && order & ORDERS == ORDERS
                && ep.max_order_waw_size as u64 >= TRANSFER_MAX
                && ep.max_order_raw_size as u64 >= TRANSFER_MAX,
            reads_ordered: order & (n::ORDER_WAR | n::ORDER_SAR) == n::ORDER_WAR | n::ORDER_SAR
                && ep.max_order_war_size as u64 >= TRANSFER_MAX,
            inject_max: tx.inject_size.min(INJECT_MAX),
            transfer_max: (ep.max_msg_size as u64).min(TRANSFER_MAX),
            moves_alone: domain.data_progress == n::PROGRESS_AUTO,
            reaches_gpus: raw.caps & n::HMEM != 0,
            takes_dmabufs: raw.caps & n::HMEM != 0 && version >= DMABUF_SINCE,
            callers: callers(domain.threading, provider_name(info), version),
        }
    }
}

/// Whether a write is said to carry a word of 64 bits. `cxi` says so of messages, and refuses such
/// writes by the call that has our flags; others that refuse are found out (`post`).
pub fn carries_words(raw: &InfoRaw) -> bool {
    // SAFETY: the library allocates the parts, and their texts.
    let (domain, provider) = unsafe { (&*raw.domain_attr, text((*raw.fabric_attr).prov_name)) };
    domain.cq_data_size >= 8 && provider != c"cxi"
}

/// Whether messages keep their order, as both ends of it are said to do.
fn orders_messages(raw: &InfoRaw) -> bool {
    // SAFETY: the library allocates the parts.
    unsafe { (*raw.tx_attr).msg_order & (*raw.rx_attr).msg_order & n::ORDER_SAS != 0 }
}

/// Which threads may call. A library that does not say lets the fewest.
fn callers(threading: i32, provider: &CStr, version: u32) -> Callers {
    match threading {
        n::THREAD_SAFE if ends_unlocked(provider, version) => Callers::OneAtRegistrations,
        n::THREAD_SAFE => Callers::All,
        n::THREAD_FID | n::THREAD_ENDPOINT | n::THREAD_COMPLETION => Callers::OneAtQueue,
        _ => Callers::One,
    }
}

/// `tcp` says before 1.19 that any thread may call, and takes registrations out of its tree while
/// others look into it: they miss what is there, or look without end.
fn ends_unlocked(provider: &CStr, version: u32) -> bool {
    let name = provider.to_bytes();
    version < n::version(1, 19) && name.strip_suffix(b";ofi_rxm").unwrap_or(name) == b"tcp"
}

/// Hints for what every rail needs. Which threads may call is for the library to say.
fn hints(library: &Library, caps: u64) -> Result<Info, Code> {
    let mut hints = library.hints()?;
    let raw = hints.get_mut();
    raw.caps = caps;
    raw.mode = MODE;
    // SAFETY: the library allocates all parts of hints.
    let (domain, ep, tx) = unsafe { (&mut *raw.domain_attr, &mut *raw.ep_attr, &mut *raw.tx_attr) };
    ep.ep_type = n::EP_RDM;
    domain.mr_mode = MR_MODE;
    domain.resource_mgmt = n::RM_ENABLED;
    // who cannot say that bytes have arrived, can never be fenced
    tx.op_flags = n::DELIVERY_COMPLETE;
    Ok(hints)
}

/// With a name and a domain asked for, as [`Config`] has them.
pub fn hints_for(library: &Library, config: &Config, caps: u64) -> Result<Info, Code> {
    let mut hints = hints(library, caps)?;
    if let Some(provider) = config.provider {
        hints.set_provider(provider.to_bytes());
    }
    if let Some(domain) = config.domain {
        hints.set_domain(domain);
    }
    Ok(hints)
}

/// The first offer that fits of those for whoever calls from any thread; of a provider that lets
/// only some, of what it offers those: some lock less for who does not ask for it, so that comes
/// second.
fn first_fitting(library: &Library, config: &Config, caps: u64) -> Result<Option<Info>, Code> {
    let mut hints = hints_for(library, config, caps)?;
    for threading in [n::THREAD_SAFE, n::THREAD_UNSPEC] {
        // SAFETY: the library allocates all parts of hints.
        unsafe { (*hints.get_mut().domain_attr).threading = threading };
        let Some(found) = fitting(library, &hints, config)? else { continue };
        if orders_messages(found.get()) {
            return Ok(Some(found));
        }
        order_ask(&mut hints, n::ORDER_SAS);
        return Ok(fitting(library, &hints, config)?.or(Some(found)));
    }
    Ok(None)
}

/// Asks for orders. At first none is asked for: most libraries then say all that they keep, and
/// some say of those that they are asked for that they keep no more. But some keep none unasked
/// (`efa` since 1.22).
fn order_ask(hints: &mut Info, order: u64) {
    let raw = hints.get_mut();
    // SAFETY: the library allocates all parts of hints.
    unsafe { ((*raw.tx_attr).msg_order, (*raw.rx_attr).msg_order) = (order, order) };
}

/// The first offer for these hints that fits.
fn fitting(library: &Library, hints: &Info, config: &Config) -> Result<Option<Info>, Code> {
    let all = match library.offers(hints) {
        Err(Code(n::ENODATA)) => return Ok(None),
        found => found?,
    };
    let mut next: *const InfoRaw = all.get();
    while !next.is_null() {
        // SAFETY: an offer of the list, which lives until this returns.
        let raw = unsafe { &*next };
        if fits(raw, config) {
            // SAFETY: as above.
            return unsafe { library.copy(raw) }.map(Some);
        }
        next = raw.next;
    }
    Ok(None)
}

/// The first offer of the provider that is asked for. Atomics are taken where they are to be had
/// without losing the order of everything else, as they are not of `tcp;ofi_rxm`; and not of
/// `ofi_rxm` at all, which makes them of messages, and for them keeps keys in a table that refuses
/// memory which overlaps other memory of the same registration cache (`verbs;ofi_rxm` of 1.17).
///
/// Where the process has a GPU's driver, offers of those that take memory of GPUs come first. Some
/// do more then with memory of the host, too, so that others do not ask for it.
pub fn choose(
    library: &Library,
    config: &Config,
    limits: &Limits,
) -> Result<(Info, Traits), OpenError> {
    if cuda::Library::loaded().is_some() {
        let found = choose_of(library, config, limits, n::MSG | n::RMA | n::HMEM);
        if found.is_ok() {
            return found;
        }
    }
    choose_of(library, config, limits, n::MSG | n::RMA)
}

fn choose_of(
    library: &Library,
    config: &Config,
    limits: &Limits,
    base: u64,
) -> Result<(Info, Traits), OpenError> {
    let choose = |caps| choose_with(library, config, limits, caps);
    let adding = choose(base | n::ATOMIC);
    let is_rxm = |info: &Info| provider_name(info).to_bytes().ends_with(b";ofi_rxm");
    if adding.as_ref().is_ok_and(|(info, _)| is_rxm(info)) {
        return choose(base);
    }
    match adding {
        Ok((_, traits)) if traits.ordered => return adding,
        Ok(_) | Err(_) => {}
    }
    let plain = choose(base);
    match (&adding, &plain) {
        (Ok(_), Ok((_, traits))) if !traits.ordered => adding,
        (Ok(_), Err(_)) => adding,
        (_, _) => plain,
    }
}

fn choose_with(
    library: &Library,
    config: &Config,
    limits: &Limits,
    caps: u64,
) -> Result<(Info, Traits), OpenError> {
    let at = |code: Code| match code {
        Code(n::ENODATA) => OpenError::NoOffer,
        code => OpenError::Refused(Step::Offer, code),
    };
    match first_fitting(library, config, caps).map_err(at)? {
        Some(info) => usable(info, limits, library.version()),
        None => Err(OpenError::NoOffer),
    }
}

/// Whether the library offers anything of the provider that is asked for, be it of use or not.
pub fn is_there(library: &Library, config: &Config) -> bool {
    let Ok(hints) = hints_for(library, config, 0) else { return false };
    // SAFETY: the library allocates all parts of hints.
    let (ep, tx) = unsafe { (&mut *hints.get().ep_attr, &mut *hints.get().tx_attr) };
    (ep.ep_type, tx.op_flags) = (n::EP_UNSPEC, 0);
    matches!(fitting(library, &hints, config), Ok(Some(_)))
}

/// Whether an offer is of the very provider: a library also offers what stands on top of it.
fn fits(raw: &InfoRaw, config: &Config) -> bool {
    // SAFETY: the library allocates the part.
    if unsafe { (*raw.ep_attr).rx_ctx_cnt } == n::SHARED_CONTEXT {
        return false; // each endpoint has its own receives here
    }
    if is_other_network(raw) {
        return false;
    }
    // hints name it, too, but some providers offer all that they have (`tcp` of 1.17)
    if config.domain.is_some_and(|wanted| domain_name(raw) != wanted) {
        return false;
    }
    let Some(wanted) = config.provider else { return !is_refused(raw) };
    // SAFETY: the library allocates the part, and its text.
    let name = unsafe { text((*raw.fabric_attr).prov_name) }.to_bytes();
    let wanted = wanted.to_bytes();
    name == wanted || (name.starts_with(wanted) && name.get(wanted.len()) == Some(&b';'))
}

/// Whether an offer is of a network that `efa` has beside its own since 2.1, and names first: its
/// endpoints do not reach the others, and do less.
pub fn is_other_network(raw: &InfoRaw) -> bool {
    // SAFETY: the library allocates the part, and its text.
    unsafe { text((*raw.fabric_attr).name) == c"efa-direct" }
}

/// Whether an offer is of one of [`REFUSED`].
fn is_refused(raw: &InfoRaw) -> bool {
    // SAFETY: the library allocates the part, and its text.
    let name = unsafe { text((*raw.fabric_attr).prov_name) }.to_bytes();
    name.split(|byte| *byte == b';').next().is_some_and(|first| REFUSED.contains(&first))
}

/// Refuses what cannot carry a rail, and says what the rest means for us.
fn usable(mut info: Info, limits: &Limits, version: u32) -> Result<(Info, Traits), OpenError> {
    check(info.get(), limits.payload_bytes_max)?;
    // chosen op by op: a send need not be waited for as long as a write.
    // SAFETY: the library allocates all parts of an offer.
    unsafe { (*info.get_mut().tx_attr).op_flags &= !n::DELIVERY_COMPLETE };
    let traits = Traits::of(&info, version);
    Ok((info, traits))
}

/// Refuses an offer that cannot carry a rail.
pub fn check(raw: &InfoRaw, payload_bytes_max: u32) -> Result<(), OpenError> {
    // SAFETY: the library allocates all parts of an offer.
    let (domain, ep, tx, rx) =
        unsafe { (&*raw.domain_attr, &*raw.ep_attr, &*raw.tx_attr, &*raw.rx_attr) };
    let lacks = |what| Err(OpenError::Lacks(what));
    if is_refused(raw) {
        return Err(OpenError::Software);
    }
    if ep.ep_type != n::EP_RDM {
        return lacks("reliable endpoints that peers share (FI_EP_RDM)");
    }
    if raw.caps & (n::MSG | n::RMA) != n::MSG | n::RMA {
        return lacks("messages and writes (FI_MSG, FI_RMA)");
    }
    if domain.mr_mode & !MR_MODE != 0 {
        return Err(OpenError::Wants("a registration mode", (domain.mr_mode & !MR_MODE) as u64));
    }
    let mode = (raw.mode | tx.mode | rx.mode) & !MODE;
    if mode != 0 {
        return Err(OpenError::Wants("a mode", mode));
    }
    if ep.msg_prefix_size != 0 {
        return lacks("messages without room before them (FI_MSG_PREFIX)");
    }
    let message = AHEAD + payload_bytes_max as usize;
    if ep.max_msg_size < message {
        return lacks("messages as long as a payload with its head");
    }
    if domain.mr_mode & n::MR_PROV_KEY == 0 && domain.mr_key_size < KEY_BYTES_MIN {
        return lacks("keys of 4 bytes: none is used twice, and shorter ones would run out");
    }
    Ok(())
}

/// Whether a provider's endpoints reach those of their own host as they reach others. Slingshot
/// does not loop back between processes of a host everywhere, and says nothing; before 1.21 `efa`
/// goes by shared memory of its own there, and cannot be told not to.
pub fn reaches_own(provider: &CStr, version: u32) -> bool {
    provider != c"cxi" && (provider != c"efa" || version >= n::version(1, 21))
}

/// How fast the device of an offer is, in Mbit/s; 0: nobody says.
pub fn speed_mbps(raw: &InfoRaw, version: u32) -> u32 {
    if version < NIC_SINCE {
        return 0; // what is read below is not there
    }
    // SAFETY: null, or a device of the offer's; its link likewise.
    let link = unsafe { raw.nic.as_ref().and_then(|nic| nic.link_attr.as_ref()) };
    link.map_or(0, |link| u32::try_from(link.speed / 1_000_000).unwrap_or(0))
}

/// The domain's name in an offer.
pub fn domain_name(raw: &InfoRaw) -> &CStr {
    // SAFETY: the library allocates the part and its text, which live as long as the offer.
    unsafe { text((*raw.domain_attr).name) }
}

/// The provider's name in an offer.
pub fn provider_name(info: &Info) -> &CStr {
    // SAFETY: the library allocates the part and its text, which live as long as the offer.
    unsafe { text((*info.get().fabric_attr).prov_name) }
}
