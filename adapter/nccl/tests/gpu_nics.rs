//! Memory of GPUs by the NICs of a device: what NCCL is told of it, and messages in it. The ports
//! are those of a false libibverbs (`tests/verbs_fake`), the GPUs those of the double of the CUDA
//! driver.

#[path = "../../../tests/cuda_support/mod.rs"]
mod cuda_support;
#[allow(dead_code)] // of the shared parts
#[path = "../../../tests/verbs_support/fake.rs"]
mod fake;
#[path = "../../../tests/verbs_support/header.rs"]
mod header;
#[allow(dead_code)]
mod support;
#[path = "../../../tests/verbs_support/sysfs.rs"]
mod sysfs;

use cuda_support::library_path;
use fake::libraries;
use std::process::Command;
use support::{harness, plugin};

const HOST: &str = "1";
const CUDA: &str = "3";
const CUDA_AND_DMABUF: &str = "7";

/// Attributes of the driver's: GPU, number, value. 118 is `GPU_DIRECT_RDMA_WRITES_ORDERING`, 124
/// `DMA_BUF_SUPPORTED`, 75 the major number of the compute capability.
const FLUSHED: (&str, &str) = ("HARNESS_GPU", "0:118=0 0:75=8 1:118=0 1:75=8");

/// Plays a scenario over a port that is as `fake` says, where NCCL is to be told `pointers`. What
/// was said; `None`: it cannot be played here, and that was said.
fn play(
    scenario: &str,
    version: u32,
    fake: &str,
    pointers: &str,
    more: &[(&str, &str)],
) -> Option<String> {
    let [ports, _] = libraries()?;
    let folders = std::env::join_paths([ports.clone(), library_path()]).expect("folders");
    let mut command = Command::new(harness());
    command.arg(plugin()).args([&version.to_string(), scenario]).envs([
        ("CROSSTIE_RAILS", "verbs"),
        ("CROSSTIE_SOCKET_IFNAME", "=lo"),
        ("HARNESS_RAIL", "Verbs"),
        ("HARNESS_POINTERS", pointers),
        ("FAKE", fake),
    ]);
    command.env("LD_LIBRARY_PATH", folders).envs(more.iter().copied());
    sysfs::said_before(&sysfs::class("Ethernet", 1), &command)
}

#[test]
fn memory_of_gpus_goes_by_the_ports_that_take_it() {
    for version in [6, 9, 12] {
        let Some(said) = play("gpu_nics", version, "dmabufs mapped", CUDA_AND_DMABUF, &[]) else {
            return;
        };
        assert!(said.contains("a dma-buf, offset 4096"), "{said}");
    }
}

/// What a port has written reaches the GPU late, unless something there is read by the port.
#[test]
fn flush_makes_what_ports_have_written_visible() {
    for version in [6, 12] {
        let fake = "dmabufs mapped held_back";
        play("gpu_nics", version, fake, CUDA_AND_DMABUF, &[FLUSHED]);
    }
    // also where NCCL flushes a GPU that does not need it (NCCL_NET_FORCE_FLUSH)
    play("gpu_nics", 12, "dmabufs mapped held_back", CUDA_AND_DMABUF, &[]);
}

/// What copy engines bring is visible once it counts as received, and ports have no part in it.
#[test]
fn connection_within_the_host_is_not_flushed_where_ports_have_the_memory() {
    let within = [FLUSHED, ("CROSSTIE_RAILS", "shm,verbs"), ("HARNESS_RAIL", "Shm")];
    for version in [6, 12] {
        play("gpu_within", version, "dmabufs mapped", CUDA_AND_DMABUF, &within);
    }
}

#[test]
fn flush_that_fails_is_an_error() {
    let fails = ("HARNESS_FLUSH_FAILS", "1");
    play("gpu_flush_fails", 12, "dmabufs mapped no_reads", CUDA_AND_DMABUF, &[FLUSHED, fails]);
}

/// What NCCL is told of one kind of port, or GPU, or wish.
#[test]
fn nccl_is_told_what_the_ports_take() {
    const UNORDERED: (&str, &str) = ("HARNESS_GPU", "1:118=0");
    const NO_DMABUFS: (&str, &str) = ("HARNESS_GPU", "1:124=0");
    for (what, fake, more, pointers) in [
        ("a port that takes dma-bufs", "dmabufs", None, CUDA_AND_DMABUF),
        ("a port that takes none", "", None, HOST),
        ("the user's no", "dmabufs", Some(("CROSSTIE_NCCL_CUDA", "0")), HOST),
        ("copy engines, by the user's wish", "", Some(("CROSSTIE_NCCL_CUDA", "1")), CUDA),
        ("a GPU that needs flushes of which NCCL does none", "dmabufs", Some(UNORDERED), HOST),
        ("GPUs that NCCL flushes", "dmabufs", Some(FLUSHED), CUDA_AND_DMABUF),
        ("a GPU without dma-bufs", "dmabufs", Some(NO_DMABUFS), HOST),
    ] {
        let more: Vec<_> = more.into_iter().collect();
        for version in [6, 12] {
            let Some(_) = play("gpu_pointers", version, fake, pointers, &more) else { return };
        }
        println!("{what}: {pointers}");
    }
}

#[test]
fn dma_buf_that_does_not_fit_is_refused() {
    for version in [6, 8, 12] {
        play("gpu_refused", version, "dmabufs mapped", CUDA_AND_DMABUF, &[]);
    }
}
