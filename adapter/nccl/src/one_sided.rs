//! NCCL's one-sided plugins without versions: what a table offers, and its objects, which are of
//! one of two kinds.
//!
//! | Kind | NCCL's number | Who asks for operations |
//! |---|---|---|
//! | software HCA ([`crate::gin`]) | 3 | kernels, by work queues |
//! | proxy ([`crate::rma`]) | 2 | a thread of NCCL's, for kernels and for the host |
//!
//! NCCL takes one table of each plugin, the newest that it knows. So the kind of a table is chosen
//! once, before its devices are counted.

use crate::abi::DeviceHandle;
use crate::gin;
use crate::net::process::{OfProcess, locked};
use crate::net::{self, Fault, log};
use crate::rma;
use core::ffi::c_int;
use crosstie::connect::group::{HANDLE_BYTES, Listener as HcaListener};
use crosstie::host::gin::Config;
use crosstie::host::rma::Listener as ProxyListener;
use crosstie::host::settings::{self, GinWish};
use crosstie::memory::Variables;
use crosstie::memory::cuda::Library;
use std::collections::BTreeSet;
use std::sync::{Mutex, Once, OnceLock};

/// NCCL's own choice of a kind.
const NCCL_TYPE: &str = "NCCL_GIN_TYPE";

/// Which table asks. Tables of GIN are of other releases of NCCL each, whose device code reads
/// other structures.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Table {
    /// GIN of NCCL 2.28.7 to 2.29.
    GinV11,
    /// GIN of NCCL 2.30.3 and 2.30.4; later ones may take it for RMA.
    GinV13,
    /// GIN of NCCL 2.30.7 and later, which has no proxy.
    GinV14,
    /// RMA of NCCL 2.30.7.
    RmaV14,
    /// RMA of NCCL 2.31 and later.
    RmaV15,
}

/// The tables as functions are made for them.
pub const GIN_V11: u8 = Table::GinV11 as u8;
/// See the first.
pub const GIN_V13: u8 = Table::GinV13 as u8;
/// See the first.
pub const GIN_V14: u8 = Table::GinV14 as u8;
/// See the first.
pub const RMA_V14: u8 = Table::RmaV14 as u8;
/// See the first.
pub const RMA_V15: u8 = Table::RmaV15 as u8;

impl Table {
    /// The one that functions are made for.
    pub const fn of(number: u8) -> Table {
        match number {
            GIN_V11 => Table::GinV11,
            GIN_V13 => Table::GinV13,
            GIN_V14 => Table::GinV14,
            RMA_V14 => Table::RmaV14,
            _ => Table::RmaV15,
        }
    }

    /// Whether it is one of RMA.
    const fn is_rma(self) -> bool {
        matches!(self, Table::RmaV14 | Table::RmaV15)
    }
}

/// Who asks for operations.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Kind {
    /// Kernels.
    Hca,
    /// A thread of NCCL's.
    Proxy,
}

impl Kind {
    /// `netDeviceType`.
    pub const fn device_type(self) -> c_int {
        match self {
            Kind::Hca => gin::DEVICE_TYPE,
            Kind::Proxy => rma::DEVICE_TYPE,
        }
    }
}

/// What a choice depends on, beside the machine.
#[derive(Copy, Clone)]
struct Asked {
    wish: Option<GinWish>,
    nccl_type: Option<c_int>,
    version: Option<i32>,
}

/// The kind that a table offers, or why it offers nothing.
fn choice(table: Table, asked: Asked) -> Result<Kind, String> {
    let Asked { wish, nccl_type, version } = asked;
    if wish == Some(GinWish::Off) {
        return Err("CROSSTIE_GIN=0".into());
    }
    let is_proxy_asked = wish == Some(GinWish::Proxy) || nccl_type == Some(rma::DEVICE_TYPE);
    if !is_proxy_asked && let Some(why) = crosstie::host::gin::refusal(GinWish::hca(wish)) {
        return Err(why.into());
    }
    let hca = || match gin::refusal(table, GinWish::hca(wish), version) {
        None => Ok(Kind::Hca),
        Some(why) => Err(why),
    };
    match table {
        Table::RmaV14 | Table::RmaV15 => Ok(Kind::Proxy),
        Table::GinV14 if is_proxy_asked => Err("NCCL's own proxy takes the RMA table".into()),
        Table::GinV14 => hca(),
        Table::GinV13 if gin::is_taken_for_rma(version) => Ok(Kind::Proxy),
        Table::GinV11 | Table::GinV13 if is_proxy_asked => Ok(Kind::Proxy),
        Table::GinV11 | Table::GinV13 => match hca() {
            // where the HCA is not asked for by name, the proxy does it
            Err(_) if wish.is_none() && nccl_type.is_none_or(|wanted| wanted < 0) => {
                Ok(Kind::Proxy)
            }
            chosen => chosen,
        },
    }
}

/// The kind that a table offers in this process; `None`: it has no devices.
pub fn kind(table: Table) -> Option<Kind> {
    static CHOSEN: [OnceLock<Option<Kind>>; 5] = [const { OnceLock::new() }; 5];
    *CHOSEN[table as usize].get_or_init(|| {
        let nccl_type = Variables::of_process().text(NCCL_TYPE);
        let asked = Asked {
            wish: settings::environment().gin,
            nccl_type: nccl_type.and_then(|text| text.trim().parse().ok()),
            version: gin::nccl_version(),
        };
        let chosen = choice(table, asked)
            .and_then(|kind| Library::load().map(|_| kind).map_err(|error| error.to_string()));
        say(table, &chosen);
        chosen.ok()
    })
}

fn say(table: Table, chosen: &Result<Kind, String>) {
    // NCCL asks the table of an older version after a newer, whose line would say the same
    static REFUSED: [Once; 2] = [const { Once::new() }; 2];
    let (name, at) = if table.is_rma() { ("RMA", 0) } else { ("GIN", 1) };
    match chosen {
        Ok(Kind::Hca) => {
            log::info("GIN: software HCA, no NIC needed; one thread executes what kernels queue")
        }
        Ok(Kind::Proxy) => {
            log::info(&format!("{name}: NCCL's threads ask for operations, which go over rails"))
        }
        Err(why) => {
            REFUSED[at].call_once(|| log::info(&format!("{name}: no devices ({why})")));
        }
    }
}

/// How many devices a table has: those of the net tables, or none.
pub fn device_count(table: Table) -> usize {
    kind(table).map_or(0, |_| net::device_count())
}

/// The first bytes of a handle name its kind and the version of its format. In the very first one
/// stands the table, since ranks of different tables do not come together.
const MARK_BYTES: usize = 8;

/// A listener of a rank.
pub struct Listener {
    of: Kinds,
    /// As the ranks get it.
    handle: [u8; HANDLE_BYTES],
}

enum Kinds {
    /// For the ranks' kernels.
    Hca(Box<HcaListener>),
    /// For their hosts.
    Proxy(Box<ProxyListener>),
}

impl Kinds {
    fn handle(&self) -> &[u8; HANDLE_BYTES] {
        match self {
            Kinds::Hca(listener) => listener.handle(),
            Kinds::Proxy(listener) => listener.handle(),
        }
    }
}

impl Listener {
    /// Opens one on a device.
    pub fn open(table: Table, device: c_int) -> Result<Listener, Fault> {
        let of = match kind(table).ok_or(Fault::Usage)? {
            Kind::Hca => Kinds::Hca(Box::new(gin::listen()?)),
            Kind::Proxy => Kinds::Proxy(Box::new(rma::listen(device)?)),
        };
        let mut handle = *of.handle();
        handle[0] = table as u8;
        Ok(Listener { of, handle })
    }

    /// What the other ranks need.
    pub fn handle(&self) -> &[u8; HANDLE_BYTES] {
        &self.handle
    }

    /// Handles as the listeners have given them; `Err`: the first that is of another kind.
    fn unmarked(&self, handles: &[[u8; HANDLE_BYTES]]) -> Result<Vec<[u8; HANDLE_BYTES]>, usize> {
        let first = self.of.handle()[0];
        let unmarked = |(rank, handle): (usize, &[u8; HANDLE_BYTES])| {
            let is_alike = handle[..MARK_BYTES] == self.handle[..MARK_BYTES];
            let mut handle = *handle;
            handle[0] = first;
            is_alike.then_some(handle).ok_or(rank)
        };
        handles.iter().enumerate().map(unmarked).collect()
    }
}

/// The ranks of one connection of NCCL's.
pub enum Coll {
    /// Whose kernels ask.
    Hca(gin::Coll),
    /// Whose hosts ask.
    Proxy(rma::Coll),
}

impl Coll {
    /// Brings the ranks together.
    pub fn connect(
        listener: &Listener,
        handles: &[[u8; HANDLE_BYTES]],
        rank: usize,
    ) -> Result<Coll, Fault> {
        let handles = listener.unmarked(handles).map_err(|rank| {
            log::warn(&format!(
                "one-sided operations: rank {rank} is of another kind or version: CROSSTIE_GIN, \
                 NCCL_GIN_TYPE, NCCL and this plugin must be the same for all ranks"
            ));
            Fault::Usage
        })?;
        match &listener.of {
            Kinds::Hca(listener) => Ok(Coll::Hca(*gin::connect(listener, &handles, rank)?)),
            Kinds::Proxy(listener) => Ok(Coll::Proxy(rma::connect(listener, &handles, rank)?)),
        }
    }

    /// That of a table whose hosts ask.
    pub fn proxy(&self) -> Result<&rma::Coll, Fault> {
        match self {
            Coll::Hca(_) => Err(Fault::Usage),
            Coll::Proxy(coll) => Ok(coll),
        }
    }

    /// Ends it.
    pub fn close(self) {
        match self {
            Coll::Hca(coll) => gin::close(coll),
            Coll::Proxy(coll) => drop(coll),
        }
    }
}

/// A set of contexts. NCCL keeps its address.
pub enum Context {
    /// Whose kernels ask.
    Hca(gin::Context),
    /// Whose hosts ask.
    Proxy(rma::Context),
}

/// Contexts that stand, by their addresses.
static CONTEXTS: OfProcess<Mutex<BTreeSet<usize>>> =
    OfProcess::new(Mutex::new(BTreeSet::new()), || Mutex::new(BTreeSet::new()));

impl Context {
    /// Makes one. `version` is that of the device handle.
    pub fn open(coll: &Coll, config: &Config, version: c_int) -> Result<Box<Context>, Fault> {
        let made = Box::new(match coll {
            Coll::Hca(coll) => Context::Hca(*coll.context(config, version)?),
            Coll::Proxy(coll) => Context::Proxy(coll.contexts(config.contexts)?),
        });
        locked(CONTEXTS.get()).insert(std::ptr::from_ref::<Context>(&made) as usize);
        Ok(made)
    }

    /// Whether an address is that of a context: NCCL 2.30.3 and 2.30.4 ask with one of their own.
    pub fn is_one(address: usize) -> bool {
        locked(CONTEXTS.get()).contains(&address)
    }

    /// What NCCL hands to its kernels, if they ask.
    pub fn handle(&mut self) -> Option<&mut DeviceHandle> {
        match self {
            Context::Hca(context) => Some(&mut context.handle),
            Context::Proxy(_) => None,
        }
    }

    /// That of a table whose hosts ask.
    #[inline]
    pub fn proxy(&self) -> Result<&rma::Context, Fault> {
        match self {
            Context::Hca(_) => Err(Fault::Usage),
            Context::Proxy(context) => Ok(context),
        }
    }

    /// Makes progress, where no thread of ours does.
    pub fn progress(&self) -> Result<(), Fault> {
        match self {
            Context::Hca(_) => Ok(()),
            Context::Proxy(context) => context.progress(),
        }
    }

    /// Whether something of it has failed.
    pub fn has_failed(&self) -> bool {
        match self {
            Context::Hca(context) => context.has_failed(),
            Context::Proxy(context) => context.has_failed(),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        locked(CONTEXTS.get()).remove(&(std::ptr::from_ref::<Context>(self) as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(table: Table, wish: Option<GinWish>, version: i32) -> Option<Kind> {
        choice(table, Asked { wish, nccl_type: None, version: Some(version) }).ok()
    }

    #[test]
    fn kind_is_what_the_setting_and_the_release_say() {
        use Kind::{Hca, Proxy};
        use Table::{GinV11, GinV13, GinV14, RmaV14, RmaV15};
        let hca = Some(GinWish::Hca);
        for (table, wish, version, expected) in [
            (GinV11, hca, 22_809, Some(Hca)),
            (GinV11, Some(GinWish::Proxy), 22_809, Some(Proxy)),
            // it reads other structures, which the proxy does not have
            (GinV11, hca, 23_003, None),
            (GinV13, hca, 23_004, Some(Hca)),
            (GinV13, Some(GinWish::Proxy), 23_004, Some(Proxy)),
            // taken for a table of RMA
            (GinV13, hca, 23_007, Some(Proxy)),
            (GinV14, hca, 23_007, Some(Hca)),
            (GinV14, Some(GinWish::Proxy), 23_007, None),
            (RmaV14, hca, 23_007, Some(Proxy)),
            (RmaV15, hca, 23_100, Some(Proxy)),
            (RmaV15, Some(GinWish::Off), 23_100, None),
            (GinV11, Some(GinWish::Off), 22_809, None),
        ] {
            assert_eq!(chosen(table, wish, version), expected, "{table:?} {wish:?} {version}");
        }
    }

    #[test]
    fn nccl_type_of_two_takes_the_proxy() {
        let asked = |nccl_type| Asked { wish: None, nccl_type, version: Some(22_809) };
        assert_eq!(choice(Table::GinV11, asked(Some(2))), Ok(Kind::Proxy));
        assert!(choice(Table::GinV14, asked(Some(2))).is_err());
    }
}
