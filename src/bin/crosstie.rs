//! The `crosstie` tool.
fn main() {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    std::process::exit(crosstie::tool::sim::run(&arguments));
}
