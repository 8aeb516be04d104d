//! Any bytes, cut anywhere, said over TCP to an endpoint that listens: it drops whoever said them,
//! and accepts nobody.

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::units::{Bytes, Span};
use crosstie::connect::ListenerId;
use crosstie::host::{DeviceKind, Endpoint, Options, Shared};
use crosstie::transport::Limits;
use crosstie::wire::handle::{Family, ListenHandle};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

/// Where the reader's own number stands in a `LinkHello`, behind the frame's header: no fuzzer
/// would guess it.
const MEANT: std::ops::Range<usize> = 16 + 24..16 + 40;
/// Most pieces that the bytes are cut into.
const CUTS_MAX: u8 = 8;
/// How long a stranger that has said all may be kept.
const PATIENCE: Duration = Duration::from_secs(60);

/// The endpoint that listens, for as long as the process lives.
struct Target {
    shared: &'static Shared,
    listener: ListenerId,
    endpoint_id: u128,
    address: SocketAddr,
    /// Where block and endpoint lie, so that whoever looks for leaks sees that they are kept.
    _kept: [usize; 2],
}

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(open)
}

fn open() -> Target {
    // SAFETY: nothing else of this process reads or writes the environment now.
    unsafe { std::env::set_var("CROSSTIE_SOCKET_IFNAME", "lo") };
    let options = Options {
        device: DeviceKind::Tcp,
        limits: Limits { connections_max: 16, requests_max: 32, regions_max: 4, rails_max: 2 },
        heap_bytes: Bytes::ZERO,
        handshake_deadline: Span::millis(500),
        ..Options::default()
    };
    let block = Box::leak(Box::new(HeapBlock::new(options.bytes())));
    // SAFETY: the block is never freed, and nobody else knows it.
    let endpoint = unsafe { Endpoint::open(block.start(), block.length(), &options) };
    let endpoint = Box::leak(Box::new(endpoint.expect("an endpoint")));
    let _kept = [core::ptr::from_ref(block).addr(), core::ptr::from_ref(endpoint).addr()];
    // SAFETY: the endpoint is never closed.
    let shared = unsafe { endpoint.shared.place().as_ref() };
    let (listener, handle) = shared.listen().expect("a listener");
    let handle = ListenHandle::decode(&handle).expect("our own");
    let found = handle.addresses.iter().find(|address| address.family == Family::Ipv4);
    let found = found.expect("127.0.0.1");
    let ip: [u8; 4] = found.ip[..4].try_into().expect("four bytes");
    let address = SocketAddr::from((ip, found.port));
    Target { shared, listener, endpoint_id: handle.endpoint_id, address, _kept }
}

/// First a count of cuts and as many places (in 256ths of the rest), then what is said.
pub fn band(data: &[u8]) {
    let Some((cuts, rest)) = data.split_first() else { return };
    let cuts = usize::from(cuts % CUTS_MAX);
    if rest.len() < cuts {
        return;
    }
    let (cuts, bytes) = rest.split_at(cuts);
    let mut bytes = bytes.to_vec();
    let target = target();
    // a hello is meant for this endpoint, unless its last byte says otherwise
    if bytes.len() > MEANT.end && bytes[MEANT.end - 1] & 1 == 0 {
        bytes[MEANT].copy_from_slice(&target.endpoint_id.to_le_bytes());
    }
    let mut places: Vec<usize> =
        cuts.iter().map(|cut| usize::from(*cut) * bytes.len() / 256).collect();
    places.sort_unstable();
    places.push(bytes.len());
    say(target, &bytes, &places);
    assert_eq!(target.shared.accept(target.listener), Ok(None), "somebody was accepted");
}

/// Says the bytes in pieces, then no more; the endpoint must end it too.
fn say(target: &Target, bytes: &[u8], places: &[usize]) {
    let mut stream = TcpStream::connect(target.address).expect("the endpoint listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut from = 0;
    for to in places {
        // it may have been dropped already
        let _ = stream.write_all(&bytes[from..*to]);
        from = *to;
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = [0; 4096];
    loop {
        match stream.read(&mut answer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("a stranger was kept: {error}"),
        }
    }
}
