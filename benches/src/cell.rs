//! What was measured: one cell for each step on each target.

use serde::{Deserialize, Serialize};

use crate::process::Mode;
use crate::statistics::{Estimate, STEADY};
use crate::store::StoreCounts;
use crate::target::Requests;
use crate::work::{Size, Step};

/// What a leg cost beside time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// FUSE requests by opcode, where the target counts them.
    pub fuse: Option<Requests>,
    /// What was asked of the store until everything was published, where that is counted.
    pub store: Option<StoreCounts>,
    /// Flushes of the disk, by whomever, until the step ended; none where the disk has no volatile cache.
    pub flushes: Option<u64>,
    /// Seconds of CPU of the target's processes.
    pub daemon_cpu: f64,
    /// Part of a core that the store's server and shaper used until everything was published.
    pub store_load: f64,
    /// Seconds of CPU of the step itself.
    pub client_cpu: f64,
    /// Bytes resident in the target's processes afterwards.
    pub rss: u64,
}

impl Counts {
    /// All FUSE requests.
    pub fn requests(&self) -> Option<u64> {
        self.fuse.as_ref().map(|f| f.values().sum())
    }
}

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Leg {
    /// Its round.
    pub round: u32,
    /// How long it took.
    pub seconds: f64,
    /// How long the target then worked on behind the user's back.
    pub drain: Option<f64>,
    /// What else it cost.
    pub counts: Counts,
}

/// How a cell ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "why")]
pub enum Outcome {
    /// Every leg ran and its content was right.
    #[default]
    Measured,
    /// It says nothing.
    Void(String),
    /// A leg was not done within this many seconds.
    TimedOut(u64),
    /// It failed, or left wrong content.
    Failed(String),
}

/// A step on a target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Row of the matrix.
    pub suite: String,
    /// What was done.
    pub step: Step,
    /// On what.
    pub target: String,
    /// Where processes ran.
    pub mode: Mode,
    /// How much.
    pub size: Size,
    /// Measurements.
    pub legs: Vec<Leg>,
    /// Time over that of the disk in the same round.
    pub to_disk: Vec<f64>,
    /// Time over that of the floor in the same round.
    pub to_floor: Vec<f64>,
    /// The disk's second run over its first, median over the rounds.
    pub steady: f64,
    /// How it ended.
    pub outcome: Outcome,
}

/// One seed for all intervals: the same samples give the same report.
const SEED: u64 = 0x68_69_6c_6f_6f_70;

impl Cell {
    /// Seconds.
    pub fn time(&self) -> Option<Estimate> {
        Estimate::of(&self.legs.iter().map(|l| l.seconds).collect::<Vec<_>>(), SEED)
    }
    /// Seconds of draining.
    pub fn drain(&self) -> Option<Estimate> {
        Estimate::of(&self.legs.iter().filter_map(|l| l.drain).collect::<Vec<_>>(), SEED)
    }
    /// R.
    pub fn ratio(&self) -> Option<Estimate> {
        self.usable().then(|| Estimate::of(&self.to_disk, SEED)).flatten()
    }
    /// F.
    pub fn floor_ratio(&self) -> Option<Estimate> {
        self.usable().then(|| Estimate::of(&self.to_floor, SEED)).flatten()
    }
    /// Whether a figure may be made of it.
    pub fn usable(&self) -> bool {
        self.outcome == Outcome::Measured && STEADY.contains(&self.steady)
    }
    /// The leg in the middle, for counts.
    pub fn typical(&self) -> Option<&Leg> {
        let mut legs: Vec<&Leg> = self.legs.iter().collect();
        legs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        legs.get(legs.len().saturating_sub(1) / 2).copied()
    }
    /// FUSE requests of a typical leg, and how many an operation cost.
    pub fn requests(&self) -> Option<(u64, f64)> {
        let requests = self.typical()?.counts.requests()?;
        Some((requests, requests as f64 / self.step.operations(&self.size).max(1) as f64))
    }
    /// What is wrong with it, for people; empty where it is usable.
    pub fn remark(&self) -> String {
        match &self.outcome {
            Outcome::Measured if self.usable() => String::new(),
            Outcome::Measured => format!("void: A/A {:.2}", self.steady),
            Outcome::Void(why) => format!("void: {why}"),
            Outcome::TimedOut(seconds) => format!("timed out after {seconds} s"),
            Outcome::Failed(why) => format!("failed: {why}"),
        }
    }
}

/// The geometric mean of ratios to the disk over these steps of one target; none where one of them is not usable.
pub fn mean(cells: &[&Cell]) -> Option<Estimate> {
    if cells.iter().any(|c| !c.usable()) {
        return None;
    }
    Estimate::mean_of(&cells.iter().map(|c| c.to_disk.as_slice()).collect::<Vec<_>>(), SEED)
}

#[cfg(test)]
pub(crate) mod examples {
    use super::*;

    const SIZE: Size = Size { files: 10, big_mib: 1, reads: 10, writes: 10, appends: 10, commits: 10, names: 10 };

    /// A cell whose legs took these seconds while the disk took one, with these requests.
    pub(crate) fn cell(target: &str, step: Step, mode: Mode, seconds: &[f64], requests: &[(&str, u64)]) -> Cell {
        let fuse: Requests = requests.iter().map(|(op, n)| ((*op).to_owned(), *n)).collect();
        let counts = Counts { fuse: Some(fuse), ..Counts::default() };
        let legs = seconds.iter().zip(0..).map(|(s, round)| Leg { round, seconds: *s, drain: None, counts: counts.clone() }).collect();
        Cell {
            suite: "example".to_owned(),
            step,
            target: target.to_owned(),
            mode,
            size: SIZE,
            legs,
            to_disk: seconds.to_vec(),
            to_floor: seconds.to_vec(),
            steady: 1.0,
            outcome: Outcome::Measured,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::examples::cell;
    use super::*;

    #[test]
    fn an_unsteady_disk_makes_a_ratio_void_and_a_mean_too() {
        let mut c = cell("ours", Step::Copy, Mode::Pinned, &[1.2; 7], &[("lookup", 20)]);
        assert_eq!(c.ratio().unwrap().median, 1.2);
        assert_eq!(c.requests(), Some((20, 2.0)));
        assert!(mean(&[&c]).is_some());
        c.steady = 1.3;
        assert_eq!((c.ratio(), c.remark().as_str()), (None, "void: A/A 1.30"));
        assert!(mean(&[&c]).is_none());
    }
}
