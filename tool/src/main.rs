//! The command `crosstie`. What it does stands in [`crosstie_tool`].
#![forbid(unsafe_code)]

use crosstie_tool::{Heap, main as run, memory_is_out};

#[global_allocator]
static HEAP: Heap = Heap::new(memory_is_out);

fn main() -> std::process::ExitCode {
    run()
}
