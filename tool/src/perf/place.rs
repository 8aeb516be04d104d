//! Where a server is, as the operands say it.
#![forbid(unsafe_code)]

use crate::Failure;
use crate::arguments::hint;
use crate::launch::host_port;

/// The port where none is given.
pub const PORT: u16 = 18_530;

/// Where a server is.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Place {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} port {}", self.host, self.port)
    }
}

impl Place {
    /// The server among the operands, `HOST`, `HOST PORT` or `HOST:PORT`, and the other operands. A
    /// name that is nearly one of those `known` is a slip.
    pub fn among<W: Iterator<Item = &'static str>>(
        operands: &[String],
        known: fn() -> W,
    ) -> Result<(Option<Place>, Vec<String>), Failure> {
        let is_word = |operand: &String| known().any(|name| name == operand);
        let (words, others): (Vec<String>, Vec<String>) =
            operands.iter().cloned().partition(|it| is_word(it) || !hint(it, known()).is_empty());
        let port = |text: &str| match text.parse::<u16>() {
            Ok(port @ 1..) => Ok(port),
            _ => Err(format!("`{text}` is not a port from 1 to 65535")),
        };
        let place = match &others[..] {
            [] => None,
            [host] => Some(match host_port(host) {
                Some((host, port)) => Place { host, port },
                None if host.bytes().all(|byte| byte.is_ascii_digit()) => {
                    return Err(format!("`{host}` is no HOST; with --listen it would be a port"));
                }
                None => Place { host: host.clone(), port: PORT },
            }),
            [host, text] => Some(Place { host: host.clone(), port: port(text)? }),
            [_, _, more, ..] => {
                return Err(format!("HOST [PORT] is one server, and `{more}` is more"));
            }
        };
        Ok((place, words))
    }
}
