//! The node's disk: journal, staging, index (`protocols.md` 2.4 - 2.7; `engine/journal`).
//!
//! A record has a page in the journal and, where the scenario says so, one in staging. A page is *cached* (a read sees it), *dirty*
//! (a flush will write it), *on disk* (a power cut leaves it). A flush that fails leaves pages clean that are not on disk, as Linux does.
//! A power cut keeps any subset of the dirty pages. The index and what is published are durable at once.

use crate::explore::{Machine, Step, Steps, Violation};
use crate::rules::{Rule, Rules};

/// What may happen in a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    staged: bool,
    writes: u8,
    failures: u8,
    kills: u8,
    power_cuts: u8,
}

/// Small records, one failing flush.
pub const FAILED_FLUSH: Config = Config { staged: false, writes: 2, failures: 1, kills: 1, power_cuts: 1 };
/// Staged records, a power cut.
pub const COMMIT: Config = Config { staged: true, writes: 2, failures: 0, kills: 1, power_cuts: 1 };
/// Staged records, and more restarts than one.
pub const INDEX: Config = Config { staged: true, writes: 3, failures: 0, kills: 1, power_cuts: 1 };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Page {
    cached: bool,
    dirty: bool,
    on_disk: bool,
}

impl Page {
    const WRITTEN: Self = Self { cached: true, dirty: true, on_disk: false };

    fn flush(&mut self, works: bool) {
        self.on_disk |= self.dirty && works;
        self.dirty = false;
    }

    fn rewrite(&mut self) {
        *self = Self { cached: true, dirty: false, on_disk: true };
    }

    /// What a power cut leaves; `lucky`: the page was on its way.
    fn cut(&mut self, lucky: bool) {
        self.on_disk |= self.dirty && lucky;
        *self = Self { cached: self.on_disk, dirty: false, on_disk: self.on_disk };
    }
}

/// One accepted change. Its identity is its place in [`State::records`]; its number may be used twice by mistake.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Record {
    seqno: u8,
    journal: Page,
    staging: Option<Page>,
    in_journal: bool,
    in_index: bool,
    /// An fsync that covers it was answered.
    promised: bool,
    published: bool,
}

impl Record {
    fn readable(&self) -> bool {
        self.staging.is_none_or(|p| p.cached)
    }
    fn durable(&self) -> bool {
        self.in_index || (self.journal.on_disk && self.staging.is_none_or(|p| p.on_disk))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Daemon {
    Up,
    /// A flush failed.
    ReadOnly,
    Down,
}

/// A group commit under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Commit {
    Idle,
    Staging { claim: u8 },
    Journal { claim: u8 },
}

/// See [the module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    records: Vec<Record>,
    daemon: Daemon,
    commit: Commit,
    next: u8,
    /// Last flushed seqno, as the stream itself says.
    flushed: u8,
    applied: u8,
    published: u8,
    writes: u8,
    failures: u8,
    kills: u8,
    power_cuts: u8,
}

impl State {
    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn last(&self) -> u8 {
        self.next - 1
    }

    fn flush_journal(&mut self, claim: u8, works: bool) {
        self.records.iter_mut().for_each(|r| r.journal.flush(works));
        self.commit = Commit::Idle;
        if works {
            self.flushed = claim;
            self.records.iter_mut().filter(|r| r.in_journal && r.seqno <= claim).for_each(|r| r.promised = true);
        } else {
            self.failures -= 1;
            self.daemon = Daemon::ReadOnly;
        }
    }

    fn recover(&mut self, rules: Rules) {
        let mut whole = true;
        let mut last = 0;
        for r in self.records.iter_mut().filter(|r| r.in_journal) {
            let checked = r.seqno > self.flushed && rules.hold(Rule::StagingChecked);
            whole &= r.journal.cached && (!checked || r.readable());
            r.in_journal = whole;
            if whole {
                last = r.seqno;
                if r.seqno > self.flushed {
                    if rules.hold(Rule::RewriteAtRecovery) {
                        r.journal.rewrite();
                        r.staging.as_mut().filter(|p| p.cached).into_iter().for_each(Page::rewrite);
                    } else {
                        r.journal.flush(true);
                        r.staging.as_mut().into_iter().for_each(|p| p.flush(true));
                    }
                }
                r.promised = true;
            }
        }
        self.flushed = self.flushed.max(last);
        self.next = 1 + if rules.hold(Rule::NumberingAbove) { last.max(self.applied).max(self.published) } else { last };
        self.daemon = Daemon::Up;
    }
}

/// The machine.
pub struct Disk {
    config: Config,
    rules: Rules,
}

impl Disk {
    /// A machine of this scenario.
    pub fn new(config: Config, rules: Rules) -> Self {
        Self { config, rules }
    }

    fn commit(&self, s: &State, go: &mut impl FnMut(&'static str, State)) {
        match s.commit {
            Commit::Idle if s.last() > s.flushed => {
                let claim = s.last();
                go("commit: claims a seqno", s.with(|n| n.commit = Commit::Staging { claim }));
            }
            Commit::Idle => {}
            Commit::Staging { claim } => {
                let flush = |works| {
                    s.with(|n| {
                        n.records.iter_mut().filter_map(|r| r.staging.as_mut()).for_each(|p| p.flush(works));
                        n.commit = Commit::Journal { claim };
                    })
                };
                go("commit: flushes staging", flush(true));
                if s.failures > 0 && self.config.staged {
                    let failed = flush(false).with(|n| {
                        n.commit = Commit::Idle;
                        n.failures -= 1;
                        n.daemon = Daemon::ReadOnly;
                    });
                    go("commit: flushing staging fails", failed);
                }
            }
            Commit::Journal { claim } => {
                let claim = if self.rules.hold(Rule::ClaimBeforeStaging) { claim } else { s.last() };
                go("commit: flushes the journal and answers", s.with(|n| n.flush_journal(claim, true)));
                if s.failures > 0 {
                    go("commit: flushing the journal fails", s.with(|n| n.flush_journal(claim, false)));
                }
            }
        }
    }
}

impl Machine for Disk {
    type State = State;

    fn start(&self) -> State {
        let c = self.config;
        State {
            records: Vec::new(),
            daemon: Daemon::Up,
            commit: Commit::Idle,
            next: 1,
            flushed: 0,
            applied: 0,
            published: 0,
            writes: c.writes,
            failures: c.failures,
            kills: c.kills,
            power_cuts: c.power_cuts,
        }
    }

    fn steps(&self, s: &State, out: &mut Steps<State>) {
        let mut go = |what, next| out.push((Step { who: "node", what }, next));
        if s.daemon == Daemon::Down {
            go("recovers the journal", s.with(|n| n.recover(self.rules)));
            return;
        }
        if s.daemon == Daemon::Up {
            if s.writes > 0 {
                let record = Record {
                    seqno: s.next,
                    journal: Page::WRITTEN,
                    staging: self.config.staged.then_some(Page::WRITTEN),
                    in_journal: true,
                    in_index: false,
                    promised: false,
                    published: false,
                };
                let write = |n: &mut State| {
                    n.records.push(record);
                    n.next += 1;
                    n.writes -= 1;
                };
                go("accepts a record", s.with(write));
            }
            self.commit(s, &mut go);
            let to = if self.rules.hold(Rule::IndexBehind) { s.flushed } else { s.last() };
            if s.applied < to {
                let apply = |n: &mut State| {
                    n.records
                        .iter_mut()
                        .filter(|r| r.in_journal && (n.applied + 1..=to).contains(&r.seqno))
                        .for_each(|r| r.in_index = true);
                    n.applied = to;
                };
                go("applies records to the index", s.with(apply));
            }
            if s.records.iter().any(|r| r.in_journal && r.seqno <= s.applied) {
                let free = |n: &mut State| n.records.iter_mut().filter(|r| r.seqno <= n.applied).for_each(|r| r.in_journal = false);
                go("checkpoint: frees the journal", s.with(free));
            }
        }
        let to = if self.rules.hold(Rule::OnlyFlushedShips) { s.flushed } else { s.last() };
        if s.published < to {
            let publish = |n: &mut State| {
                let (records, from) = (&mut n.records, n.published);
                records
                    .iter_mut()
                    .filter(|r| (r.in_journal || r.in_index) && r.seqno > from && r.seqno <= to)
                    .for_each(|r| r.published = true);
                n.published = to;
            };
            go("publishes", s.with(publish));
        }
        if s.kills > 0 {
            let kill = |n: &mut State| {
                n.kills -= 1;
                n.daemon = Daemon::Down;
                n.commit = Commit::Idle;
            };
            go("the daemon is killed", s.with(kill));
        }
        if s.power_cuts > 0 {
            let dirty = |p: &Page| p.dirty;
            let pages = s.records.iter().flat_map(|r| [Some(r.journal), r.staging]).flatten().filter(dirty).count();
            for lucky in 0..1_u32 << pages {
                let cut = |n: &mut State| {
                    n.power_cuts -= 1;
                    n.daemon = Daemon::Down;
                    n.commit = Commit::Idle;
                    let mut number = 0;
                    for page in n.records.iter_mut().flat_map(|r| std::iter::once(&mut r.journal).chain(r.staging.as_mut())) {
                        let counts = page.dirty;
                        page.cut(lucky & (1 << number) != 0);
                        number += u32::from(counts);
                    }
                };
                let what = match lucky.count_ones() as usize {
                    0 => "power cut: no dirty page survives",
                    n if n == pages => "power cut: all dirty pages survive",
                    _ => "power cut: some dirty pages survive",
                };
                go(what, s.with(cut));
            }
        }
    }

    fn check(&self, s: &State) -> Result<(), Violation> {
        if s.records.iter().any(|r| r.published && !r.durable()) {
            return Err(Violation("a record is published that is not flushed".into()));
        }
        if s.records.iter().any(|r| r.in_index && !r.readable()) {
            return Err(Violation("the index names staging that is gone".into()));
        }
        if s.daemon == Daemon::Down {
            return Ok(());
        }
        let visible = |r: &Record| r.readable() && (r.in_index || (r.in_journal && r.seqno > s.applied));
        if s.records.iter().any(|r| r.promised && !visible(r)) {
            return Err(Violation("a record whose fsync was answered is lost".into()));
        }
        if s.records.iter().any(|r| r.in_journal && r.seqno <= s.published && !r.published) {
            return Err(Violation("a record has a number that was published with other content, so it will never be".into()));
        }
        Ok(())
    }

    fn check_end(&self, s: &State) -> Result<(), Violation> {
        match s.commit {
            Commit::Idle => Ok(()),
            _ => Err(Violation("a commit never ends".into())),
        }
    }
}
