//! The RDMA ports on wires that the guest of `tests/vm` has.

use std::path::Path;

/// Those of each end of the wires.
#[allow(dead_code)] // shared
pub const PORTS: [&str; 2] = ["=rxe0,rxe1", "=rxe2,rxe3"];

/// Whether there are such ports here; says so where not.
pub fn are_here() -> bool {
    let has = (0..4).all(|at| Path::new(&format!("/sys/class/infiniband/rxe{at}")).exists());
    assert!(has || std::env::var_os("XTIE_VM").is_none(), "the guest has no wires");
    if !has {
        eprintln!("SKIP: no RDMA ports on wires");
    }
    has
}
