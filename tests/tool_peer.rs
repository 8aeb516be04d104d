//! What `crosstie info --peer` says where rails must be there that are not, from outside.

use std::process::Command;

/// It said `choice tcp`, and status 0; and plain `info` that host0 does not open.
#[test]
fn peer_is_reached_by_no_rail_where_one_is_required_that_is_not_there() {
    let of = |required: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crosstie"));
        command.args(["info", "--peer", "127.0.0.1"]).env("CROSSTIE_RAILS_REQUIRED", required);
        let output = command.env("CROSSTIE_OFI_LIBRARY", "/dev/null").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let choice = text.lines().find(|line| line.trim_start().starts_with("choice "));
        let choice = choice.unwrap_or_else(|| panic!("{text}"));
        (output.status.code(), choice.trim_start()["choice".len()..].trim().to_owned())
    };
    let (status, choice) = of("libfabric");
    let wanted = "none: CROSSTIE_RAILS_REQUIRED names libfabric, which this endpoint would be \
                  without";
    assert!(status == Some(1) && choice.starts_with(wanted), "{status:?} {choice}");
    let (status, choice) = of("foo");
    assert!(status == Some(1) && choice.contains("there is no rail foo"), "{status:?} {choice}");
    let (status, choice) = of("shm,tcp");
    assert!(status == Some(0) && choice.starts_with("shm: "), "{status:?} {choice}");
}
