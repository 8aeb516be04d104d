//! The command `crosstie`. What it does stands in [`crosstie::tool`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    crosstie::tool::main()
}
