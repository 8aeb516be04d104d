//! What `crosstie info` says first: what matters of its sections, on one screen.
#![forbid(unsafe_code)]

use super::section::{Line, Section};

/// Characters of a line.
const COLUMNS: usize = 96;
/// Lines of addresses, of RDMA ports, and of variables: all together are 24 with the others.
const ADDRESSES: usize = 4;
const PORTS: usize = 2;
const VARIABLES: usize = 3;
/// The last line.
const MORE: &str =
    "`crosstie info --all` says more: every address, port and provider, and all settings";

/// The screen of these sections.
pub fn text(sections: &[Section]) -> String {
    let lines_of = |name: &str| {
        let found = sections.iter().find(|section| section.name == name);
        found.map_or(&[][..], |section| &section.lines[..])
    };
    let text_of = |section: &str, name: &str| {
        let found = lines_of(section).iter().find(|line| line.name == name);
        found.map_or_else(String::new, |line| line.text.clone())
    };
    let mut screen = Screen(Vec::new());
    for name in ["crosstie", "node id", "kernel", "processor"] {
        screen.line(name, &text_of("host", name));
    }
    for device in lines_of("devices") {
        screen.line(&device.name, state(&device.text));
    }
    let network = lines_of("network").iter();
    let (others, addresses): (Vec<&Line>, Vec<&Line>) =
        network.partition(|line| matches!(line.name.as_str(), "rails" | "tcp"));
    let (used, unused): (Vec<&Line>, Vec<&Line>) =
        addresses.into_iter().partition(|line| line.text.starts_with("used"));
    screen.some("", &used, ADDRESSES, unused.len());
    others.iter().for_each(|line| screen.line(&line.name, &line.text));
    let is_port = |line: &&Line| !matches!(line.name.as_str(), "use" | "library");
    let ports: Vec<&Line> = lines_of("rdma").iter().filter(is_port).collect();
    screen.some("rdma ", &ports, PORTS, 0);
    screen.line("libfabric", &text_of("libfabric", "used"));
    screen.line("GPUs", &format!("{}; GIN {}", text_of("gpu", "GPUs"), text_of("gpu", "GIN")));
    screen.line("kernel copy", &text_of("kernel", "kernel copy"));
    let limits = lines_of("limits").iter().map(|line| format!("{} {}", line.name, line.text));
    screen.line("limits", &limits.collect::<Vec<_>>().join(", "));
    let is_set = |line: &&Line| !line.text.starts_with("default ");
    let variables: Vec<&Line> = lines_of("variables").iter().filter(is_set).collect();
    screen.some("", &variables, VARIABLES, 0);
    screen.text()
}

/// Of a device whether it is available, and what its name does not say.
fn state(text: &str) -> &str {
    match text.split_once("; ") {
        Some(("available", rest)) if !rest.starts_with("of its rails") => "available",
        _ => text,
    }
}

struct Screen(Vec<(String, String)>);

impl Screen {
    fn line(&mut self, name: &str, text: &str) {
        self.0.push((name.to_string(), text.to_string()));
    }

    /// As many as there is room for, and how many more there are; `unshown` are more of them.
    fn some(&mut self, before: &str, lines: &[&Line], most: usize, unshown: usize) {
        // what stands for the others takes a line, too
        let is_rest = lines.len() > most || unshown > 0;
        let shown = lines.len().min(if is_rest { most - 1 } else { most });
        for line in &lines[..shown] {
            self.line(&format!("{before}{}", line.name), &line.text);
        }
        match (lines.len() - shown, unshown) {
            (0, 0) => {}
            (0, more) => self.line("", &format!("and {more} that are not used")),
            (more, 0) => self.line("", &format!("and {more} more")),
            (more, unused) => self.line("", &format!("and {more} more, {unused} are not used")),
        }
    }

    fn text(&self) -> String {
        let width = self.0.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for (name, text) in &self.0 {
            out.push_str(clipped(format!("{name:width$}  {text}")).trim_end());
            out.push('\n');
        }
        format!("{out}{MORE}\n")
    }
}

/// A line that fits.
fn clipped(line: String) -> String {
    match line.char_indices().nth(COLUMNS - 1) {
        Some((at, last)) if line.len() > at + last.len_utf8() => format!("{}…", &line[..at]),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::super::section::line;
    use super::*;

    /// A host with more of everything than a screen has room for.
    #[test]
    fn screen_of_a_large_host_has_twenty_four_lines() {
        let many = |what: &str, text: &str| -> Vec<Line> {
            (0..40).map(|at| line(&format!("{what}{at}"), format!("{text}{:300}", at))).collect()
        };
        let mut network = many("eth", "used, ");
        network.extend(many("lo", "not used: "));
        network.extend([line("tcp", "CROSSTIE_SOCKET_IFNAME"), line("rails", "shm and tcp")]);
        let section = |name, lines| Section { name, lines };
        let devices = ["host0", "loopback0", "shm0", "tcp0"].map(|name| line(name, "available; x"));
        let text = text(&[
            section("devices", devices.into()),
            section("network", network),
            section("rdma", many("mlx5_", "usable ")),
            section("limits", vec![line("RLIMIT_NOFILE", "9"), line("RLIMIT_MEMLOCK", "8")]),
            section("variables", many("CROSSTIE_", "set to ")),
        ]);
        assert!(text.lines().count() <= 24, "{}:\n{text}", text.lines().count());
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(text.contains("and 37 more, 40 are not used"), "{text}");
    }
}
