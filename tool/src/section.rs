//! What `crosstie info` says: named lines in sections, as text or as JSON.
#![forbid(unsafe_code)]

use serde_json::Value;

/// One line: a name and what is to be said of it.
pub struct Line {
    /// What it is about.
    pub name: String,
    /// What it says.
    pub text: String,
}

/// Lines that belong together.
pub struct Section {
    /// What they are about.
    pub name: &'static str,
    /// In the order in which they are shown.
    pub lines: Vec<Line>,
}

/// A line.
pub fn line(name: &str, text: impl Into<String>) -> Line {
    Line { name: name.to_string(), text: text.into() }
}

/// The sections as text, in two columns.
pub fn text(sections: &[Section]) -> String {
    let names = sections.iter().flat_map(|section| section.lines.iter().map(|l| l.name.len()));
    let width = names.max().unwrap_or(0);
    let mut out = String::new();
    for section in sections {
        out.push_str(&format!("{}\n", section.name));
        for line in &section.lines {
            out.push_str(format!("  {:width$}  {}", line.name, line.text).trim_end());
            out.push('\n');
        }
    }
    out
}

/// The sections as one JSON object.
pub fn json(sections: &[Section]) -> String {
    let members = |section: &Section| {
        let lines = section.lines.iter().map(|line| (line.name.clone(), line.text.clone().into()));
        (section.name.to_string(), Value::Object(lines.collect()))
    };
    format!("{}\n", Value::Object(sections.iter().map(members).collect()))
}
