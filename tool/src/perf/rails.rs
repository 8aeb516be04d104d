//! The rails of the measuring process's first connection, as they are when all was measured.
#![forbid(unsafe_code)]

use super::side::Side;
use crate::table::Table;
use crosstie::host::RailView;
use crosstie::transport::rail::LaneState;
use serde_json::json;

/// How the rails of the first connection are; nothing where there is one, which carried everything.
pub fn rails(side: &mut Side) -> Vec<RailView> {
    let Some(connection) = side.connections.first().copied() else { return Vec::new() };
    let known = |rail| side.owned.endpoint().rail_view(connection, rail).ok().flatten();
    let all: Vec<RailView> = (0..).map_while(known).collect();
    if all.len() > 1 { all } else { Vec::new() }
}

/// A table of them; nothing for none.
pub fn table(rails: &[RailView]) -> String {
    if rails.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new(&["rail", "over", "state", "bytes sent", "failures", "joins", "way"]);
    for (number, rail) in rails.iter().enumerate() {
        let stats = rail.lane.stats;
        table.row(
            [
                number.to_string(),
                rail.rail.name().to_string(),
                state(rail).to_string(),
                stats.bytes.to_string(),
                stats.failures.to_string(),
                stats.joins.to_string(),
                way(rail),
            ]
            .into(),
        );
    }
    let legend = "rails of the first connection: bytes of long messages that the measuring process \
                  sent on each,\n\
                  how often it failed, and how often it came up after the connection";
    format!("\n{legend}\n{}", table.text())
}

/// The same as JSON, one object per line.
pub fn json(rails: &[RailView]) -> String {
    let line = |(number, rail): (usize, &RailView)| {
        let stats = rail.lane.stats;
        let [local, remote] = rail.ends.map(|end| end.to_string());
        let object = json!({
            "measure": "rail", "rail": number, "over": rail.rail.name(), "state": state(rail),
            "local": local, "remote": remote, "bytes_sent": stats.bytes,
            "failures": stats.failures, "joins": stats.joins,
        });
        format!("{object}\n")
    };
    rails.iter().enumerate().map(line).collect()
}

fn state(rail: &RailView) -> &'static str {
    match rail.lane.state {
        LaneState::Up => "up",
        LaneState::Down => "down",
        LaneState::Joining => "joining",
        LaneState::Failing | LaneState::Fenced => "failed",
    }
}

fn way(rail: &RailView) -> String {
    match rail.ends.map(|end| end.to_string()) {
        [local, _] if local.is_empty() => "-".into(),
        [local, remote] if remote.is_empty() => local,
        [local, remote] => format!("{local} to {remote}"),
    }
}
