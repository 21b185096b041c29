//! The table of targets: what each row promises, and the figures that suites give for it. Scenarios name their row themselves.

use serde_json::json;

use crate::cell::{Cell, Outcome, mean};
use crate::figure::{Figure, Verdict};
use crate::process::Mode;
use crate::statistics::Estimate;
use crate::work::Step;

/// The rows, by number less one.
pub const ROWS: [&str; 18] = [
    "cached stat, walk, git status, open-read-close",
    "copy tree, untar, git init + add, git clone",
    "create, rename, unlink, rm -r",
    "random 4 KiB writes, appends",
    "sequential write + fsync, page-cached and hydrated read",
    "fsync'd append, SQLite commits, 16 fsync writers",
    "npm ci, cargo build",
    "mean of the sixteen steps, peers",
    "cold sequential read",
    "cold open",
    "first git status and build, with a profile",
    "fork",
    "snapshot",
    "replication",
    "backlog bound",
    "memory",
    "store cost",
    "page cache",
];

/// What a step may cost.
struct Goal {
    row: u8,
    steps: &'static [Step],
    mode: Mode,
    /// R at most.
    disk: Option<f64>,
    /// F at most.
    floor: Option<f64>,
}

const GOALS: &[Goal] = {
    use Mode::{Free, Pinned};
    use Step::*;
    &[
        Goal { row: 1, steps: &[WalkAgain, GitStatusAgain, OpenClose], mode: Pinned, disk: Some(1.5), floor: None },
        Goal { row: 2, steps: &[Copy, Untar, GitAdd, GitClone], mode: Pinned, disk: Some(1.3), floor: Some(1.6) },
        Goal { row: 2, steps: &[Copy, Untar, GitAdd, GitClone], mode: Free, disk: Some(2.0), floor: Some(1.6) },
        Goal { row: 3, steps: &[Create], mode: Pinned, disk: Some(1.5), floor: Some(1.35) },
        Goal { row: 3, steps: &[Rename], mode: Pinned, disk: Some(2.5), floor: Some(1.35) },
        Goal { row: 3, steps: &[Unlink], mode: Pinned, disk: Some(4.0), floor: Some(1.35) },
        Goal { row: 3, steps: &[Remove], mode: Pinned, disk: None, floor: Some(1.35) },
        Goal { row: 4, steps: &[RandomWrite, Append], mode: Pinned, disk: Some(2.0), floor: None },
        Goal { row: 4, steps: &[RandomWrite, Append], mode: Free, disk: Some(2.0), floor: None },
        Goal { row: 6, steps: &[AppendSync, Sqlite, Sync16], mode: Pinned, disk: Some(1.5), floor: None },
        Goal { row: 6, steps: &[AppendSync, Sqlite, Sync16], mode: Free, disk: Some(1.5), floor: None },
        Goal { row: 7, steps: &[NpmCi], mode: Free, disk: Some(1.35), floor: None },
        Goal { row: 7, steps: &[CargoBuild], mode: Free, disk: Some(1.1), floor: None },
    ]
};

/// Steps that cost no FUSE request once everything is cached, and how many are allowed.
const SILENT: [(Step, u64); 3] = [(Step::WalkAgain, 0), (Step::GitStatusAgain, 0), (Step::OpenClose, 0)];
/// Steps of the suite of that name and what R may be.
const STREAM: [(Step, f64); 3] = [(Step::WriteBig, 1.3), (Step::ReadBig, 1.3), (Step::ReadDropped, 1.2)];
/// Names of several times the price in free mode.
const FREE_OVER_PINNED: f64 = 3.0;
/// A peer's mean over ours.
const PEER: f64 = 5.0;
/// Ours over bindfs.
const BINDFS: f64 = 2.0;
/// Peers whose default holds data as safe as our `replicated`; all others are compared with `local`.
const DURABLE: [&str; 1] = ["juicefs"];

fn find<'a>(cells: &'a [Cell], target: &str, step: Step, mode: Mode) -> Option<&'a Cell> {
    // A suite of its own is for its own row.
    let fits = |c: &&Cell| c.target == target && c.step == step && c.mode == mode && c.suite != "stream" && c.suite != "peers";
    cells.iter().filter(fits).max_by_key(|c| c.legs.len())
}

fn shown(e: Option<Estimate>, cell: &Cell) -> String {
    e.map_or_else(|| cell.remark(), |e| e.to_string())
}

fn bounded(row: u8, name: String, cell: &Cell, ratio: Option<Estimate>, most: f64, letter: char) -> Figure {
    let verdict = match (&ratio, &cell.outcome) {
        (Some(ratio), _) => ratio.at_most(most),
        (None, Outcome::Failed(_) | Outcome::TimedOut(_)) => Verdict::Missed,
        (None, _) => Verdict::Void,
    };
    Figure::new(name, format!("{letter} <= {most}"), shown(ratio, cell), verdict, json!({ "ratio": ratio })).row(row)
}

/// All figures that these cells give.
pub fn figures(cells: &[Cell]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (step, most) in SILENT {
        let Some(cell) = find(cells, "ours", step, Mode::Pinned).or_else(|| find(cells, "ours", step, Mode::Free)) else { continue };
        let requests = cell.legs.iter().filter_map(|l| l.counts.requests()).max();
        let verdict = requests.map_or(Verdict::Void, |n| Verdict::of(n <= most));
        let measured = requests.map_or_else(|| cell.remark(), |n| n.to_string());
        let by_opcode = cell.typical().and_then(|l| l.counts.fuse.clone());
        let name = format!("{}: FUSE requests", step.name());
        figures.push(Figure::new(name, format!("<= {most}"), measured, verdict, json!({ "requests": by_opcode })).row(1));
    }
    for goal in GOALS {
        for step in goal.steps {
            let Some(cell) = find(cells, "ours", *step, goal.mode) else { continue };
            let name = |over: &str| format!("{}, {}, over {over}", step.name(), goal.mode.name());
            if let Some(most) = goal.disk {
                figures.push(bounded(goal.row, name("ext4"), cell, cell.ratio(), most, 'R'));
            }
            if let (Some(most), false) = (goal.floor, cell.to_floor.is_empty()) {
                figures.push(bounded(goal.row, name("the floor"), cell, cell.floor_ratio(), most, 'F'));
            }
        }
    }
    figures.extend([Step::Create, Step::Rename, Step::Unlink, Step::Remove].iter().filter_map(|step| free_over_pinned(cells, *step)));
    for (step, most) in STREAM {
        if let Some(cell) = cells.iter().find(|c| c.suite == "stream" && c.target == "ours" && c.step == step) {
            let name = format!("{}, {} MiB", step.name(), cell.size.big_mib);
            figures.push(bounded(5, name, cell, cell.ratio(), most, 'R'));
        }
    }
    for (mode, most) in [(Mode::Pinned, 1.4), (Mode::Free, 1.8)] {
        let sixteen: Vec<&Cell> = Step::SIXTEEN.iter().filter_map(|s| find(cells, "ours", *s, mode)).collect();
        if sixteen.len() == Step::SIXTEEN.len() {
            figures.push(mean_figure(&sixteen, mode, most));
        }
    }
    figures.extend(over_bindfs(cells));
    figures.extend(peers(cells));
    figures
}

/// The first goal of all: a file system of its own costs at most twice one that only passes requests on.
fn over_bindfs(cells: &[Cell]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for theirs in cells.iter().filter(|c| c.target == "bindfs" && c.suite != "peers") {
        let Some(ours) = cells.iter().find(|c| c.suite == theirs.suite && c.step == theirs.step && c.target == "ours") else { continue };
        let ratios: Vec<f64> = pairs(ours, theirs);
        let ratio = Estimate::of(&ratios, 1).filter(|_| ours.usable() && theirs.usable());
        let verdict = ratio.map_or(Verdict::Void, |r| r.at_most(BINDFS));
        let measured = ratio.map_or_else(|| format!("{}{}", ours.remark(), theirs.remark()), |r| r.to_string());
        let name = format!("{} over bindfs", ours.step.name());
        figures.push(Figure::new(name, format!("<= {BINDFS}"), measured, verdict, json!({ "ratio": ratio })));
    }
    figures
}

/// Time of one over that of the other, round by round.
fn pairs(over: &Cell, under: &Cell) -> Vec<f64> {
    let same = |round: u32| under.legs.iter().find(|l| l.round == round);
    over.legs.iter().filter_map(|l| same(l.round).map(|u| l.seconds / u.seconds.max(1e-9))).collect()
}

fn mean_figure(sixteen: &[&Cell], mode: Mode, most: f64) -> Figure {
    let all = mean(sixteen);
    let usable: Vec<&Cell> = sixteen.iter().copied().filter(|c| c.usable()).collect();
    let measured = match all {
        Some(mean) => mean.to_string(),
        // Said, and not judged: which steps are left out is chance.
        None => format!("void; {} of 16 steps usable, their mean {}", usable.len(), mean(&usable).unwrap_or_default()),
    };
    let verdict = all.map_or(Verdict::Void, |m| m.at_most(most));
    let name = format!("geometric mean of the sixteen steps, {}", mode.name());
    Figure::new(name, format!("R <= {most}"), measured, verdict, json!({ "mean": all })).row(8)
}

fn free_over_pinned(cells: &[Cell], step: Step) -> Option<Figure> {
    let time = |mode| find(cells, "ours", step, mode).filter(|c| c.usable()).and_then(|c| c.time());
    let (free, pinned) = (time(Mode::Free)?, time(Mode::Pinned)?);
    // Two suites one after the other are no pairs: the interval is that of the extremes.
    let ratio = Estimate {
        median: free.median / pinned.median,
        low: free.low / pinned.high,
        high: free.high / pinned.low,
        count: free.count.min(pinned.count),
    };
    let name = format!("{}, free over pinned", step.name());
    Some(
        Figure::new(name, format!("<= {FREE_OVER_PINNED}"), ratio.to_string(), ratio.at_most(FREE_OVER_PINNED), json!({ "ratio": ratio }))
            .row(3),
    )
}

fn peers(cells: &[Cell]) -> Vec<Figure> {
    let of: Vec<&Cell> = cells.iter().filter(|c| c.suite == "peers").collect();
    let mut names: Vec<&str> = of.iter().map(|c| c.target.as_str()).filter(|t| *t != "ext4" && !t.starts_with("ours")).collect();
    names.sort_unstable();
    names.dedup();
    let mut figures = Vec::new();
    for peer in names {
        let against = if DURABLE.contains(&peer) { "ours-replicated" } else { "ours" };
        let (mut ratios, mut lost, mut apart) = (Vec::new(), Vec::new(), Vec::new());
        for step in Step::SIXTEEN {
            let cell = |target: &str| of.iter().find(|c| c.step == step && c.target == target);
            let (Some(theirs), Some(ours)) = (cell(peer), cell(against)) else { continue };
            if let Outcome::TimedOut(_) | Outcome::Failed(_) = theirs.outcome {
                apart.push(format!("{} {}", step.name(), theirs.remark()));
                continue;
            }
            let paired = pairs(theirs, ours);
            if !theirs.usable() || !ours.usable() || paired.is_empty() {
                apart.push(format!("{} void", step.name()));
                continue;
            }
            if Estimate::of(&paired, 1).is_some_and(|e| e.high < 1.0) {
                lost.push(step.name());
            }
            ratios.push(paired);
        }
        let mean = Estimate::mean_of(&ratios.iter().map(Vec::as_slice).collect::<Vec<_>>(), 1);
        let values = json!({ "mean": mean, "lost": lost, "apart": apart, "steps": ratios.len() });
        let measured = match &mean {
            Some(mean) if apart.is_empty() => format!("{mean}"),
            Some(mean) => format!("{mean} over {} steps; {}", ratios.len(), apart.join("; ")),
            None => "no step of it".to_owned(),
        };
        let verdict = mean.map_or(Verdict::Void, |m| m.at_least(PEER));
        figures.push(Figure::new(format!("{peer} over {against}, mean"), format!(">= {PEER}"), measured, verdict, values).row(8));
        if DURABLE.contains(&peer) {
            let measured = if lost.is_empty() { "none".to_owned() } else { lost.join(", ") };
            figures.push(
                Figure::new(format!("steps lost to {peer}"), "none", measured, Verdict::of(lost.is_empty()), json!({ "lost": lost }))
                    .row(8),
            );
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::examples::cell;

    fn verdict(cells: &[Cell], figure: &str) -> Verdict {
        let figures = figures(cells);
        let found = figures.iter().find(|f| f.figure == figure);
        found.unwrap_or_else(|| panic!("no figure {figure}: {figures:?}")).verdict
    }

    #[test]
    fn a_target_is_met_missed_or_neither_and_a_failure_is_a_miss() {
        let name = "create files, pinned, over ext4";
        let of = |seconds: &[f64]| verdict(&[cell("ours", Step::Create, Mode::Pinned, seconds, &[])], name);
        assert_eq!(of(&[1.4; 7]), Verdict::Met);
        assert_eq!(of(&[1.6; 7]), Verdict::Missed);
        assert_eq!(of(&[1.0, 1.1, 1.2, 1.5, 1.9, 2.0, 2.1]), Verdict::Undecided);
        let mut failed = cell("ours", Step::Create, Mode::Pinned, &[1.0; 7], &[]);
        failed.outcome = Outcome::Failed("no".to_owned());
        assert_eq!(verdict(&[failed.clone()], name), Verdict::Missed);
        failed.outcome = Outcome::Void("no flushes".to_owned());
        assert_eq!(verdict(&[failed], name), Verdict::Void);
    }

    #[test]
    fn one_request_for_what_is_cached_is_a_miss() {
        let name = "walk and stat again: FUSE requests";
        let of = |n| verdict(&[cell("ours", Step::WalkAgain, Mode::Free, &[1.0; 7], &[("getattr", n)])], name);
        assert_eq!((of(0), of(1)), (Verdict::Met, Verdict::Missed));
    }

    #[test]
    fn a_peer_is_compared_with_what_holds_data_as_safely() {
        let of = |target: &'static str, seconds: f64| {
            Step::SIXTEEN.iter().map(move |s| Cell { suite: "peers".to_owned(), ..cell(target, *s, Mode::Free, &[seconds; 3], &[]) })
        };
        let mut cells: Vec<Cell> =
            of("ours", 1.0).chain(of("ours-replicated", 2.0)).chain(of("juicefs", 9.0)).chain(of("rclone", 9.0)).collect();
        assert_eq!(verdict(&cells, "rclone over ours, mean"), Verdict::Met);
        assert_eq!(verdict(&cells, "juicefs over ours-replicated, mean"), Verdict::Missed);
        assert_eq!(verdict(&cells, "steps lost to juicefs"), Verdict::Met);
        let lost = cells.iter_mut().find(|c| c.target == "juicefs" && c.step == Step::Rename).unwrap();
        lost.legs.iter_mut().for_each(|l| l.seconds = 1.0);
        assert_eq!(verdict(&cells, "steps lost to juicefs"), Verdict::Missed);
    }
}
