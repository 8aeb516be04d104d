//! A plain table: columns as wide as their longest cell.
#![forbid(unsafe_code)]

extern crate std;

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// Rows under a head.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with only its head.
    pub fn new<S: AsRef<str>>(head: &[S]) -> Table {
        Table { rows: [head.iter().map(|cell| cell.as_ref().to_string()).collect()].into() }
    }

    /// Adds a row with as many cells as the head.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len());
        self.rows.push(cells);
    }

    /// Its text; all columns but the first are aligned to the right.
    pub fn text(&self) -> String {
        let columns = self.rows[0].len();
        let width = |at: usize| {
            self.rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = format!("{:1$}", row[0], widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line.push_str(&format!("  {cell:>width$}"));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["bytes", "us"]);
        table.row(["8".into(), "0.312".into()].into());
        assert_eq!(table.text(), "bytes     us\n8      0.312\n");
    }
}
