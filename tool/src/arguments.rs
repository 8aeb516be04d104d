//! Options of a command: declared once, read by hand, told in the usage text.
#![forbid(unsafe_code)]

use super::Failure;
use crosstie::host::mistyped::distance;

/// An option.
#[derive(Copy, Clone, Debug)]
pub struct Flag {
    /// With its dashes: `--sizes`.
    pub name: &'static str,
    /// What its value is called in the usage text; empty when it takes none.
    pub value: &'static str,
    /// What it does. Lines after the first are indented in the usage text. Empty: only this
    /// program's own processes are given it, and the usage text is silent of it.
    pub help: &'static str,
}

/// A command and its options.
#[derive(Copy, Clone, Debug)]
pub struct Command {
    /// As it is typed: `crosstie perf`.
    pub name: &'static str,
    /// What it does, in a few lines.
    pub about: &'static str,
    /// Its operands, as in the usage line; empty when it takes none.
    pub operands: &'static str,
    /// All options but `--help`.
    pub flags: &'static [Flag],
}

/// What a command was given.
#[derive(Clone, Default, Debug)]
pub struct Given {
    flags: Vec<(&'static str, String)>,
    /// What is no option, in order.
    pub operands: Vec<String>,
    /// `--help` was among them.
    pub help: bool,
}

impl Command {
    /// Reads arguments: `--name value`, `--name=value`, `--name`, operands.
    ///
    /// *Errors*: a sentence that names the option.
    pub fn parse(&self, args: &[String]) -> Result<Given, Failure> {
        let mut given = Given::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            if arg == "--help" || arg == "-h" {
                given.help = true;
            } else if !arg.starts_with('-') || arg == "-" {
                given.operand(self, arg)?;
            } else {
                let (name, value) = match arg.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_string())),
                    None => (arg.as_str(), None),
                };
                let flag = self.flag(name)?;
                let value = match (flag.value.is_empty(), value) {
                    (true, Some(_)) => return Err(format!("option {name} takes no value")),
                    (true, None) => String::new(),
                    (false, Some(value)) => value,
                    (false, None) => rest.next().cloned().ok_or_else(|| {
                        format!("option {name} wants a value: {name} {}", flag.value)
                    })?,
                };
                given.flag(flag, value)?;
            }
        }
        Ok(given)
    }

    fn flag(&self, name: &str) -> Result<&'static Flag, Failure> {
        self.flags.iter().find(|flag| flag.name == name).ok_or_else(|| {
            let hint = hint(name, self.flags.iter().map(|flag| flag.name));
            format!("unknown option {name}{hint}; `{} --help` lists all", self.name)
        })
    }

    /// The usage text.
    pub fn usage(&self) -> String {
        let operands = match self.operands {
            "" => String::new(),
            operands => format!(" {operands}"),
        };
        let mut text = format!("usage: {}{operands} [OPTION...]\n\n{}\n", self.name, self.about);
        let flags = || self.flags.iter().filter(|flag| !flag.help.is_empty());
        let heads: Vec<String> = flags()
            .map(|flag| format!("{} {}", flag.name, flag.value).trim_end().to_string())
            .collect();
        let width = heads.iter().map(String::len).max().unwrap_or(0);
        for (flag, head) in flags().zip(&heads) {
            let help = flag.help.replace('\n', &format!("\n{:1$}", "", width + 4));
            text.push_str(&format!("  {head:width$}  {help}\n"));
        }
        text
    }
}

impl Given {
    fn operand(&mut self, command: &Command, arg: &str) -> Result<(), Failure> {
        if command.operands.is_empty() {
            return Err(format!("`{arg}` is not an option, and `{}` takes no other", command.name));
        }
        self.operands.push(arg.to_string());
        Ok(())
    }

    fn flag(&mut self, flag: &'static Flag, value: String) -> Result<(), Failure> {
        if self.has(flag.name) {
            return Err(format!("option {} is given twice", flag.name));
        }
        self.flags.push((flag.name, value));
        Ok(())
    }

    /// The options that were given.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.flags.iter().map(|(name, _)| *name)
    }

    /// Whether an option was given.
    pub fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// An option's value.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.flags.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// An option's value as a whole number in `min..=max`.
    pub fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, Failure> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(format!("option {name}: `{text}` is not a number from {min} to {max}")),
        }
    }

    /// An option's value as a number of seconds, more than zero.
    pub fn seconds(&self, name: &str) -> Result<Option<f64>, Failure> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<f64>() {
            Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(Some(seconds)),
            _ => Err(format!("option {name}: `{text}` is not a number of seconds up to 3600")),
        }
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

    const COMMAND: Command = Command {
        name: "crosstie try",
        about: "Tries.",
        operands: "",
        flags: &[
            Flag { name: "--sizes", value: "LIST", help: "sizes\nsecond line" },
            Flag { name: "--json", value: "", help: "lines" },
        ],
    };

    fn parse(args: &[&str]) -> Result<Given, Failure> {
        COMMAND.parse(&args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn values_follow_or_are_joined_by_an_equals_sign() {
        assert_eq!(parse(&["--sizes", "8"]).unwrap().text("--sizes"), Some("8"));
        assert_eq!(parse(&["--sizes=8", "--json"]).unwrap().text("--sizes"), Some("8"));
        assert!(!parse(&[]).unwrap().has("--json"));
    }

    #[test]
    fn every_error_names_the_option() {
        for (args, wanted) in [
            (&["--size", "8"][..], "did you mean `--sizes`"),
            (&["--sizes"], "option --sizes wants a value"),
            (&["--json=1"], "option --json takes no value"),
            (&["--json", "--json"], "option --json is given twice"),
            (&["more"], "`more` is not an option"),
        ] {
            let error = parse(args).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        assert!(parse(&["--sizes=x"]).unwrap().number("--sizes", 1, 9).is_err());
    }

    #[test]
    fn only_near_names_are_hinted_at() {
        assert_eq!(hint("nothing", ["perf", "info"].into_iter()), "");
        assert_eq!(hint("prf", ["perf", "info"].into_iter()), ", did you mean `perf`?");
    }
}
