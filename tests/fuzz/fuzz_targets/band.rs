#![no_main]

#[path = "../band.rs"]
mod band;

libfuzzer_sys::fuzz_target!(|data: &[u8]| band::band(data));
