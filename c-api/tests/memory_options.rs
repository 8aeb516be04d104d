//! `xtie_memory_register_with`: what it takes, and the name of each refusal. What is refused
//! registers nothing. GPUs are those of the test double of the CUDA driver.

mod common;
#[path = "../../tests/cuda_support/mod.rs"]
mod cuda_support;
#[path = "../../tests/cuda_support/dmabufs.rs"]
mod dmabufs;

use common::*;
use crosstie_c::*;
use cuda_support::driver::*;
use cuda_support::steps::*;
use cuda_support::with_double;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut, with_exposed_provenance_mut};

const BYTES: usize = 1 << 20;

fn options(kind: u32) -> xtie_memory_options {
    let struct_size = size_of::<xtie_memory_options>() as u32;
    xtie_memory_options { struct_size, kind, device: -1, dmabuf: -1, dmabuf_offset: 0 }
}

fn register(
    opened: &Opened,
    (address, bytes): (u64, usize),
    options: &xtie_memory_options,
) -> Result<*mut xtie_memory, i32> {
    let mut memory = null_mut();
    let data = with_exposed_provenance_mut(address as usize);
    // SAFETY: memory of this test's, which stays until it is deregistered.
    let result =
        unsafe { xtie_memory_register_with(opened.endpoint, data, bytes, options, &mut memory) };
    if result == XTIE_OK as i32 {
        return Ok(memory);
    }
    assert!(memory.is_null(), "an output of a failed call");
    Err(result)
}

/// The call is refused by this name, and its error says this.
#[track_caller]
fn refused(
    opened: &Opened,
    range: (u64, usize),
    options: &xtie_memory_options,
    (code, words): (xtie_result, &str),
) {
    expect(register(opened, range, options).expect_err("refused memory"), code);
    let said = opened.error();
    assert!(said.contains(words), "{said}");
}

/// All regions that there may be can still be registered: nothing was left behind.
fn assert_nothing_registered(opened: &Opened, range: (u64, usize)) {
    let all: Vec<_> = (0..4)
        .map(|_| register(opened, range, &options(XTIE_MEMORY_HOST)).expect("room for a region"))
        .collect();
    for memory in all {
        // SAFETY: registered above.
        expect(unsafe { xtie_memory_deregister(opened.endpoint, memory) }, XTIE_OK);
    }
}

fn range_of(memory: &[u8]) -> (u64, usize) {
    (memory.as_ptr().expose_provenance() as u64, memory.len())
}

#[test]
fn each_field_of_the_options_is_checked() {
    let opened = Opened::new(&config(HOST));
    let memory = vec![0u8; BYTES];
    let range = range_of(&memory);
    let host = options(XTIE_MEMORY_HOST);
    for struct_size in [0, 4, 20, 23, 25, 28, 5000] {
        let wrong = xtie_memory_options { struct_size, ..host };
        expect(register(&opened, range, &wrong).unwrap_err(), XTIE_ERR_STRUCT_SIZE);
    }
    for kind in [0, 3, 4, XTIE_MEMORY_CUDA << 8, u32::MAX] {
        let unknown = xtie_memory_options { kind, ..host };
        expect(register(&opened, range, &unknown).unwrap_err(), XTIE_ERR_MEMORY_KIND);
    }
    let on_device = xtie_memory_options { device: 0, ..host };
    refused(&opened, range, &on_device, (XTIE_ERR_MEMORY_DEVICE, "set device to -1"));
    // as of a program that has left the field zero
    let with_dmabuf = xtie_memory_options { dmabuf: 0, ..host };
    refused(&opened, range, &with_dmabuf, (XTIE_ERR_DMABUF, "set dmabuf to -1"));
    for (address, bytes) in [(range.0, 0), (u64::MAX - 8, 64)] {
        let result = register(&opened, (address, bytes), &host);
        expect(result.unwrap_err(), XTIE_ERR_REGISTER_RANGE);
    }
    assert_nothing_registered(&opened, range);
    opened.close();
}

#[test]
fn pointers_that_must_be_given_are_missed_by_name() {
    let opened = Opened::new(&config(HOST));
    let memory = [0u8; 64];
    let host = options(XTIE_MEMORY_HOST);
    let data = memory.as_ptr().cast_mut().cast();
    let mut out = null_mut();
    let endpoint = opened.endpoint;
    // SAFETY: what is given is ours.
    let results = unsafe {
        [
            xtie_memory_register_with(endpoint, null_mut(), 64, &host, &mut out),
            xtie_memory_register_with(endpoint, data, 64, null(), &mut out),
            xtie_memory_register_with(endpoint, data, 64, &host, null_mut()),
            xtie_memory_register_with(null_mut(), data, 64, &host, &mut out),
        ]
    };
    results.into_iter().for_each(|result| expect(result, XTIE_ERR_NULL));
    assert!(out.is_null());
    opened.close();
}

#[test]
fn options_of_a_newer_header_are_taken_when_they_ask_for_nothing_new() {
    #[repr(C)]
    struct Newer {
        options: xtie_memory_options,
        novelty: u64,
    }
    let opened = Opened::new(&config(HOST));
    let memory = [0u8; 64];
    let mut newer = Newer { options: options(XTIE_MEMORY_HOST), novelty: 0 };
    newer.options.struct_size = size_of::<Newer>() as u32;
    let register = |newer: &Newer| {
        let (data, mut out) = (memory.as_ptr().cast_mut().cast(), null_mut());
        let options = std::ptr::from_ref(newer).cast();
        // SAFETY: what is given is ours.
        unsafe { xtie_memory_register_with(opened.endpoint, data, 64, options, &mut out) }
    };
    expect(register(&newer), XTIE_OK);
    newer.novelty = 1;
    expect(register(&newer), XTIE_ERR_STRUCT);
    opened.close();
}

#[test]
fn memory_of_a_gpu_is_told_from_the_hosts_and_from_another_gpus() {
    with_double("memory_of_a_gpu_is_told_from_the_hosts_and_from_another_gpus", &[], || {
        on(1);
        let opened = Opened::new(&config(HOST));
        let host = vec![0u8; BYTES];
        let (gpu, host) = ((alloc(BYTES), BYTES), range_of(&host));
        let cuda = options(XTIE_MEMORY_CUDA);
        refused(&opened, gpu, &options(XTIE_MEMORY_HOST), (XTIE_ERR_MEMORY_KIND, "of GPU 1"));
        expect(register(&opened, host, &cuda).unwrap_err(), XTIE_ERR_MEMORY_KIND);
        for device in [0, 2, -2, i32::MAX] {
            let other = xtie_memory_options { device, ..cuda };
            refused(&opened, gpu, &other, (XTIE_ERR_MEMORY_DEVICE, "lies on GPU 1"));
        }
        assert_nothing_registered(&opened, host);
        for device in [-1, 1] {
            let good = xtie_memory_options { device, ..cuda };
            let memory = register(&opened, gpu, &good).expect("memory of GPU 1");
            // SAFETY: registered just now.
            expect(unsafe { xtie_memory_deregister(opened.endpoint, memory) }, XTIE_OK);
        }
        opened.close();
    });
}

#[test]
fn descriptor_must_be_a_dma_buf_that_holds_the_memory() {
    with_double("descriptor_must_be_a_dma_buf_that_holds_the_memory", &[], || {
        on(0);
        let opened = Opened::new(&config(HOST));
        let gpu = (alloc(BYTES), BYTES);
        let cuda = options(XTIE_MEMORY_CUDA);
        let dmabuf = out(|fd: *mut i32| cuMemGetHandleForAddressRange(fd, gpu.0, BYTES, 1, 0));
        // SAFETY: made above, and ours.
        let dmabuf = unsafe { OwnedFd::from_raw_fd(dmabuf) };
        let no_dmabuf = std::fs::File::open("/proc/self/exe").unwrap();
        for dmabuf in [no_dmabuf.as_raw_fd(), 0, -2, 1 << 20, i32::MIN] {
            let wrong = xtie_memory_options { dmabuf, ..cuda };
            refused(&opened, gpu, &wrong, (XTIE_ERR_DMABUF, &format!("descriptor {dmabuf} is")));
        }
        for dmabuf_offset in [1, 4096, BYTES as u64, u64::MAX] {
            let wrong = xtie_memory_options { dmabuf: dmabuf.as_raw_fd(), dmabuf_offset, ..cuda };
            refused(&opened, gpu, &wrong, (XTIE_ERR_DMABUF_RANGE, "has 1048576 bytes"));
        }
        let host = vec![0u8; BYTES];
        assert_nothing_registered(&opened, range_of(&host));
        let good = xtie_memory_options { dmabuf: dmabuf.as_raw_fd(), dmabuf_offset: 4096, ..cuda };
        let memory = register(&opened, (gpu.0 + 4096, BYTES - 4096), &good).expect("a part");
        drop(dmabuf);
        // SAFETY: registered just now.
        expect(unsafe { xtie_memory_deregister(opened.endpoint, memory) }, XTIE_OK);
        opened.close();
    });
}
