//! A progress bar, on terminals only.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};

/// Cells of the bar.
const WIDTH: usize = 30;

/// How much of some steps is done, on standard error.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    done: usize,
    steps: usize,
}

impl Progress {
    /// For so many steps; shows nothing when standard error is no terminal.
    pub fn new(steps: usize) -> Progress {
        Progress { shown: std::io::stderr().is_terminal(), done: 0, steps: steps.max(1) }
    }

    /// The next step begins.
    pub fn step(&mut self, what: &str) {
        if self.shown {
            let full = (WIDTH * self.done / self.steps).min(WIDTH);
            let bar: String = "#".repeat(full) + &".".repeat(WIDTH - full);
            eprint!("\r\x1b[K[{bar}] {}/{} {what}", self.done + 1, self.steps);
            let _ = std::io::stderr().flush(); // a broken terminal costs only the bar
        }
        self.done += 1;
    }

    /// Wipes the bar away, before other output.
    pub fn clear(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
