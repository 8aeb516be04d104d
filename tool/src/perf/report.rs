//! What was measured, row by row as it comes: as tables or JSON lines. In the end a plot.
#![forbid(unsafe_code)]

use super::options::{Measure, Options, Verify};
use super::rails::Paths;
use super::{rails, socket};
use crate::owned::Backing;
use crate::plot::{Chart, Series, page};
use crate::table::Columns;
use crate::text::{bytes_short, number};
use crate::{Failure, write_out};
use core::error::Error;
use crosstie::host::{DeviceKind, RailView};
use serde_json::{Value, json};

/// One measurement's numbers.
#[derive(Clone, Debug)]
pub struct Row {
    measure: Measure,
    device: &'static str,
    memory: Option<String>,
    bytes: Option<u64>,
    /// Receives, or operations, at a time.
    pub outstanding: u64,
    values: Vec<(&'static str, f64)>,
    /// Bytes that were compared with what was sent.
    pub verified: u64,
}

impl Row {
    /// Without numbers yet.
    pub fn new(options: &Options, measure: Measure, of: Option<(Backing, u64)>) -> Row {
        let memory = of.map(|(backing, _)| match backing {
            Backing::Shared | Backing::Private => backing.name().into(),
            Backing::Located => options.locations.to_string(),
        });
        Row {
            measure,
            device: options.device.name(),
            memory,
            bytes: of.map(|(_, bytes)| bytes),
            outstanding: options.outstanding(measure),
            values: Vec::new(),
            verified: 0,
        }
    }

    /// Adds a number. Its name ends in its unit.
    pub fn put(&mut self, name: &'static str, value: f64) {
        self.values.push((name, value));
    }

    /// The row is of something that is no device.
    pub fn of(mut self, device: &'static str) -> Row {
        self.device = device;
        self
    }

    fn value(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn columns(&self) -> Columns {
        let width = self.memory.as_ref().map_or(0, String::len).max(NUMBER_WIDTH);
        let messages = [("memory", width), ("bytes", NUMBER_WIDTH)];
        let messages = messages.into_iter().filter(|_| self.bytes.is_some());
        Columns::new(messages.chain(self.values.iter().map(|(name, _)| (*name, NUMBER_WIDTH))))
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = Vec::new();
        if let (Some(memory), Some(bytes)) = (&self.memory, self.bytes) {
            cells.extend([memory.clone(), bytes_short(bytes)]);
        }
        cells.extend(self.values.iter().map(|(_, value)| number(*value)));
        cells
    }

    fn json(&self, options: &Options) -> Value {
        let mut object = json!({ "measure": self.measure.name(), "device": self.device });
        if let (Some(memory), Some(bytes)) = (&self.memory, self.bytes) {
            object["memory"] = memory.as_str().into();
            object["bytes"] = bytes.into();
            object["outstanding"] = self.outstanding.into();
            object["group"] = options.group.into();
            object["connections"] = options.connections.unwrap_or(1).into();
            object["both"] = (options.both && self.measure != Measure::Latency).into();
            object["one_buffer"] = options.one_buffer.into();
            object["verified_bytes"] = self.verified.into();
        }
        object["pinned"] = options.cpus.is_some().into();
        for (name, value) in &self.values {
            object[*name] = (*value).into();
        }
        object
    }
}

/// Width of a column of numbers.
const NUMBER_WIDTH: usize = 7;

/// All rows until now, and how they are shown.
pub struct Report<'a> {
    options: &'a Options,
    rows: Vec<Row>,
    /// Of the table that the last row is in.
    columns: Option<Columns>,
}

impl<'a> Report<'a> {
    /// Without rows.
    pub fn new(options: &'a Options) -> Report<'a> {
        Report { options, rows: Vec::new(), columns: None }
    }

    /// Adds a row, and writes it at once.
    pub fn add(&mut self, row: Row) -> Result<(), Failure> {
        let text = match self.options.json {
            true => format!("{}\n", row.json(self.options)),
            false => self.lines(&row),
        };
        self.rows.push(row);
        write_out(&text)
    }

    /// Writes how the rails are in the end.
    pub fn rails(&self, rails: &[RailView]) -> Result<(), Failure> {
        write_out(&if self.options.json { rails::json(rails) } else { rails::table(rails) })
    }

    /// Writes by which paths bytes have arrived.
    pub fn paths(&self, paths: Paths) -> Result<(), Failure> {
        write_out(&if self.options.json { paths.json() } else { paths.table() })
    }

    /// Writes what was verified, and the plot.
    pub fn finish(&self) -> Result<(), Failure> {
        if !self.options.json && self.options.verify != Verify::No {
            let verified: u64 = self.rows.iter().map(|row| row.verified).sum();
            write_out(&format!("\n{verified} bytes verified, none wrong\n"))?;
        }
        match &self.options.svg {
            None => Ok(()),
            Some(file) => {
                let drawn = self.plot().and_then(|plot| Ok(std::fs::write(file, plot)?));
                drawn.map_err(|error| format!("option --svg: {file}: {error}"))
            }
        }
    }

    /// A row of a table, behind what stands above the table where it is the first of it.
    fn lines(&mut self, row: &Row) -> String {
        let mut text = String::new();
        let before = self.rows.last();
        if before.is_none() {
            text.push_str(&self.heading());
        }
        let device = before.map(|before| before.device);
        if row.device == socket::DEVICE && device != Some(socket::DEVICE) {
            text.push_str("\na bare TCP socket on the loopback interface, one send per message\n");
        } else if row.device != socket::DEVICE && device == Some(socket::DEVICE) {
            text.push_str(&format!("\n{}, by crosstie\n", row.device));
        }
        let is_next = before.is_some_and(|it| it.measure == row.measure && it.device == row.device);
        if !is_next {
            let columns = row.columns();
            text.push_str(&format!("\n{}\n{}", self.legend(row.measure), columns.head()));
            self.columns = Some(columns);
        }
        let columns = self.columns.as_ref().expect("of this row, or of the one before");
        text.push_str(&columns.row(&row.cells()));
        text
    }

    fn heading(&self) -> String {
        let place = match (self.options.device, self.options.cpus) {
            _ if self.options.place.is_some() => self.remote_text(),
            (DeviceKind::Loopback, _) => String::from("both ends in one thread"),
            (_, Some((a, b))) => format!("two processes on CPUs {a} and {b}"),
            (_, None) => String::from("two processes, not pinned"),
        };
        let device = match self.options.is_socket_alone() {
            true => socket::DEVICE,
            false => self.options.device.name(),
        };
        format!("{device}, {place}\n")
    }

    fn remote_text(&self) -> String {
        self.options.place.as_ref().map_or_else(String::new, |place| format!("with {place}"))
    }

    fn legend(&self, measure: Measure) -> String {
        let group = match self.options.group {
            1 => String::new(),
            count => format!(", {count} messages per receive"),
        };
        let both = if self.options.both { ", both directions added" } else { "" };
        let outstanding = self.options.outstanding(measure);
        match measure {
            Measure::Latency => format!(
                "latency: half of a round trip{group}; mean: of a window without looking at the \
                 clock\ninside; min, p50, p99: of single round trips, each with one look"
            ),
            Measure::Bandwidth | Measure::Rate => format!(
                "{}: {outstanding} outstanding{group}{both}; GB = 10^9 bytes; best and median of \
                 windows",
                measure.name()
            ),
            Measure::Setup => String::from(
                "setup: from connect to a usable connection; memory: new in this process, first \
                 with\nthe endpoint, further ones with their first message",
            ),
            Measure::Socket => String::new(), // has a table for each of its parts
            Measure::Pair => String::from("pair: one receive, one send, and their tests"),
            Measure::Put | Measure::Signal => format!(
                "{}: half of a round trip, each way {}; sent: a\nmessage of that length in the \
                 same run; rates: several outstanding; best of windows in turn",
                measure.name(),
                if measure == Measure::Put { "a put with a signal" } else { "a signal" }
            ),
            Measure::Get => String::from(
                "get: until the bytes are here; sent: a message of 8 bytes and one of that length \
                 back, in\nthe same run; rates: several outstanding; best of windows in turn",
            ),
            Measure::Counter => String::from(
                "counter: a put with a signal until its counter has grown; local: until its buffer \
                 may be\nused; sent: a message, likewise; best of windows in turn",
            ),
        }
    }

    fn plot(&self) -> Result<String, Box<dyn Error>> {
        let located = self.options.locations.to_string();
        let chart = |title: &str, measure: Measure, value: &str| Chart {
            title: title.to_string(),
            series: ["shared", "private", &located]
                .iter()
                .map(|memory| self.series(measure, memory, value))
                .filter(|series| !series.points.is_empty())
                .collect(),
        };
        let charts = [
            chart("one-way latency, p50, us", Measure::Latency, "p50_us"),
            chart("bandwidth, median, GB/s", Measure::Bandwidth, "median_gb_s"),
        ];
        let filled: Vec<Chart> =
            charts.into_iter().filter(|chart| !chart.series.is_empty()).collect();
        page(&format!("crosstie perf, {}", self.options.device.name()), &filled)
    }

    fn series(&self, measure: Measure, memory: &str, value: &str) -> Series {
        let of = |row: &&Row| row.measure == measure && row.device != socket::DEVICE;
        let rows = self.rows.iter().filter(of);
        let points = rows
            .filter(|row| row.memory.as_deref() == Some(memory))
            .filter_map(|row| Some((row.bytes? as f64, row.value(value)?)))
            .collect();
        Series { name: format!("{memory} memory"), points }
    }
}
