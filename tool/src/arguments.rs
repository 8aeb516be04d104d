//! What the commands' options have in common. clap reads them.
#![forbid(unsafe_code)]

use super::Failure;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use crosstie::host::mistyped::distance;

/// An option without a value.
pub fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// An option with a value, which the usage text calls `value`. A number may be below zero, so that
/// its parser says what is wrong with it.
pub fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).allow_negative_numbers(true).help(help)
}

/// An option that only processes of this program are given.
pub fn hidden(name: &'static str) -> Arg {
    Arg::new(name).long(name).hide(true)
}

/// Reads the arguments of a process that this program has started, which begin with no name.
pub fn parse(command: Command, args: &[String]) -> Result<ArgMatches, Failure> {
    command.no_binary_name(true).try_get_matches_from(args).map_err(|error| sentence(&error))
}

/// What clap says of an error, without the word before it.
pub fn sentence(error: &clap::Error) -> Failure {
    error.to_string().trim_start_matches("error: ").trim_end().to_string()
}

/// Whether an option was given.
pub fn is_given(given: &ArgMatches, name: &str) -> bool {
    given.value_source(name) == Some(ValueSource::CommandLine)
}

/// What is no option, in order.
pub fn operands(given: &ArgMatches) -> Vec<String> {
    given.get_many("what").unwrap_or_default().cloned().collect()
}

/// A failure that tells which option cannot be met.
pub fn refused(option: &str, why: &str) -> Failure {
    format!("option {option}: {why}")
}

/// The value of a number's option.
pub fn number(given: &ArgMatches, name: &str) -> Option<u64> {
    given.get_one(name).copied()
}

/// A parser of seconds, more than zero.
pub fn seconds(text: &str) -> Result<f64, Failure> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("it is not a number of seconds up to 3600".into()),
    }
}

/// `, did you mean X?` when one of `known` is close to `given`.
pub fn hint<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known.map(|name| (distance(given, name), name)).min();
    match near {
        Some((steps, name)) if steps * 2 < given.len().max(4) => {
            format!(", did you mean `{name}`?")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_hinted_at() {
        assert_eq!(hint("nothing", ["perf", "info"].into_iter()), "");
        assert_eq!(hint("prf", ["perf", "info"].into_iter()), ", did you mean `perf`?");
    }

    #[test]
    fn what_is_wrong_with_an_option_names_it() {
        let command = || Command::new("try").arg(option("time", "S", "").value_parser(seconds));
        for (args, wanted) in [
            ("--tim=1", "'--time'"),
            ("--time", "'--time <S>'"),
            ("--time=-1", "'--time <S>'"),
            ("more", "'more'"),
        ] {
            let error = parse(command(), &[args.into()]).unwrap_err();
            assert!(error.contains(wanted) && !error.starts_with("error"), "{error}");
        }
        let given = parse(command(), &["--time=0.5".into()]).unwrap();
        assert_eq!(given.get_one::<f64>("time"), Some(&0.5));
    }
}
