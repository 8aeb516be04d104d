//! What the tests of the C functions share: storage, endpoints, connected pairs.
#![allow(dead_code)] // each test file uses a part

use crosstie_c::*;
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

pub use crosstie_c::xtie_result::*;

pub const HOST: u32 = 0;
pub const LOOPBACK: u32 = 1;
pub const SHM: u32 = 2;
pub const TCP: u32 = 3;

/// Longer than a wait takes on a machine that is busy for minutes.
pub const WATCHDOG: Duration = Duration::from_secs(600);

#[derive(Copy, Clone)]
#[repr(align(64))]
pub struct Line(#[allow(dead_code)] [u8; 64]);

/// Storage of a caller, zeroed.
pub fn storage(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes.div_ceil(64)]
}

pub fn config(device: u32) -> xtie_endpoint_config {
    // SAFETY: integers.
    let mut config: xtie_endpoint_config = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is ours.
    let result = unsafe { xtie_endpoint_config_init(&mut config, size_of_val(&config)) };
    expect(result, XTIE_OK);
    config.device = device;
    config.connections_max = 4;
    config.regions_max = 4;
    config
}

pub fn size(config: &xtie_endpoint_config) -> usize {
    let mut bytes = 0;
    // SAFETY: both are ours.
    expect(unsafe { xtie_endpoint_size(config, &mut bytes) }, XTIE_OK);
    bytes
}

#[track_caller]
pub fn expect(result: c_int, expected: xtie_result) {
    // SAFETY: a static string.
    let said = unsafe { CStr::from_ptr(xtie_result_str(result)) };
    assert_eq!(result, expected as c_int, "{result}: {said:?}, expected {expected:?}");
}

/// An endpoint in storage of its own.
pub struct Opened {
    pub endpoint: *mut xtie_endpoint,
    storage: Vec<Line>,
}

impl Opened {
    /// With rails of vendors, whose tables and contexts stay until the program ends.
    pub fn with_rails(
        config: &xtie_endpoint_config,
        rails: &[xtie_vendor_rail],
    ) -> Result<Opened, c_int> {
        let mut storage = storage(size(config));
        let bytes = storage.len() * 64;
        let mut endpoint = null_mut();
        let place = storage.as_mut_ptr().cast();
        let (list, count) = (rails.as_ptr(), rails.len());
        // SAFETY: the storage outlives the endpoint, or is leaked with it.
        let result = unsafe {
            xtie_endpoint_open_with_rails(place, bytes, config, list, count, &mut endpoint)
        };
        match result == XTIE_OK as c_int {
            true => Ok(Opened { endpoint, storage }),
            false => Err(result),
        }
    }

    pub fn new(config: &xtie_endpoint_config) -> Opened {
        let mut storage = storage(size(config));
        let bytes = storage.len() * 64;
        let mut endpoint = null_mut();
        let place = storage.as_mut_ptr().cast();
        // SAFETY: the storage outlives the endpoint, or is leaked with it.
        expect(unsafe { xtie_endpoint_open(place, bytes, config, &mut endpoint) }, XTIE_OK);
        Opened { endpoint, storage }
    }

    pub fn progress(&self) {
        // SAFETY: one thread.
        expect(unsafe { xtie_endpoint_progress(self.endpoint, null_mut()) }, XTIE_OK);
    }

    pub fn error(&self) -> String {
        let mut text = [0; 320];
        // SAFETY: the text has as many bytes as it says.
        let result = unsafe { xtie_endpoint_error(self.endpoint, text.as_mut_ptr(), text.len()) };
        expect(result, XTIE_OK);
        // SAFETY: it ends with a zero.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_string()
    }

    pub fn listen(&self) -> (*mut xtie_listener, xtie_handle) {
        let (mut listener, mut handle) = (null_mut(), xtie_handle { bytes: [0; 128] });
        // SAFETY: outputs of ours.
        let result = unsafe { xtie_endpoint_listen(self.endpoint, &mut handle, &mut listener) };
        expect(result, XTIE_OK);
        (listener, handle)
    }

    /// Connects this endpoint to `other`, which may be itself.
    pub fn join(&self, other: &Opened) -> (*mut xtie_connection, *mut xtie_connection) {
        let (listener, handle) = other.listen();
        let mut attempt: *mut xtie_attempt = null_mut();
        let mut connection: *mut xtie_connection = null_mut();
        let mut accepted: *mut xtie_connection = null_mut();
        let start = Instant::now();
        while connection.is_null() || accepted.is_null() {
            assert!(start.elapsed() < WATCHDOG);
            if connection.is_null() {
                // SAFETY: outputs of ours.
                let result = unsafe {
                    xtie_endpoint_connect(self.endpoint, &handle, &mut attempt, &mut connection)
                };
                expect(result, XTIE_OK);
            }
            if accepted.is_null() {
                // SAFETY: outputs of ours.
                let result =
                    unsafe { xtie_listener_accept(other.endpoint, listener, &mut accepted) };
                expect(result, XTIE_OK);
            }
        }
        assert!(attempt.is_null());
        // SAFETY: an open listener.
        expect(unsafe { xtie_listener_close(other.endpoint, listener) }, XTIE_OK);
        (connection, accepted)
    }

    pub fn register(&self, bytes: &mut [u8]) -> *mut xtie_memory {
        let mut memory = null_mut();
        let start = bytes.as_mut_ptr().cast();
        // SAFETY: tests keep their bytes until the endpoint is closed.
        let result = unsafe {
            xtie_memory_register(self.endpoint, start, bytes.len(), XTIE_MEMORY_HOST, &mut memory)
        };
        expect(result, XTIE_OK);
        memory
    }

    pub fn send(
        &self,
        connection: *mut xtie_connection,
        bytes: &[u8],
        memory: *mut xtie_memory,
    ) -> (c_int, *mut xtie_request) {
        let mut request = null_mut();
        let (start, length) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: tests keep their bytes until the request has ended.
        let result = unsafe {
            xtie_connection_isend(self.endpoint, connection, start, length, 0, memory, &mut request)
        };
        (result, request)
    }

    pub fn receive(
        &self,
        connection: *mut xtie_connection,
        buffers: &[xtie_buffer],
    ) -> (c_int, *mut xtie_request) {
        let mut request = null_mut();
        let count = buffers.len() as u32;
        // SAFETY: tests keep their bytes until the request has ended.
        let result = unsafe {
            xtie_connection_irecv(self.endpoint, connection, buffers.as_ptr(), count, &mut request)
        };
        (result, request)
    }

    /// Tests a request until it has ended; `other` makes progress too.
    pub fn finish(&self, request: *mut xtie_request, other: &Opened) -> (c_int, [usize; 8]) {
        let (mut done, mut sizes) = (0, [usize::MAX; 8]);
        let start = Instant::now();
        loop {
            // SAFETY: outputs of ours.
            let result =
                unsafe { xtie_request_test(self.endpoint, request, &mut done, sizes.as_mut_ptr()) };
            if done == 1 {
                return (result, sizes);
            }
            expect(result, XTIE_OK);
            other.progress();
            assert!(start.elapsed() < WATCHDOG);
        }
    }

    pub fn close_connection(&self, connection: *mut xtie_connection) {
        let start = Instant::now();
        loop {
            // SAFETY: one thread.
            let result = unsafe { xtie_connection_close(self.endpoint, connection) };
            if result != XTIE_AGAIN as c_int {
                return expect(result, XTIE_OK);
            }
            self.progress();
            assert!(start.elapsed() < WATCHDOG);
        }
    }

    /// Eight bytes make it from one end of a connection of a loopback endpoint to the other: a
    /// good call after bad ones.
    pub fn works(&self, pair: (*mut xtie_connection, *mut xtie_connection)) {
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(b"crosstie");
        let memory = self.register(&mut bytes);
        let (result, receive) = self.receive(pair.1, &[room(&mut bytes[8..], memory)]);
        expect(result, XTIE_OK);
        let (result, send) = self.send(pair.0, &bytes[..8], memory);
        expect(result, XTIE_OK);
        assert_eq!(self.finish(receive, self).1[0], 8);
        expect(self.finish(send, self).0, XTIE_OK);
        assert_eq!(&bytes[8..], b"crosstie");
        // SAFETY: its requests have ended.
        expect(unsafe { xtie_memory_deregister(self.endpoint, memory) }, XTIE_OK);
    }

    pub fn close(self) {
        // SAFETY: one thread.
        expect(unsafe { xtie_endpoint_close(self.endpoint) }, XTIE_OK);
        // SAFETY: the storage still stands.
        let result = unsafe { xtie_endpoint_progress(self.endpoint, null_mut()) };
        expect(result, XTIE_ERR_CLOSED);
        drop(self.storage);
    }
}

pub fn room(bytes: &mut [u8], memory: *mut xtie_memory) -> xtie_buffer {
    xtie_buffer { data: bytes.as_mut_ptr().cast(), bytes: bytes.len(), tag: 0, reserved: 0, memory }
}

impl Opened {
    /// The endpoint still registers, listens and makes progress.
    pub fn works_alone(&self) {
        let mut bytes = [0u8; 8];
        let memory = self.register(&mut bytes);
        // SAFETY: no request uses it.
        expect(unsafe { xtie_memory_deregister(self.endpoint, memory) }, XTIE_OK);
        let (listener, _) = self.listen();
        // SAFETY: an open listener.
        expect(unsafe { xtie_listener_close(self.endpoint, listener) }, XTIE_OK);
        self.progress();
    }
}

/// Connects until there is an answer other than "not yet".
pub fn connect(it: &Opened, handle: &xtie_handle) -> (c_int, *mut xtie_connection) {
    let mut attempt: *mut xtie_attempt = null_mut();
    let mut connection: *mut xtie_connection = null_mut();
    let start = Instant::now();
    loop {
        // SAFETY: outputs of ours.
        let result =
            unsafe { xtie_endpoint_connect(it.endpoint, handle, &mut attempt, &mut connection) };
        if result != 0 || !connection.is_null() {
            assert!(attempt.is_null());
            return (result, connection);
        }
        assert!(start.elapsed() < WATCHDOG);
    }
}
