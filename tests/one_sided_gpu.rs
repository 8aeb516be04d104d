//! The acceptance table of one-sided operations between windows and buffers in memory of GPUs: by
//! copy engines, and staged over TCP. Over the test double of the CUDA driver, or, with
//! `XTIE_CUDA_REAL` set, over the driver of this host: `doc/testing.md` says how.
#![allow(dead_code)] // of the shared parts

mod cuda_support;
mod group_support;
mod host_support;

use crosstie::host::DeviceKind;
use cuda_support::driver::*;
use cuda_support::steps::{alloc, ok, on, out};
use cuda_support::with_driver;
use group_support::suite::{DeviceCalls, Place, Rail, fill};

/// Ranks take GPUs in turn.
fn enter(rank: u32) {
    ok(cuInit(0));
    let gpus = out(cuDeviceGetCount);
    on(rank as i32 % gpus);
}

const CALLS: DeviceCalls = DeviceCalls {
    enter,
    allocate: |bytes| {
        let start = alloc(bytes);
        write(start, &vec![0; bytes]);
        start
    },
    free: |start| ok(cuMemFree_v2(start)),
    write,
    read,
};

/// Memory of a pool, as cudaMallocAsync gives it: copies go there, words of a stream do not.
const OF_A_POOL: DeviceCalls = DeviceCalls {
    allocate: |bytes| {
        let start = out(|start| cuMemAllocAsync(start, bytes, 0));
        ok(cuStreamSynchronize(0));
        write(start, &vec![0; bytes]);
        start
    },
    ..CALLS
};

/// The driver returns from it when it has the bytes, which may be before they are there.
fn write(at: u64, bytes: &[u8]) {
    ok(cuMemcpyHtoD_v2(at, bytes.as_ptr(), bytes.len()));
    ok(cuStreamSynchronize(0));
}

fn read(at: u64, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    ok(cuMemcpyDtoH_v2(read.as_mut_ptr(), at, bytes));
    read
}

fn rail(name: &'static str, settings: &[(&'static str, &str)], device: DeviceKind) -> Rail {
    let settings = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Rail { settings, place: Place::Device(CALLS), ..Rail::new(name, device, 2) }
}

#[test]
fn every_row_in_memory_of_gpus() {
    with_driver("every_row_in_memory_of_gpus", || {
        let shm = [("CROSSTIE_RAILS", "shm")];
        let tcp = [("CROSSTIE_RAILS", "tcp"), ("CROSSTIE_SOCKET_IFNAME", "lo")];
        fill(&[
            rail("copy engine", &shm, DeviceKind::Host),
            rail("TCP, of GPUs", &tcp, DeviceKind::Host),
            Rail {
                place: Place::Device(OF_A_POOL),
                ..rail("TCP, of a GPU's pool", &tcp, DeviceKind::Host)
            },
        ]);
    });
}
