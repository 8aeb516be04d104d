//! What was measured, as tables, JSON lines and a plot.
#![forbid(unsafe_code)]

extern crate std;

use super::options::{Measure, Options, Verify};
use super::{rails, socket};
use crate::host::owned::Backing;
use crate::host::{DeviceKind, RailView};
use crate::tool::json::Object;
use crate::tool::plot::{Chart, Series, page};
use crate::tool::table::Table;
use crate::tool::text::{bytes_short, number};
use crate::tool::{Failure, write_out};
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// One measurement's numbers.
#[derive(Clone, Debug)]
pub struct Row {
    measure: Measure,
    device: &'static str,
    memory: Option<&'static str>,
    bytes: Option<u64>,
    outstanding: u64,
    values: Vec<(&'static str, f64)>,
    /// Bytes that were compared with what was sent.
    pub verified: u64,
}

impl Row {
    /// Without numbers yet.
    pub fn new(options: &Options, measure: Measure, of: Option<(Backing, u64)>) -> Row {
        let memory = of.map(|(backing, _)| match backing {
            Backing::Shared => "shared",
            Backing::Private => "private",
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

    fn json(&self, options: &Options) -> String {
        let mut object =
            Object::new().text("measure", self.measure.name()).text("device", self.device);
        if let (Some(memory), Some(bytes)) = (self.memory, self.bytes) {
            object = object
                .text("memory", memory)
                .count("bytes", bytes)
                .count("outstanding", self.outstanding)
                .count("group", options.group)
                .count("connections", options.connections.unwrap_or(1).into())
                .flag("both", options.both && self.measure != Measure::Latency)
                .flag("one_buffer", options.one_buffer)
                .count("verified_bytes", self.verified);
        }
        object = object.flag("pinned", options.cpus.is_some());
        for (name, value) in &self.values {
            object = object.number(name, *value);
        }
        object.finish()
    }
}

/// All rows until now, and how they are shown.
pub struct Report<'a> {
    options: &'a Options,
    rows: Vec<Row>,
    rails: Vec<RailView>,
}

impl<'a> Report<'a> {
    /// Without rows.
    pub fn new(options: &'a Options) -> Report<'a> {
        Report { options, rows: Vec::new(), rails: Vec::new() }
    }

    /// Adds a row, and writes it at once as JSON when that was asked for.
    pub fn add(&mut self, row: Row) -> Result<(), Failure> {
        if self.options.json {
            write_out(&format!("{}\n", row.json(self.options)))?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Keeps how the rails are in the end, or writes it at once as JSON.
    pub fn rails(&mut self, rails: Vec<RailView>) -> Result<(), Failure> {
        if self.options.json {
            write_out(&rails::json(&rails))?;
        }
        self.rails = rails;
        Ok(())
    }

    /// Writes the tables and the plot.
    pub fn finish(&self) -> Result<(), Failure> {
        if !self.options.json {
            write_out(&self.tables())?;
        }
        match &self.options.svg {
            None => Ok(()),
            Some(file) => std::fs::write(file, self.plot())
                .map_err(|error| format!("option --svg: {file}: {error}")),
        }
    }

    fn tables(&self) -> String {
        let mut text = self.heading();
        let mut is_socket = false;
        for measure in &self.options.measures {
            if *measure == Measure::Socket {
                is_socket = true;
                text.push_str(
                    "\na bare TCP socket on the loopback interface, one send per message\n",
                );
                for (measure, _) in self.options.socket_plans() {
                    text.push_str(&self.section(measure, socket::DEVICE));
                }
            } else {
                let device = self.options.device.name();
                if core::mem::take(&mut is_socket) {
                    text.push_str(&format!("\n{device}, by crosstie\n"));
                }
                text.push_str(&self.section(*measure, device));
            }
        }
        text.push_str(&rails::table(&self.rails));
        text
    }

    fn section(&self, measure: Measure, device: &str) -> String {
        let of = |row: &&Row| row.measure == measure && row.device == device;
        let rows: Vec<&Row> = self.rows.iter().filter(of).collect();
        match rows.first() {
            Some(first) => format!("\n{}\n{}", self.legend(measure), table(first, &rows)),
            None => String::new(),
        }
    }

    fn heading(&self) -> String {
        let place = match (self.options.device, self.options.cpus) {
            (DeviceKind::Loopback, _) => String::from("both ends in one thread"),
            (_, Some((a, b))) => format!("two processes on CPUs {a} and {b}"),
            (_, None) => String::from("two processes, not pinned"),
        };
        let verified: u64 = self.rows.iter().map(|row| row.verified).sum();
        let verified = match self.options.verify {
            Verify::No => String::new(),
            Verify::Outside | Verify::Inside => format!("; {verified} bytes verified, none wrong"),
        };
        let device = match self.options.is_socket_alone() {
            true => socket::DEVICE,
            false => self.options.device.name(),
        };
        format!("{device}, {place}{verified}\n")
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
        }
    }

    fn plot(&self) -> String {
        let chart = |title: &str, measure: Measure, value: &str| Chart {
            title: title.to_string(),
            series: ["shared", "private"]
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
            .filter(|row| row.memory == Some(memory))
            .filter_map(|row| Some((row.bytes? as f64, row.value(value)?)))
            .collect();
        Series { name: format!("{memory} memory"), points }
    }
}

fn table(first: &Row, rows: &[&Row]) -> String {
    let mut head: Vec<&str> = Vec::new();
    if first.bytes.is_some() {
        head.extend(["memory", "bytes"]);
    }
    head.extend(first.values.iter().map(|(name, _)| *name));
    let mut table = Table::new(&head);
    for row in rows {
        let mut cells: Vec<String> = Vec::new();
        if let (Some(memory), Some(bytes)) = (row.memory, row.bytes) {
            cells.extend([memory.to_string(), bytes_short(bytes)]);
        }
        cells.extend(row.values.iter().map(|(_, value)| number(*value)));
        table.row(cells);
    }
    table.text()
}
