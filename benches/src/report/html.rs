//! One HTML file that needs nothing else: no script, no font, no network.

use std::fmt::Write;

use super::chart::{COLOURS, Dot, Line, escape, ratios};
use super::{Report, seconds};
use crate::cell::{Cell, Outcome};
use crate::figure::{Figure, Verdict};
use crate::goals::ROWS;
use crate::statistics::Estimate;
use crate::work::Step;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --band: #f6f8fa; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #30363d; --band: #161b22; --paper: #0d1117; } }
* { box-sizing: border-box; }
body { font: 14px/1.5 system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 1080px; padding: 28px 24px 60px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 34px 0 8px; border-bottom: 1px solid var(--line); padding-bottom: 6px; }
p { margin: 4px 0; color: var(--soft); } table { border-collapse: collapse; width: 100%; font-size: 12.5px; margin-top: 8px; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line); padding: 4px 8px; }
td { border-bottom: 1px solid var(--line); padding: 4px 8px; vertical-align: top; } td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.row td { background: var(--band); font-weight: 600; } .chips { display: flex; gap: 10px; margin: 14px 0 0; flex-wrap: wrap; }
.chip { border: 1px solid var(--line); border-radius: 8px; padding: 8px 14px; } .chip b { font-size: 20px; display: block; line-height: 1.2; }
.v { border-radius: 10px; padding: 1px 8px; font-size: 11.5px; white-space: nowrap; }
.met { background: #2da44e26; color: #2da44e; } .missed { background: #f8514926; color: #f85149; } .undecided { background: #d2992226; color: #bf8700; }
.void, .info { background: #8b949e26; color: var(--soft); } .key { display: flex; gap: 16px; flex-wrap: wrap; margin: 6px 0 2px; font-size: 12.5px; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 6px; } svg { width: 100%; height: auto; display: block; }
svg .grid { stroke: var(--line); } svg .one { stroke: var(--ink); stroke-width: 1.4; } svg .tick { fill: var(--soft); }
svg .label { fill: var(--ink); } svg .band { fill: var(--band); } details { margin-top: 10px; } summary { cursor: pointer; color: var(--soft); }
";

/// The page.
pub fn html(report: &Report) -> String {
    let mut out = String::from("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(out, "<meta name=\"viewport\" content=\"width=device-width\"><title>hiloop: {}</title>", escape(&report.command));
    let _ = write!(out, "<style>{STYLE}</style></head><body><h1>hiloop benchmark: {}</h1>", escape(&report.command));
    let _ = write!(out, "<p>{}</p>", escape(&report.machine.line()));
    let budget: Vec<String> = report.budget.iter().map(|(name, s)| format!("{name} {}", seconds(*s))).collect();
    let _ = write!(out, "<p>{} in all: {}</p>", seconds(report.seconds), escape(&budget.join(", ")));
    if !report.versions.is_empty() {
        let versions: Vec<String> = report.versions.iter().map(|(name, v)| format!("{name}: {v}")).collect();
        let _ = write!(out, "<p>{}</p>", escape(&versions.join("; ")));
    }
    out.push_str("<div class=\"chips\">");
    for verdict in [Verdict::Met, Verdict::Missed, Verdict::Undecided, Verdict::Void] {
        let n = report.figures.iter().filter(|f| f.verdict == verdict).count();
        let _ = write!(out, "<div class=\"chip\"><b>{n}</b>{}</div>", chip(verdict));
    }
    out.push_str("</div>");
    let mut suites: Vec<&str> = Vec::new();
    for cell in &report.cells {
        if !suites.contains(&cell.suite.as_str()) {
            suites.push(&cell.suite);
        }
    }
    for suite in suites {
        suite_section(&mut out, suite, &report.cells.iter().filter(|c| c.suite == suite).collect::<Vec<_>>());
    }
    figures_section(&mut out, &report.figures);
    if !report.notes.is_empty() || !report.failed.is_empty() {
        out.push_str("<h2>Notes</h2>");
        report.failed.iter().chain(&report.notes).for_each(|note| {
            let _ = write!(out, "<p>{}</p>", escape(note));
        });
    }
    out.push_str(HOW);
    out.push_str("</body></html>\n");
    out
}

const HOW: &str = "<h2>How to read this</h2><p>R is time over that of the disk's own file system, F over a null FUSE file system with the \
same flags; both are taken within a round and given as median [5..95 % of a bootstrap]. The disk runs first and last in each round; where \
its two runs differ by more than 0.8 to 1.25 the step is void (hollow dots). A target is met or missed only where the whole interval lies \
on one side. In means a ratio below 0.7 counts as 0.7.</p>";

fn chip(verdict: Verdict) -> String {
    let class = match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "missed",
        Verdict::Undecided => "undecided",
        Verdict::Void => "void",
        Verdict::Info => "info",
    };
    let word = if verdict == Verdict::Info { "figure" } else { class };
    format!("<span class=\"v {class}\">{word}</span>")
}

fn figures_section(out: &mut String, figures: &[Figure]) {
    out.push_str("<h2>Targets</h2><table><tr><th>figure</th><th>target</th><th>measured</th><th></th></tr>");
    let line = |out: &mut String, f: &Figure| {
        let cells = [&f.figure, &f.target, &f.measured].map(|text| format!("<td>{}</td>", escape(text))).concat();
        let _ = write!(out, "<tr>{cells}<td>{}</td></tr>", chip(f.verdict));
    };
    for (row, what) in (1u8..).zip(ROWS) {
        let mine: Vec<&Figure> = figures.iter().filter(|f| f.row == row).collect();
        let missing = if mine.is_empty() { "not measured in this run" } else { "" };
        let _ = write!(out, "<tr class=\"row\"><td colspan=\"2\">{row}. {}</td><td colspan=\"2\">{missing}</td></tr>", escape(what));
        mine.into_iter().for_each(|f| line(out, f));
    }
    if figures.iter().any(|f| f.row == 0) {
        out.push_str("<tr class=\"row\"><td colspan=\"4\">further figures</td></tr>");
        figures.iter().filter(|f| f.row == 0).for_each(|f| line(out, f));
    }
    out.push_str("</table>");
}

fn suite_section(out: &mut String, suite: &str, cells: &[&Cell]) {
    let Some(first) = cells.first() else { return };
    let mut targets: Vec<&str> = Vec::new();
    for cell in cells {
        if !targets.contains(&cell.target.as_str()) {
            targets.push(&cell.target);
        }
    }
    let s = &first.size;
    let _ = write!(
        out,
        "<h2>{}</h2><p>{}: {} files, {} MiB, {} names, {} rounds. ",
        escape(suite),
        first.mode.name(),
        s.files,
        s.big_mib,
        s.names,
        first.legs.len()
    );
    out.push_str("Time over that of ext4 in the same round; the line is the 90 % interval.</p>");
    out.push_str("<div class=\"key\">");
    let others: Vec<&str> = targets.iter().copied().filter(|t| *t != "ext4").collect();
    for (n, target) in others.iter().enumerate() {
        let _ = write!(out, "<span><i style=\"background:{}\"></i>{}</span>", COLOURS[n % COLOURS.len()], escape(target));
    }
    out.push_str("</div>");
    let lines: Vec<Line> = Step::ALL.iter().filter_map(|step| chart_line(*step, &others, cells)).collect();
    out.push_str(&ratios(&lines, others.len()));
    details(out, cells);
}

fn chart_line(step: Step, others: &[&str], cells: &[&Cell]) -> Option<Line> {
    let disk = cells.iter().find(|c| c.step == step && c.target == "ext4").and_then(|c| c.time());
    let note = disk.map(|t| seconds(t.median)).unwrap_or_default();
    let mut line = Line { label: step.name().to_owned(), note, dots: Vec::new(), remarks: Vec::new() };
    let mut any = false;
    for (series, target) in others.iter().enumerate() {
        let Some(cell) = cells.iter().find(|c| c.step == step && c.target == *target) else { continue };
        any = true;
        match (&cell.outcome, Estimate::of(&cell.to_disk, 1)) {
            (Outcome::Measured | Outcome::Void(_), Some(at)) => {
                let time = cell.time().map(|t| seconds(t.median)).unwrap_or_default();
                let title = format!("{target}, {}: {at} ({time}) {}", step.name(), cell.remark());
                line.dots.push(Dot { series, at, solid: cell.usable(), title });
            }
            _ => line.remarks.push((series, format!("{target} {}", short(&cell.remark())))),
        }
    }
    any.then_some(line)
}

fn short(text: &str) -> String {
    let mut cut: String = text.chars().take(100).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

fn details(out: &mut String, cells: &[&Cell]) {
    out.push_str("<details><summary>Times and counts</summary><table><tr><th>step</th><th>target</th>");
    for head in ["time", "R", "F", "drain", "FUSE requests (each)", "puts", "MiB up", "flushes", "CPU daemon", "client", "RSS"] {
        let _ = write!(out, "<th class=\"n\">{head}</th>");
    }
    out.push_str("<th></th></tr>");
    for cell in cells {
        let counts = cell.typical().map(|l| &l.counts);
        let fuse = counts.and_then(|c| c.fuse.as_ref());
        let opcodes = fuse.map(|f| f.iter().map(|(op, n)| format!("{n} {op}")).collect::<Vec<_>>().join(", ")).unwrap_or_default();
        let fields = [
            cell.time().map(|t| seconds(t.median)),
            cell.ratio().filter(|_| cell.target != "ext4").map(|r| r.to_string()),
            cell.floor_ratio().filter(|_| cell.target.starts_with("ours")).map(|r| r.to_string()),
            cell.drain().map(|d| seconds(d.median)),
            cell.requests().map(|(n, each)| format!("<span title=\"{}\">{n} ({each:.1})</span>", escape(&opcodes))),
            counts.and_then(|c| c.store).map(|s| s.puts.to_string()),
            counts.and_then(|c| c.store).map(|s| format!("{:.1}", s.up as f64 / f64::from(1 << 20))),
            counts.and_then(|c| c.flushes).map(|n| n.to_string()),
            counts.filter(|c| c.rss > 0).map(|c| seconds(c.daemon_cpu)),
            counts.map(|c| seconds(c.client_cpu)),
            counts.filter(|c| c.rss > 0).map(|c| format!("{} MiB", c.rss >> 20)),
        ];
        let _ = write!(out, "<tr><td>{}</td><td>{}</td>", escape(cell.step.name()), escape(&cell.target));
        for field in fields {
            let _ = write!(out, "<td class=\"n\">{}</td>", field.unwrap_or_default());
        }
        let _ = write!(out, "<td>{}</td></tr>", escape(&cell.remark()));
    }
    out.push_str("</table></details>");
}
