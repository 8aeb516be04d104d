//! Plain tables: columns as wide as their longest cell, or as was said before the first row.
#![forbid(unsafe_code)]

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
        self.rows.iter().map(|row| line(row, &widths)).collect()
    }
}

/// A table whose rows are shown one by one, when there is something to show.
#[derive(Clone, Debug)]
pub struct Columns(Vec<(&'static str, usize)>);

impl Columns {
    /// Columns by name, and the cells' usual width; a name that is wider makes room for itself.
    pub fn new(columns: impl IntoIterator<Item = (&'static str, usize)>) -> Columns {
        Columns(columns.into_iter().map(|(name, width)| (name, width.max(name.len()))).collect())
    }

    /// The line of names.
    pub fn head(&self) -> String {
        let names: Vec<String> = self.0.iter().map(|(name, _)| name.to_string()).collect();
        self.row(&names)
    }

    /// A row's line.
    pub fn row(&self, cells: &[String]) -> String {
        assert_eq!(cells.len(), self.0.len());
        let widths: Vec<usize> = self.0.iter().map(|(_, width)| *width).collect();
        line(cells, &widths)
    }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut line = format!("{:1$}", cells[0], widths[0]);
    for (cell, width) in cells.iter().zip(widths).skip(1) {
        line.push_str(&format!("  {cell:>width$}"));
    }
    format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["bytes", "us"]);
        table.row(["8".into(), "0.312".into()].into());
        assert_eq!(table.text(), "bytes     us\n8      0.312\n");
        let columns = Columns::new([("bytes", 2), ("us", 5)]);
        let row = columns.row(&["8".into(), "0.312".into()]);
        assert_eq!(columns.head() + &row, table.text());
    }
}
