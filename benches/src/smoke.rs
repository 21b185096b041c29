//! What must hold on any machine, however busy: counts, never times.

use crate::cell::{Cell, Outcome};
use crate::report::Report;
use crate::work::Step;

/// Requests that the kernel sends when it likes, so that those of one step count in the next; each follows one that is compared.
const LATE: [&str; 3] = ["forget", "release", "releasedir"];
/// Requests of one kind beyond the floor's that a step of ours may cost: a cache of the kernel that lost an entry meanwhile.
const FEW: u64 = 4;

/// What is wrong; empty where all is well.
pub fn wrong(report: &Report) -> Vec<String> {
    let mut wrong: Vec<String> = Vec::new();
    let cell = |target: &str, step: Step| report.cells.iter().find(|c| c.target == target && c.step == step);
    for cell in report.cells.iter().filter(|c| c.outcome != Outcome::Measured) {
        wrong.push(format!("{} on {}: {}", cell.step.name(), cell.target, cell.remark()));
    }
    for step in Step::ALL {
        let (Some(ours), Some(floor)) = (cell("ours", *step), cell("floor", *step)) else { continue };
        wrong.extend(requests(ours, floor));
        wrong.extend(puts(ours));
    }
    if report.cells.iter().filter(|c| c.target == "ours").count() < Step::SIXTEEN.len() {
        wrong.push("fewer than sixteen steps ran on ours".to_owned());
    }
    wrong
}

/// Ours must not make the kernel ask more than a file system that does nothing but answer.
fn requests(ours: &Cell, floor: &Cell) -> Option<String> {
    let of = |c: &Cell| c.typical().and_then(|l| l.counts.fuse.clone());
    let (Some(by), Some(floor)) = (of(ours), of(floor)) else {
        return Some(format!("{}: requests were not counted", ours.step.name()));
    };
    // What the floor leaves to the kernel costs ours one request instead of hundreds.
    // git writes what comes through a pipe as it comes, and reads it back: how often is chance.
    let chance = |op: &str| LATE.contains(&op) || ours.step == Step::GitClone && matches!(op, "read" | "write");
    let more = |(op, n): &(&String, &u64)| !chance(op) && **n > floor.get(*op).unwrap_or(&0) + FEW;
    if let Some((op, n)) = by.iter().find(more) {
        let least = floor.get(op).unwrap_or(&0);
        return Some(format!("{}: {n} FUSE requests {op}, {least} on the floor: {by:?} against {floor:?}", ours.step.name()));
    }
    let mine: u64 = by.iter().filter(|(op, _)| !LATE.contains(&op.as_str())).map(|(_, n)| n).sum();
    let silent = matches!(ours.step, Step::ReadBig | Step::RandomRead | Step::MapBig);
    // The open itself.
    if silent && mine > 1 {
        return Some(format!("{}: {mine} FUSE requests for pages that are cached", ours.step.name()));
    }
    None
}

/// A publish may put a pack of data, one of nodes and a head; there is one each second at most, and one at the end. Large data are more packs.
fn puts(ours: &Cell) -> Option<String> {
    let leg = ours.legs.iter().max_by_key(|l| l.counts.store.map(|s| s.puts))?;
    let store = leg.counts.store?;
    let seconds = leg.seconds + leg.drain.unwrap_or(0.0);
    let most = 3 * (1 + seconds.ceil() as u64) + (store.up >> 20);
    (store.puts > most).then(|| format!("{}: {} puts for {} bytes", ours.step.name(), store.puts, store.up))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::examples::cell;
    use crate::process::Mode;
    use crate::store::StoreCounts;

    #[test]
    fn more_requests_than_the_floor_or_too_many_puts_are_wrong() {
        let requests = [("create", 10), ("lookup", 10)];
        let mut report = Report::default();
        for step in Step::SIXTEEN {
            let quiet = matches!(step, Step::ReadBig | Step::RandomRead);
            let requests: &[(&str, u64)] = if quiet { &[("open", 1)] } else { &requests };
            report.cells.extend(["floor", "ours"].map(|t| cell(t, step, Mode::Free, &[0.1], requests)));
        }
        assert_eq!(wrong(&report), Vec::<String>::new());
        let ours = report.cells.iter_mut().find(|c| c.target == "ours" && c.step == Step::Create).unwrap();
        ours.legs[0].counts.fuse.as_mut().unwrap().insert("getattr".to_owned(), 5);
        assert!(wrong(&report)[0].contains("5 FUSE requests getattr, 0 on the floor"), "{:?}", wrong(&report));
        report.cells.retain(|c| c.step != Step::Create);
        assert!(wrong(&report)[0].contains("fewer than sixteen"));
        let ours = report.cells.iter_mut().find(|c| c.target == "ours").unwrap();
        ours.legs[0].counts.store = Some(StoreCounts { puts: 7, ..StoreCounts::default() });
        assert!(wrong(&report)[0].contains("7 puts"));
        report.cells[0].outcome = Outcome::TimedOut(3);
        assert!(wrong(&report)[0].contains("timed out"));
    }
}
