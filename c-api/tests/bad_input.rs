//! Bad input through the C functions: each kind has its own code, changes nothing, and a good call
//! after it works.

mod common;

use common::*;
use crosstie_c::*;
use std::ffi::c_int;
use std::ptr::{null, null_mut, without_provenance_mut};

/// An address that no object has.
fn stranger<T>() -> *mut T {
    without_provenance_mut(0x7_0000_0003)
}

fn size_of_config(change: impl FnOnce(&mut xtie_endpoint_config)) -> c_int {
    let mut config = config(HOST);
    change(&mut config);
    let mut bytes = 77;
    // SAFETY: both are ours.
    let result = unsafe { xtie_endpoint_size(&config, &mut bytes) };
    assert_eq!(bytes == 77, result != XTIE_OK as c_int, "an output of a failed call");
    result
}

#[test]
fn each_field_of_a_configuration_is_checked() {
    expect(size_of_config(|_| {}), XTIE_OK);
    expect(size_of_config(|c| c.struct_size = 0), XTIE_ERR_STRUCT_SIZE);
    expect(size_of_config(|c| c.struct_size = 47), XTIE_ERR_STRUCT_SIZE);
    expect(size_of_config(|c| c.struct_size = 5000), XTIE_ERR_STRUCT_SIZE);
    expect(size_of_config(|c| c.struct_size = 48), XTIE_OK);
    // between two versions, and longer than this one by what no version can be
    for size in (49..56).chain([57, 60, 63]) {
        expect(size_of_config(|c| c.struct_size = size), XTIE_ERR_STRUCT_SIZE);
        let mut config = config(HOST);
        // SAFETY: room of ours, of which nothing may be written.
        let result = unsafe { xtie_endpoint_config_init(&mut config, size as usize) };
        expect(result, XTIE_ERR_STRUCT_SIZE);
    }
    // a ring alone may be chosen: what is copied through it follows
    for bytes in [4096, 8192, 16384, 32768, 65536, 131072] {
        for eager in [0, 8192] {
            let ring = |c: &mut xtie_endpoint_config| {
                (c.send_ring_bytes, c.eager_bytes_max) = (bytes, eager);
            };
            expect(size_of_config(ring), XTIE_OK);
        }
    }
    expect(size_of_config(|c| c.flags = 0x8000), XTIE_ERR_FLAGS);
    expect(size_of_config(|c| c.flags = XTIE_ENDPOINT_NO_HEAP), XTIE_OK);
    expect(size_of_config(|c| c.flags = XTIE_ENDPOINT_NO_HEAP | XTIE_ENDPOINT_PUSH), XTIE_OK);
    expect(size_of_config(|c| c.flags = XTIE_ENDPOINT_COMPANIONS), XTIE_OK);
    expect(size_of_config(|c| c.flags = XTIE_ENDPOINT_COMPANIONS << 1), XTIE_ERR_FLAGS);
    expect(size_of_config(|c| c.device = 9), XTIE_ERR_DEVICE);
    expect(size_of_config(|c| c.connections_max = 65537), XTIE_ERR_CONNECTIONS_MAX);
    expect(size_of_config(|c| c.requests_max = 33), XTIE_ERR_REQUESTS_MAX);
    expect(size_of_config(|c| c.regions_max = 65535), XTIE_ERR_REGIONS_MAX);
    expect(size_of_config(|c| c.send_ring_bytes = 5000), XTIE_ERR_RINGS);
    expect(size_of_config(|c| c.write_ring_bytes = 1), XTIE_ERR_RINGS);
    expect(size_of_config(|c| c.eager_bytes_max = 65536), XTIE_ERR_RINGS);
    let mut bytes = 0;
    // SAFETY: the output is ours, or missing.
    expect(unsafe { xtie_endpoint_size(null(), &mut bytes) }, XTIE_ERR_NULL);
    let config = config(HOST);
    // SAFETY: as above.
    expect(unsafe { xtie_endpoint_size(&config, null_mut()) }, XTIE_ERR_NULL);
    // SAFETY: as above.
    expect(unsafe { xtie_endpoint_config_init(null_mut(), 48) }, XTIE_ERR_NULL);
}

#[test]
fn structure_of_a_newer_header_is_taken_when_it_asks_for_nothing_new() {
    #[repr(C)]
    struct Newer {
        config: xtie_endpoint_config,
        novelty: u64,
    }
    let mut newer = Newer { config: config(HOST), novelty: 0 };
    newer.config.struct_size = size_of::<Newer>() as u32;
    let mut bytes = 0;
    // SAFETY: the structure has the size that it says.
    expect(unsafe { xtie_endpoint_size((&raw const newer).cast(), &mut bytes) }, XTIE_OK);
    newer.novelty = 1;
    // SAFETY: as above.
    let result = unsafe { xtie_endpoint_size((&raw const newer).cast(), &mut bytes) };
    expect(result, XTIE_ERR_STRUCT);
}

#[test]
fn zeroed_configuration_means_the_defaults() {
    // SAFETY: integers.
    let mut zeroed: xtie_endpoint_config = unsafe { std::mem::zeroed() };
    zeroed.struct_size = size_of_val(&zeroed) as u32;
    let mut defaults = config(HOST);
    (defaults.connections_max, defaults.regions_max) = (64, 256);
    assert_eq!(size(&zeroed), size(&defaults));
}

#[test]
fn storage_is_checked() {
    let config = config(LOOPBACK);
    let bytes = size(&config);
    let mut storage = storage(bytes + 64);
    let start = storage.as_mut_ptr().cast::<u8>();
    let mut endpoint: *mut xtie_endpoint = stranger();
    let open = |start: *mut u8, bytes, endpoint| {
        // SAFETY: the storage is long enough for every call that succeeds.
        unsafe { xtie_endpoint_open(start.cast(), bytes, &config, endpoint) }
    };
    expect(open(null_mut(), bytes, &mut endpoint), XTIE_ERR_NULL);
    expect(open(start, bytes, null_mut()), XTIE_ERR_NULL);
    expect(open(start.wrapping_add(8), bytes, &mut endpoint), XTIE_ERR_STORAGE_ALIGN);
    expect(open(start, bytes - 1, &mut endpoint), XTIE_ERR_STORAGE_SIZE);
    assert_eq!(endpoint, stranger());
    expect(open(start, bytes, &mut endpoint), XTIE_OK);
    assert_eq!(endpoint.cast(), start);
    // it was opened once more, under the threads of the first
    let mut second: *mut xtie_endpoint = stranger();
    expect(open(start, bytes, &mut second), XTIE_ERR_STORAGE_IN_USE);
    assert_eq!(second, stranger());
    // SAFETY: one thread.
    expect(unsafe { xtie_endpoint_close(endpoint) }, XTIE_OK);
    expect(open(start, bytes, &mut endpoint), XTIE_OK);
    // SAFETY: as above.
    expect(unsafe { xtie_endpoint_close(endpoint) }, XTIE_OK);
    // SAFETY: as above; the storage still stands.
    expect(unsafe { xtie_endpoint_close(endpoint) }, XTIE_ERR_CLOSED);
}

#[test]
fn what_is_no_endpoint_is_told_apart() {
    let mut nothing = storage(64 * 64);
    let progress = |place: *mut u8| {
        // SAFETY: readable memory.
        unsafe { xtie_endpoint_progress(place.cast(), null_mut()) }
    };
    let start = nothing.as_mut_ptr().cast::<u8>();
    expect(progress(null_mut()), XTIE_ERR_NULL);
    expect(progress(start), XTIE_ERR_ENDPOINT);
    expect(progress(start.wrapping_add(4)), XTIE_ERR_ENDPOINT);
}

#[test]
fn devices_and_statistics_check_their_structures() {
    assert_eq!(xtie_device_count(), 4);
    // SAFETY: integers.
    let mut properties: xtie_device_properties = unsafe { std::mem::zeroed() };
    // SAFETY: a structure of ours.
    let get = |device, properties: &mut xtie_device_properties| unsafe {
        xtie_device_properties_get(device, properties)
    };
    expect(get(0, &mut properties), XTIE_ERR_STRUCT_SIZE);
    properties.struct_size = size_of_val(&properties) as u32;
    expect(get(4, &mut properties), XTIE_ERR_DEVICE);
    assert_eq!(properties.kind, 0);
    // programs keep the numbers
    let kinds =
        [XTIE_DEVICE_HOST, XTIE_DEVICE_LOOPBACK, XTIE_DEVICE_SHARED_MEMORY, XTIE_DEVICE_TCP];
    for (device, kind) in (0..).zip(kinds) {
        expect(get(device, &mut properties), XTIE_OK);
        assert_eq!((properties.kind, properties.group_max), (kind, 8));
    }
    // SAFETY: the output is missing.
    expect(unsafe { xtie_device_properties_get(0, null_mut()) }, XTIE_ERR_NULL);

    let it = Opened::new(&config(LOOPBACK));
    // SAFETY: integers.
    let mut stats: xtie_stats = unsafe { std::mem::zeroed() };
    // SAFETY: a structure of ours.
    expect(unsafe { xtie_endpoint_stats(it.endpoint, &mut stats) }, XTIE_ERR_STRUCT_SIZE);
    stats.struct_size = size_of_val(&stats) as u32;
    it.works(it.join(&it));
    // SAFETY: a structure of ours.
    expect(unsafe { xtie_endpoint_stats(it.endpoint, &mut stats) }, XTIE_OK);
    assert_eq!((stats.sends, stats.send_bytes, stats.receives), (1, 8, 1));
    it.close();
}

#[test]
fn objects_that_are_closed_or_strange_are_told_by_kind() {
    let it = Opened::new(&config(LOOPBACK));
    let endpoint = it.endpoint;
    let pair = it.join(&it);
    let mut bytes = [0u8; 64];
    let memory = it.register(&mut bytes);
    let mut out = null_mut();
    for connection in [null_mut(), stranger()] {
        expect(it.send(connection, &bytes, memory).0, XTIE_ERR_CONNECTION);
        let (result, request) = it.receive(connection, &[room(&mut bytes, memory)]);
        expect(result, XTIE_ERR_CONNECTION);
        assert!(request.is_null());
        // SAFETY: one thread.
        expect(unsafe { xtie_connection_close(endpoint, connection) }, XTIE_ERR_CONNECTION);
        let mut text = [0; 64];
        // SAFETY: the text has as many bytes as it says.
        let result =
            unsafe { xtie_connection_peer(endpoint, connection, text.as_mut_ptr(), text.len()) };
        expect(result, XTIE_ERR_CONNECTION);
    }
    for listener in [null_mut(), stranger()] {
        // SAFETY: one thread.
        let result = unsafe { xtie_listener_accept(endpoint, listener, &mut out) };
        expect(result, XTIE_ERR_LISTENER);
        // SAFETY: as above.
        expect(unsafe { xtie_listener_close(endpoint, listener) }, XTIE_ERR_LISTENER);
    }
    for region in [null_mut(), stranger()] {
        expect(it.send(pair.0, &bytes, region).0, XTIE_ERR_MEMORY);
        expect(it.receive(pair.1, &[room(&mut bytes, region)]).0, XTIE_ERR_MEMORY);
        // SAFETY: one thread.
        expect(unsafe { xtie_memory_deregister(endpoint, region) }, XTIE_ERR_MEMORY);
        // SAFETY: as above.
        expect(unsafe { xtie_memory_free(endpoint, region) }, XTIE_ERR_MEMORY);
    }
    // what lies nowhere lies outside of its memory, and is not looked at where there are no bytes
    let send_null = |length| {
        let mut request = null_mut();
        // SAFETY: an output of ours; what is sent is checked before it is read.
        let result = unsafe {
            xtie_connection_isend(endpoint, pair.0, null(), length, 0, memory, &mut request)
        };
        (result, request)
    };
    expect(send_null(8).0, XTIE_ERR_RANGE);
    // SAFETY: registered, but not allocated here.
    expect(unsafe { xtie_memory_free(endpoint, memory) }, XTIE_ERR_MEMORY);
    for request in [null_mut(), stranger()] {
        let mut done = 7;
        // SAFETY: outputs of ours.
        let result = unsafe { xtie_request_test(endpoint, request, &mut done, null_mut()) };
        expect(result, XTIE_ERR_STALE);
        assert_eq!(done, 7);
        // SAFETY: one thread.
        expect(unsafe { xtie_request_cancel(endpoint, request) }, XTIE_ERR_STALE);
    }
    it.works(pair);
    it.close_connection(pair.0);
    expect(it.send(pair.0, &bytes, memory).0, XTIE_ERR_CONNECTION);
    it.close_connection(pair.1);
    it.works(it.join(&it));
    it.close();
}

#[test]
fn missing_pointers_are_told() {
    let it = Opened::new(&config(LOOPBACK));
    let (endpoint, pair) = (it.endpoint, it.join(&it));
    let (mut handle, mut listener) = (xtie_handle { bytes: [0; 128] }, null_mut());
    let (mut attempt, mut connection) = (null_mut(), null_mut());
    let (mut data, mut memory) = (null_mut(), null_mut());
    // SAFETY: every pointer is null or an output of ours.
    let results = unsafe {
        [
            xtie_endpoint_listen(endpoint, null_mut(), &mut listener),
            xtie_endpoint_listen(endpoint, &mut handle, null_mut()),
            xtie_listener_accept(endpoint, null_mut(), null_mut()),
            xtie_endpoint_connect(endpoint, null(), &mut attempt, &mut connection),
            xtie_endpoint_connect(endpoint, &handle, null_mut(), &mut connection),
            xtie_endpoint_connect(endpoint, &handle, &mut attempt, null_mut()),
            xtie_memory_register(endpoint, null_mut(), 8, XTIE_MEMORY_HOST, &mut memory),
            xtie_memory_alloc(endpoint, 8, null_mut(), &mut memory),
            xtie_memory_alloc(endpoint, 8, &mut data, null_mut()),
            xtie_connection_isend(endpoint, pair.0, null(), 0, 0, null_mut(), null_mut()),
            xtie_connection_irecv(endpoint, pair.0, null(), 1, &mut null_mut()),
            xtie_request_test(endpoint, null_mut(), null_mut(), null_mut()),
            xtie_endpoint_wait_fd(endpoint, null_mut()),
            xtie_endpoint_error(endpoint, null_mut(), 8),
            xtie_connection_peer(endpoint, pair.0, null_mut(), 8),
            xtie_endpoint_stats(endpoint, null_mut()),
            xtie_connection_rail_stats(endpoint, pair.0, 0, null_mut()),
            xtie_endpoint_report(endpoint, null_mut(), 8, null_mut()),
        ]
    };
    for (at, result) in results.into_iter().enumerate() {
        assert_eq!(result, XTIE_ERR_NULL as c_int, "call {at}");
    }
    let mut text = [0; 1];
    // SAFETY: no byte is written.
    let result = unsafe { xtie_endpoint_error(endpoint, text.as_mut_ptr(), 0) };
    expect(result, XTIE_ERR_TEXT);
    // SAFETY: one byte is written.
    expect(unsafe { xtie_endpoint_error(endpoint, text.as_mut_ptr(), 1) }, XTIE_OK);
    // SAFETY: no byte is written, then one.
    let reports = [0, 1]
        .map(|room| unsafe { xtie_endpoint_report(endpoint, text.as_mut_ptr(), room, null_mut()) });
    assert_eq!(reports, [XTIE_ERR_TEXT as c_int, XTIE_OK as c_int]);
    it.works(pair);
    it.close();
}

#[test]
fn messages_are_checked() {
    let it = Opened::new(&config(LOOPBACK));
    let pair = it.join(&it);
    let mut bytes = [0u8; 64];
    let memory = it.register(&mut bytes[8..56]);
    expect(it.send(pair.0, &bytes[..16], memory).0, XTIE_ERR_RANGE);
    expect(it.send(pair.0, &bytes[48..], memory).0, XTIE_ERR_RANGE);
    expect(it.receive(pair.1, &[room(&mut bytes[..16], memory)]).0, XTIE_ERR_RANGE);
    let good = room(&mut bytes[8..16], memory);
    expect(it.receive(pair.1, &[]).0, XTIE_ERR_GROUP);
    expect(it.receive(pair.1, &[good; 9]).0, XTIE_ERR_GROUP);
    let reserved = xtie_buffer { reserved: 1, ..good };
    expect(it.receive(pair.1, &[good, reserved]).0, XTIE_ERR_RESERVED);
    let mut vast = null_mut();
    let register = |start: usize, bytes, kind, memory| {
        let start = without_provenance_mut(start);
        // SAFETY: nothing is ever sent from there.
        unsafe { xtie_memory_register(it.endpoint, start, bytes, kind, memory) }
    };
    expect(register(4096, 8, 2, &mut vast), XTIE_ERR_MEMORY_KIND);
    expect(register(4096, 0, XTIE_MEMORY_HOST, &mut vast), XTIE_ERR_REGISTER_RANGE);
    expect(register(usize::MAX, 8, XTIE_MEMORY_HOST, &mut vast), XTIE_ERR_REGISTER_RANGE);
    expect(register(4096, 1 << 45, XTIE_MEMORY_HOST, &mut vast), XTIE_OK);
    let (start, mut request) = (without_provenance_mut(4096), null_mut());
    // SAFETY: the message is refused.
    let result = unsafe {
        xtie_connection_isend(it.endpoint, pair.0, start, 1 << 41, 0, vast, &mut request)
    };
    expect(result, XTIE_ERR_TOO_LONG);
    it.works(pair);
    it.close();
}

#[test]
fn message_longer_than_its_receive_is_an_error_of_the_receive_alone() {
    let it = Opened::new(&config(LOOPBACK));
    let pair = it.join(&it);
    let mut bytes = vec![1u8; 256 << 10];
    let memory = it.register(&mut bytes);
    for length in [64, 128 << 10] {
        let (result, receive) = it.receive(pair.1, &[room(&mut bytes[..8], memory)]);
        expect(result, XTIE_OK);
        let (result, send) = it.send(pair.0, &bytes[..length], memory);
        expect(result, XTIE_OK);
        let (result, sizes) = it.finish(receive, &it);
        expect(result, XTIE_ERR_TRUNCATED);
        assert_eq!((sizes[0], &bytes[..8]), (length, &[1; 8][..]));
        expect(it.finish(send, &it).0, XTIE_OK);
        let (mut done, mut text) = (0, [0; 2]);
        // SAFETY: outputs of ours.
        let result = unsafe { xtie_request_test(it.endpoint, receive, &mut done, &mut text[0]) };
        expect(result, XTIE_ERR_STALE);
        it.works(pair);
    }
    it.close();
}

#[test]
fn memory_in_use_stays_and_canceled_receives_say_so() {
    let it = Opened::new(&config(LOOPBACK));
    let pair = it.join(&it);
    let mut bytes = [0u8; 8];
    let memory = it.register(&mut bytes);
    let (result, receive) = it.receive(pair.1, &[room(&mut bytes, memory)]);
    expect(result, XTIE_OK);
    // SAFETY: one thread.
    expect(unsafe { xtie_memory_deregister(it.endpoint, memory) }, XTIE_ERR_MEMORY_BUSY);
    // SAFETY: as above.
    expect(unsafe { xtie_request_cancel(it.endpoint, receive) }, XTIE_OK);
    expect(it.finish(receive, &it).0, XTIE_ERR_CANCELED);
    // SAFETY: as above.
    expect(unsafe { xtie_memory_deregister(it.endpoint, memory) }, XTIE_OK);
    it.works(pair);
    it.close();
}

/// What was allocated leaked when it was deregistered, and was freed under its user by a handle
/// that had registered it once more.
#[test]
fn memory_goes_the_way_it_came() {
    let it = Opened::new(&config(HOST));
    let (mut start, mut allocated, mut again) = (null_mut(), null_mut(), null_mut());
    // SAFETY: outputs of ours.
    let result = unsafe { xtie_memory_alloc(it.endpoint, 4096, &mut start, &mut allocated) };
    expect(result, XTIE_OK);
    // SAFETY: one thread.
    expect(unsafe { xtie_memory_deregister(it.endpoint, allocated) }, XTIE_ERR_MEMORY);
    // SAFETY: allocated above, and freed below.
    let result =
        unsafe { xtie_memory_register(it.endpoint, start, 4096, XTIE_MEMORY_HOST, &mut again) };
    expect(result, XTIE_OK);
    // SAFETY: one thread.
    expect(unsafe { xtie_memory_free(it.endpoint, again) }, XTIE_ERR_MEMORY);
    // SAFETY: still the allocation's.
    unsafe { start.cast::<u8>().write(1) };
    // SAFETY: as above.
    expect(unsafe { xtie_memory_deregister(it.endpoint, again) }, XTIE_OK);
    // SAFETY: as above.
    expect(unsafe { xtie_memory_free(it.endpoint, allocated) }, XTIE_OK);
    // SAFETY: as above.
    expect(unsafe { xtie_memory_free(it.endpoint, allocated) }, XTIE_ERR_MEMORY);
    it.close();
}

#[test]
fn full_tables_are_told_by_kind() {
    let it = Opened::new(&config(LOOPBACK));
    let mut bytes = [0u8; 8];
    let held: Vec<_> = (0..4).map(|_| it.register(&mut bytes)).collect();
    let (mut memory, start) = (null_mut(), bytes.as_mut_ptr().cast());
    // SAFETY: refused.
    let result =
        unsafe { xtie_memory_register(it.endpoint, start, 8, XTIE_MEMORY_HOST, &mut memory) };
    expect(result, XTIE_ERR_REGIONS_FULL);
    for memory in held {
        // SAFETY: one thread.
        expect(unsafe { xtie_memory_deregister(it.endpoint, memory) }, XTIE_OK);
    }
    let (first, second) = (it.join(&it), it.join(&it));
    let (listener, handle) = it.listen();
    let mut attempt: *mut xtie_attempt = null_mut();
    let mut connection: *mut xtie_connection = null_mut();
    // SAFETY: outputs of ours.
    let result =
        unsafe { xtie_endpoint_connect(it.endpoint, &handle, &mut attempt, &mut connection) };
    expect(result, XTIE_ERR_CONNECTIONS_FULL);
    assert!(attempt.is_null() && connection.is_null());
    it.close_connection(first.0);
    it.close_connection(first.1);
    // SAFETY: one thread.
    expect(unsafe { xtie_listener_close(it.endpoint, listener) }, XTIE_OK);
    it.works(it.join(&it));
    it.works(second);

    let mut open = Vec::new();
    let full = loop {
        let (mut listener, mut handle) = (null_mut(), xtie_handle { bytes: [0; 128] });
        // SAFETY: outputs of ours.
        match unsafe { xtie_endpoint_listen(it.endpoint, &mut handle, &mut listener) } {
            0 => open.push(listener),
            error => break error,
        }
    };
    expect(full, XTIE_ERR_LISTENERS_FULL);
    // SAFETY: one thread.
    expect(unsafe { xtie_listener_close(it.endpoint, open[0]) }, XTIE_OK);
    it.listen();
    it.close();
}

/// It left the sentence of an older failure standing, which was then told as its own.
#[test]
fn missing_pointer_has_a_sentence_of_its_own() {
    let it = Opened::new(&config(LOOPBACK));
    let null = |result: c_int| {
        expect(result, XTIE_ERR_NULL);
        assert_eq!(it.error(), "a pointer that must be given is NULL");
        // SAFETY: no such request.
        expect(unsafe { xtie_request_cancel(it.endpoint, stranger()) }, XTIE_ERR_STALE);
    };
    let (endpoint, handle) = (it.endpoint, xtie_handle { bytes: [0; 128] });
    // SAFETY: an endpoint of ours in all of them; what is missing is not touched.
    unsafe {
        null(xtie_endpoint_listen(endpoint, null_mut(), null_mut()));
        null(xtie_listener_accept(endpoint, stranger(), null_mut()));
        null(xtie_endpoint_connect(endpoint, &handle, null_mut(), null_mut()));
        let (mut attempt, mut connection) = (null_mut(), null_mut());
        null(xtie_endpoint_connect(endpoint, null_mut(), &mut attempt, &mut connection));
        null(xtie_connection_isend(endpoint, stranger(), null_mut(), 0, 0, null_mut(), null_mut()));
        null(xtie_connection_irecv(endpoint, stranger(), null_mut(), 1, null_mut()));
        null(xtie_connection_rail(endpoint, stranger(), null_mut()));
        null(xtie_endpoint_report(endpoint, null_mut(), 9, null_mut()));
        null(xtie_memory_register(endpoint, null_mut(), 1, XTIE_MEMORY_HOST, null_mut()));
        null(xtie_memory_alloc(endpoint, 1, null_mut(), null_mut()));
        null(xtie_request_test(endpoint, stranger(), null_mut(), null_mut()));
    }
    it.close();
}

/// Over TCP a message of more than 64 times 2^30 bytes was accepted, and never ended.
#[test]
fn message_longer_than_tcp_carries_is_refused_with_the_limit() {
    const MOST: usize = 64 << 30;
    // SAFETY: a new mapping of no memory, which nothing touches.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(null_mut(), MOST + 4096, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let (a, b) = (Opened::new(&config(TCP)), Opened::new(&config(TCP)));
    let (to_b, to_a) = a.join(&b);
    let (mut memory, mut request) = (null_mut(), null_mut());
    // SAFETY: mapped for as long as the process lives, and never read: it is refused.
    unsafe {
        let kind = XTIE_MEMORY_HOST;
        expect(xtie_memory_register(a.endpoint, start, MOST + 4096, kind, &mut memory), XTIE_OK);
        let result =
            xtie_connection_isend(a.endpoint, to_b, start, MOST + 1, 0, memory, &mut request);
        expect(result, XTIE_ERR_TOO_LONG);
    }
    assert!(a.error().contains("68719476736 bytes at most"), "{}", a.error());
    a.close_connection(to_b);
    b.close_connection(to_a);
    a.close();
    b.close();
}
