//! What moved between two runs.

use super::{Report, table};
use crate::cell::Cell;
use crate::statistics::Estimate;

/// Counts that differ by less say nothing: the daemon's own upkeep is in them.
const COUNT_MOVED: f64 = 0.05;

fn same<'a>(cell: &Cell, of: &'a Report) -> Option<&'a Cell> {
    of.cells.iter().find(|c| c.suite == cell.suite && c.step == cell.step && c.target == cell.target && c.mode == cell.mode)
}

/// Whether two intervals have nothing in common, and which way it went.
fn moved(a: Estimate, b: Estimate) -> Option<&'static str> {
    if b.high < a.low {
        Some("faster")
    } else if b.low > a.high {
        Some("slower")
    } else {
        None
    }
}

/// A table of what moved from `a` to `b`: ratios whose intervals do not meet, requests that differ, verdicts that changed.
pub fn compare(a: &Report, b: &Report) -> String {
    let mut table = table::new(&["what", "before", "after", ""]);
    let mut row = |what: String, before: String, after: String, how: &str| {
        table.add_row([what, before, after, how.to_owned()]);
    };
    let (mut alike, mut lost) = (0, 0);
    for before in &a.cells {
        let Some(after) = same(before, b) else {
            lost += 1;
            continue;
        };
        let name = format!("{} {} {} {}", before.suite, before.step.id(), before.target, before.mode.name());
        let mut any = false;
        if let (Some(x), Some(y)) = (before.ratio(), after.ratio())
            && let Some(how) = moved(x, y)
        {
            any = true;
            row(format!("{name}: R"), x.to_string(), y.to_string(), how);
        }
        if before.size == after.size
            && let (Some(x), Some(y)) = (requests(before), requests(after))
            && (x as f64 - y as f64).abs() > COUNT_MOVED * x.max(y) as f64
        {
            any = true;
            row(format!("{name}: requests"), x.to_string(), y.to_string(), if y < x { "fewer" } else { "more" });
        }
        if before.outcome != after.outcome {
            any = true;
            row(name, or_fine(before), or_fine(after), "");
        }
        alike += usize::from(!any);
    }
    for before in &a.figures {
        let after = b.figures.iter().find(|f| f.figure == before.figure && f.row == before.row);
        if let Some(after) = after.filter(|f| f.verdict != before.verdict) {
            let how = format!("{} -> {}", before.verdict.word(), after.verdict.word());
            row(before.figure.clone(), before.measured.clone(), after.measured.clone(), &how);
        }
    }
    let head = format!("before: {} ({})\nafter:  {} ({})\n", a.machine.line(), a.command, b.machine.line(), b.command);
    format!("{head}{table}\n{alike} cells did not move, {lost} are in the first run only\n")
}

fn requests(cell: &Cell) -> Option<u64> {
    cell.typical().and_then(|l| l.counts.requests())
}

fn or_fine(cell: &Cell) -> String {
    let remark = cell.remark();
    if remark.is_empty() { "measured".to_owned() } else { remark }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::examples::cell;
    use crate::process::Mode;
    use crate::work::Step;

    #[test]
    fn only_what_moved_is_shown() {
        let run = |seconds: f64, creates: u64| {
            let cells = vec![
                cell("ours", Step::Create, Mode::Pinned, &[seconds; 7], &[("create", creates)]),
                cell("ours", Step::Walk, Mode::Pinned, &[1.0; 7], &[]),
            ];
            Report { cells, ..Report::default() }
        };
        let text = compare(&run(2.0, 100), &run(1.0, 50));
        assert!(text.contains("create ours pinned: R") && text.contains("faster") && text.contains("fewer"), "{text}");
        assert!(text.contains("1 cells did not move") && !text.contains("walk"), "{text}");
        assert!(compare(&run(2.0, 100), &run(2.0, 100)).contains("2 cells did not move"));
    }
}
