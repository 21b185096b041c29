//! Tables for the terminal.

use std::collections::BTreeSet;

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use super::{Report, seconds};
use crate::cell::Cell;
use crate::figure::Verdict;
use crate::goals::ROWS;

/// One line below the head and no other: tables are long.
pub(super) fn new(head: &[&str]) -> Table {
    let mut table = Table::new();
    let style = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));
    table.load_style(style).set_header(head.iter().copied());
    table
}

/// Everything that a person wants to see.
pub fn tables(report: &Report) -> String {
    let text = text(report);
    // The padding of the last column is of no use to anybody.
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    let suites: Vec<&str> = {
        let mut seen = BTreeSet::new();
        report.cells.iter().map(|c| c.suite.as_str()).filter(|s| seen.insert(*s)).collect()
    };
    for suite in suites {
        let cells: Vec<&Cell> = report.cells.iter().filter(|c| c.suite == suite).collect();
        let mode = cells.first().map_or("", |c| c.mode.name());
        out.push_str(&format!("\n{suite} ({mode})\n{}\n", of_suite(&cells)));
    }
    out.push_str(&format!("\nTargets and figures\n{}\n", of_figures(report)));
    for failed in &report.failed {
        out.push_str(&format!("FAILED: {failed}\n"));
    }
    for note in &report.notes {
        out.push_str(&format!("note: {note}\n"));
    }
    let budget: Vec<String> = report.budget.iter().map(|(name, s)| format!("{name} {}", seconds(*s))).collect();
    out.push_str(&format!("{}\n{} in {}: {}\n", report.machine.line(), report.command, seconds(report.seconds), budget.join(", ")));
    out
}

fn of_suite(cells: &[&Cell]) -> Table {
    let mut table =
        new(&["step", "target", "time", "R", "F", "drain", "requests (each)", "puts", "flushes", "CPU daemon", "client", "RSS", ""]);
    for cell in cells {
        let typical = cell.typical();
        let counts = typical.map(|l| &l.counts);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            cell.step.name().to_owned(),
            cell.target.clone(),
            or_dash(cell.time().map(|t| seconds(t.median))),
            or_dash(cell.ratio().filter(|_| cell.target != "ext4").map(|r| r.to_string())),
            or_dash(cell.floor_ratio().filter(|_| cell.target.starts_with("ours")).map(|r| r.to_string())),
            or_dash(cell.drain().map(|d| seconds(d.median))),
            or_dash(cell.requests().map(|(n, each)| format!("{n} ({each:.1})"))),
            or_dash(counts.and_then(|c| c.store).map(|s| s.puts.to_string())),
            or_dash(counts.and_then(|c| c.flushes).map(|n| n.to_string())),
            or_dash(counts.filter(|c| c.rss > 0).map(|c| seconds(c.daemon_cpu))),
            or_dash(counts.map(|c| seconds(c.client_cpu))),
            or_dash(counts.filter(|c| c.rss > 0).map(|c| format!("{} MiB", c.rss >> 20))),
            cell.remark(),
        ]);
    }
    for column in 2..12 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn of_figures(report: &Report) -> Table {
    let mut table = new(&["#", "figure", "target", "measured", "verdict"]);
    for (row, what) in (1u8..).zip(ROWS) {
        let mine: Vec<_> = report.figures.iter().filter(|f| f.row == row).collect();
        if mine.is_empty() {
            table.add_row([row.to_string(), what.to_owned(), String::new(), "not measured in this run".to_owned(), "-".to_owned()]);
        }
        for figure in mine {
            table.add_row([
                row.to_string(),
                figure.figure.clone(),
                figure.target.clone(),
                figure.measured.clone(),
                figure.verdict.word().to_owned(),
            ]);
        }
    }
    for figure in report.figures.iter().filter(|f| f.row == 0) {
        let verdict = if figure.verdict == Verdict::Info { "-" } else { figure.verdict.word() };
        table.add_row(["", &figure.figure, &figure.target, &figure.measured, verdict]);
    }
    table
}
