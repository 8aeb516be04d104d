//! The loopback keeps the contract.

mod common;

#[test]
fn loopback_keeps_every_promise() {
    // it detaches no peers, and has no longer payloads towards one
    common::run_all(|| common::over_loopback(|rail| rail), 2);
}
