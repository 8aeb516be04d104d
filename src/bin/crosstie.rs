//! The command `crosstie`. What it does stands in [`crosstie::tool`].
#![forbid(unsafe_code)]

#[global_allocator]
static HEAP: crosstie::tool::Heap = crosstie::tool::Heap::new(crosstie::tool::memory_is_out);

fn main() -> std::process::ExitCode {
    crosstie::tool::main()
}
