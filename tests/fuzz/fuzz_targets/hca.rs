#![no_main]

#[path = "../hca.rs"]
mod hca;

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca::hca(data));
