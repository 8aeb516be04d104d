//! Taking a connection that the side band has made into use, on the rail that it runs over.

use super::known::Known;
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::units::Bytes;
use crate::connect::{LinkParams, Rail};
use crate::fabric::{RailKey, RemoteSpan};
use crate::host::choice::options;
use crate::host::log::event::tell_briefly;
use crate::host::log::life::LifeEvent;
use crate::provider::loopback::Loopback;
use crate::provider::rail_set::RailSet;
use crate::provider::shm::{self, PeerSetup, RingSizes, SharedView};
use crate::provider::taken;
use crate::provider::tcp;
use crate::transport::limits::{CREDITS, KEPT_BYTES, RECEIVES_SPARE};
use crate::transport::{self, ConnectionSetup, RequestError, SubmitError};
use crate::wire::hello::{
    CONNECT_FILLED, CONNECT_GPUS, CONNECT_PROBED, CONNECT_PUSH, CONNECT_ROWS, CONNECT_RUNS,
};
use crate::wire::report::REPORT_BYTES_MAX;
use core::num::{NonZeroI32, NonZeroUsize};

// what a lane through shared memory brings, and nobody receives, finds room beside its ring
const _: () = assert!(taken::SLOTS >= (CREDITS + RECEIVES_SPARE) as usize);
const _: () = assert!(taken::CELL_BYTES >= KEPT_BYTES as usize / 4);
const _: () = assert!(taken::CELL_BYTES >= REPORT_BYTES_MAX);

/// On a rail of a host. `pairs`: lanes that are queue pairs, and will join.
pub(in crate::host) fn host_use(
    endpoint: &mut transport::Endpoint<'static, RailSet<'static>>,
    index: u32,
    known: &Known,
    pairs: usize,
) -> Result<(), SubmitError> {
    match known.params.rail {
        Rail::Shm => shm_use(endpoint, index, known),
        // with queue pairs sockets are the reserve
        Rail::Tcp => tcp_use(endpoint, index, known, u8::from(pairs != 0)),
    }
}

/// Through shared memory.
fn shm_use(
    endpoint: &mut transport::Endpoint<'static, RailSet<'static>>,
    index: u32,
    known: &Known,
) -> Result<(), SubmitError> {
    let params = &known.params;
    let broken = SubmitError::Failed(RequestError::Protocol);
    let pull = !has(params, CONNECT_PUSH);
    // both sides have looked at this before they agreed on pushing
    if !pull && params.peer.groups_max != endpoint.limits().groups_max() {
        return Err(broken);
    }
    let view = |(start, length): (NonZeroUsize, u64)| {
        let start = core::ptr::with_exposed_provenance(start.get());
        // SAFETY: the side band keeps the mapping until `connection_close`, which comes after the
        // machine's.
        unsafe { SharedView::new(start, length as usize) }
    };
    let setup = PeerSetup {
        rings: core::ptr::with_exposed_provenance_mut(params.rings_address),
        peer_rings: core::ptr::with_exposed_provenance(params.peer_rings_address),
        sizes: RingSizes {
            send_bytes: params.send_ring_bytes,
            write_bytes: params.write_ring_bytes,
        },
        kernel_copy_pid: params.kernel_copy_pid.map(NonZeroI32::get),
        heap: params.heap.map(view),
        doorbell: (params.doorbell_fd >= 0).then_some(params.doorbell_fd),
        use_fence_for_doorbell: !params.membarrier,
    };
    let peer = endpoint.lane_peer(ConnectionIndex(index), 0);
    // SAFETY: the side band mapped the rings of both sides, zeroed, and keeps them, the heap and
    // the descriptor until `connection_close`, which comes after the machine's.
    let opened = unsafe { endpoint.rail_mut().peer_open_shm(peer, &setup) };
    opened.map_err(|error| match error {
        shm::OpenError::Index | shm::OpenError::Sizes => broken,
    })?;
    if let Some(errno) = endpoint.rail_mut().copy_threads_refused() {
        tell_briefly(&LifeEvent::CopyThreads(errno));
    }
    if has(params, CONNECT_GPUS) {
        endpoint.rail_mut().peer_has_gpus(peer);
    }
    if !pull {
        endpoint.rail_mut().peer_is_lane(peer);
    }
    let setup = setup_of(params);
    let eager_bytes_max = setup
        .eager_bytes_max
        .min(options::eager_bytes_max(params.send_ring_bytes))
        .min(if pull { Bytes(u64::MAX) } else { options::TAKEN_BYTES_MAX });
    let setup = ConnectionSetup { pull, eager_bytes_max, ..setup };
    endpoint.connection_open(ConnectionIndex(index), &setup);
    Ok(())
}

/// What both sides have agreed on, of a connection with one lane that pushes.
fn setup_of(params: &LinkParams) -> ConnectionSetup {
    ConnectionSetup {
        pull: false,
        mailbox: mailbox(params),
        eager_bytes_max: Bytes(u64::from(params.peer.eager_bytes_max)),
        credits: params.peer.credits,
        groups_max: params.peer.groups_max,
        lanes: 1,
        reserve: 0,
        probed: has(params, CONNECT_PROBED),
        reads_runs: has(params, CONNECT_RUNS),
        reads_filled: has(params, CONNECT_FILLED),
        slots_in_rows: has(params, CONNECT_ROWS),
    }
}

/// Over TCP.
fn tcp_use(
    endpoint: &mut transport::Endpoint<'static, RailSet<'static>>,
    index: u32,
    known: &Known,
    reserve: u8,
) -> Result<(), SubmitError> {
    let params = &known.params;
    let broken = SubmitError::Failed(RequestError::Protocol);
    // a rail that pushes has a slot of the peer's for each group of ours
    let (ours, theirs) = (endpoint.limits().groups_max(), params.peer.groups_max);
    if theirs != ours {
        tell_briefly(&LifeEvent::RequestsMax { ours, theirs });
        return Err(SubmitError::RequestsMax);
    }
    let streams = params.streams.get(..params.stream_count as usize).ok_or(broken)?;
    let lanes = u32::from(params.lanes).clamp(1, endpoint.limits().rails_max) as u8;
    let peer = endpoint.lane_peer(ConnectionIndex(index), 0);
    let opened = endpoint.rail_mut().peer_open_tcp(peer, streams, params.sums);
    threads_say(endpoint.rail_mut());
    opened.map_err(|error| match error {
        tcp::PeerOpenError::Index | tcp::PeerOpenError::Streams => broken,
        // nothing was taken into use: asked again after some progress
        tcp::PeerOpenError::Again => SubmitError::Again,
        tcp::PeerOpenError::System(code) => SubmitError::Failed(RequestError::Fabric(code)),
    })?;
    if has(params, CONNECT_GPUS) {
        endpoint.rail_mut().peer_has_gpus(peer);
    }
    if lanes > 1 {
        endpoint.rail_mut().peer_is_lane(peer);
    }
    let setup = ConnectionSetup { lanes, reserve, ..setup_of(params) };
    endpoint.connection_open(ConnectionIndex(index), &setup);
    Ok(())
}

/// Says why threads of TCP could not be started, once.
pub(in crate::host) fn threads_say(rail: &mut RailSet) {
    let Some(errno) = rail.tcp_threads_refused() else { return };
    tell_briefly(&LifeEvent::TcpThreads(errno));
}

/// Whether the peer says that it has a feature of connections.
pub(super) const fn has(params: &LinkParams, feature: u64) -> bool {
    params.peer.features & feature != 0
}

/// The peer's mailbox for a connection.
fn mailbox(params: &LinkParams) -> RemoteSpan {
    RemoteSpan { key: RailKey(params.peer.mailbox_key), address: params.peer.mailbox_address }
}

/// Between two numbers of this endpoint.
pub(in crate::host) fn loopback_use(
    endpoint: &mut transport::Endpoint<'static, Loopback<'static>>,
    index: u32,
    partner: u32,
    mailbox_key: RailKey,
) -> Result<(), SubmitError> {
    let opened = endpoint.rail_mut().peer_open_at(PeerIndex(index), PeerIndex(partner));
    if opened.is_err() {
        return Err(SubmitError::Failed(RequestError::Protocol));
    }
    let mailboxes = endpoint.mailboxes();
    let groups_max = endpoint.limits().groups_max();
    for (own, peer) in [(index, partner), (partner, index)] {
        let setup = ConnectionSetup {
            pull: true,
            mailbox: RemoteSpan { key: mailbox_key, address: mailboxes.address(peer) },
            eager_bytes_max: Bytes::mib(1),
            credits: CREDITS,
            groups_max,
            lanes: 1,
            reserve: 0,
            probed: false,
            reads_runs: false,
            reads_filled: false,
            slots_in_rows: true,
        };
        endpoint.connection_open(ConnectionIndex(own), &setup);
    }
    Ok(())
}
