//! JSON as text, for output only.
#![forbid(unsafe_code)]

/// A JSON object under construction.
#[derive(Clone, Debug)]
pub struct Object(String);

impl Object {
    /// Without members.
    pub fn new() -> Object {
        Object(String::new())
    }

    /// Adds a member whose value is JSON already.
    pub fn raw(mut self, name: &str, json: &str) -> Object {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(&format!("{}:{json}", quoted(name)));
        self
    }

    /// Adds a text.
    pub fn text(self, name: &str, value: &str) -> Object {
        self.raw(name, &quoted(value))
    }

    /// Adds a whole number.
    pub fn count(self, name: &str, value: u64) -> Object {
        self.raw(name, &value.to_string())
    }

    /// Adds a number; what is no number becomes `null`.
    pub fn number(self, name: &str, value: f64) -> Object {
        let json = if value.is_finite() { value.to_string() } else { "null".into() };
        self.raw(name, &json)
    }

    /// Adds true or false.
    pub fn flag(self, name: &str, value: bool) -> Object {
        self.raw(name, if value { "true" } else { "false" })
    }

    /// The object's text, on one line.
    pub fn finish(self) -> String {
        format!("{{{}}}", self.0)
    }
}

/// A text as a JSON string.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_separated_and_texts_escaped() {
        let object = Object::new().text("a\"", "x\n\\").count("b", 2).number("c", f64::NAN);
        assert_eq!(
            object.flag("d", true).finish(),
            r#"{"a\"":"x\u000a\\","b":2,"c":null,"d":true}"#
        );
    }
}
