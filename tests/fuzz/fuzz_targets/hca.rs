#![no_main]

#[path = "../hca.rs"]
mod hca;

libfuzzer_sys::fuzz_target!(|deeds: Vec<hca::Deed>| hca::hca(&deeds));
