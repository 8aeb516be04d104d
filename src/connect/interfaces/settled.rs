//! IPv6 addresses of which the kernel still looks whether another host has them. Nothing can begin
//! or be answered at such an address; a host that has just got it waits a second or two.

use super::{AddressFamily, InterfaceAddress, InterfaceError, local_addresses_of};
use crate::base::units::Span;
use std::string::String;
use std::time::{Duration, Instant};
use std::vec::Vec;

/// How long until it is looked again.
const LOOK: Duration = Duration::from_millis(10);

/// [`local_addresses_of`], when the kernel knows that all can be used, or after `patience` those of
/// which it does; then also says which are left out.
///
/// *Cost*: blocks for up to `patience`, while an address is tentative and its interface has a
/// carrier: without one the kernel does not look.
pub fn settled_addresses_of(
    family: AddressFamily,
    choice: &str,
    patience: Span,
) -> Result<(Vec<InterfaceAddress>, Option<String>), InterfaceError> {
    let began = Instant::now();
    loop {
        let mut found = local_addresses_of(family, choice)?;
        let is_awaited = |it: &InterfaceAddress| it.tentative && it.running;
        if found.iter().any(is_awaited) && began.elapsed() < Duration::from_nanos(patience.0) {
            std::thread::sleep(LOOK);
            continue;
        }
        let late = |it: &&InterfaceAddress| is_awaited(it);
        let word = |it: &InterfaceAddress| std::format!("{} ({})", it.ip, it.name.as_str());
        let out: Vec<String> = found.iter().filter(late).map(word).collect();
        found.retain(|it| !is_awaited(it));
        return match (found.is_empty(), out.is_empty()) {
            (true, _) => Err(InterfaceError::Tentative(out.join(", "))),
            (false, true) => Ok((found, None)),
            (false, false) => Ok((found, Some(out.join(", ")))),
        };
    }
}
