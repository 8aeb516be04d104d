//! The loopback keeps the contract.

mod common;

#[test]
fn loopback_keeps_every_promise() {
    // it detaches no peers
    common::run_all(|| common::over_loopback(|rail| rail), 1);
}
