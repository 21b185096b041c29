//! A random life of a journal on a simulated disk, and the checker: what was committed survives exactly, survivors are a prefix,
//! nothing is invented, no number is used twice.

use std::collections::HashSet;

use hiloop_env::Env;
use hiloop_types::{ErrorKind, Seqno};

use super::{open_with, root, small};
use crate::options::Fault;
use crate::{Class, Journal, OnDamage, SimDisk, SlabId, StagedRef, State};

/// A record as it was accepted.
#[derive(Clone)]
struct Entry {
    seqno: Seqno,
    stream: u64,
    kind: u8,
    body: Vec<u8>,
    data: Vec<Vec<u8>>,
    refs: Vec<StagedRef>,
}

/// What a run came across, so that the tests can say that it came across it.
#[derive(Default, Debug, Clone, Copy)]
pub(super) struct Tally {
    pub(super) cuts: u64,
    pub(super) kills: u64,
    pub(super) cuts_in_recovery: u64,
    pub(super) failed_flushes: u64,
    pub(super) rewritten: u64,
    pub(super) mismatches: u64,
    pub(super) uncertain: u64,
    pub(super) lost: u64,
    pub(super) released: u64,
    pub(super) freed: u64,
    pub(super) refused: u64,
}

pub(super) struct World {
    disk: SimDisk,
    env: Env,
    dice: Env,
    fault: Option<Fault>,
    journal: Option<Journal>,
    /// Accepted and not released, oldest first.
    entries: Vec<Entry>,
    /// Ranges of released records that a layer still names.
    held: Vec<(StagedRef, Vec<u8>)>,
    committed: Seqno,
    /// Bounds of the released seqno: a release that failed may or may not stand.
    released: Seqno,
    released_attempt: Seqno,
    /// Highest number ever seen whole by us.
    floor: Seqno,
    pub(super) tally: Tally,
}

type Check = Result<(), String>;

impl World {
    pub(super) fn new(seed: u64, fault: Option<Fault>) -> Self {
        Self {
            disk: SimDisk::new(seed, &root()),
            env: Env::simulated(seed ^ 0x55).0,
            dice: Env::simulated(seed.wrapping_mul(31) + 7).0,
            fault,
            journal: None,
            entries: Vec::new(),
            held: Vec::new(),
            committed: Seqno(0),
            released: Seqno(0),
            released_attempt: Seqno(0),
            floor: Seqno(0),
            tally: Tally::default(),
        }
    }
    fn roll(&self, sides: u64) -> u64 {
        self.dice.random_u64() % sides
    }
    fn bytes(&self, len: u64) -> Vec<u8> {
        // Half of them compressible: zeros are what a lost sector looks like.
        let random = self.roll(2) == 0;
        (0..len).map(|i| if random { self.dice.random_u64() as u8 } else { (i % 3) as u8 }).collect()
    }
    fn journal(&self) -> &Journal {
        self.journal.as_ref().expect("the journal is open")
    }

    pub(super) fn run(&mut self, lives: u64) -> Check {
        let mut kept_cache = false;
        for _ in 0..lives {
            self.open(kept_cache)?;
            if self.roll(4) == 0 {
                self.disk.power_off_after(self.roll(60));
            }
            if self.roll(6) == 0 {
                self.disk.fail_flush_after(self.roll(12));
            }
            for _ in 0..self.roll(60) {
                self.step()?;
                if self.disk.is_off() {
                    break;
                }
            }
            let off = self.disk.is_off();
            self.disk.set_capacity(None);
            let journal = self.journal.take().expect("the journal is open");
            if !off && self.roll(5) == 0 {
                let accepted = journal.accepted();
                if journal.close().is_ok() {
                    self.committed = self.committed.max(accepted);
                }
            }
            kept_cache = !off && self.roll(3) == 0;
            if kept_cache {
                // A kill: what was accepted stands in the page cache. A failure that was about to come does not outlive it.
                self.disk.fail_flush_after(u64::MAX);
                self.disk.power_off_after(u64::MAX);
                self.tally.kills += 1;
            } else {
                self.disk.crash();
                self.tally.cuts += 1;
            }
        }
        self.open(kept_cache)
    }

    /// Opens, perhaps cutting the power in the middle first, and checks what came back.
    fn open(&mut self, mut kept_cache: bool) -> Check {
        if self.roll(3) == 0 {
            self.disk.power_off_after(self.roll(25));
        }
        let options = || crate::JournalOptions { on_damage: OnDamage::KeepPrefix, fault: self.fault, ..small() };
        let min_next = if self.roll(4) == 0 { self.floor.0 + self.roll(3) } else { 0 };
        let opened = open_with(&self.disk, &self.env, options(), min_next);
        let (journal, report, seen) = match opened {
            Ok(opened) if !self.disk.is_off() => opened,
            Err(e) if !self.disk.is_off() => return Err(format!("opening failed: {e}")),
            _ => {
                self.tally.cuts_in_recovery += 1;
                kept_cache = false;
                self.disk.crash();
                open_with(&self.disk, &self.env, options(), min_next).map_err(|e| format!("opening after a second cut failed: {e}"))?
            }
        };
        self.disk.power_off_after(u64::MAX);
        if let Some(d) = &report.damage {
            self.tally.uncertain += 1;
            if d.certain || kept_cache {
                return Err(format!("damage without bit rot: {}", d.error()));
            }
        }
        // A release whose answer was lost may stand.
        let released = journal.released();
        if self.floor == Seqno(0) {
            // A fresh journal counts what lies below the caller's floor as released.
            (self.released, self.released_attempt) = (released, released);
        }
        if released < self.released || released > self.released_attempt {
            return Err(format!("released {released}, not within {}..={}", self.released, self.released_attempt));
        }
        self.forget_released(released);
        let before = self.entries.len();
        let required = self.entries.iter().filter(|e| e.seqno <= self.committed).count();
        if seen.len() > before {
            return Err(format!("{} records came back of {before}", seen.len()));
        }
        for (entry, seen) in self.entries.iter_mut().zip(&seen) {
            if (entry.seqno, entry.stream, entry.kind, &entry.body) != (seen.seqno, seen.stream, seen.kind, &seen.body) {
                return Err(format!("record {} came back as {seen:?}", entry.seqno));
            }
            entry.refs.clone_from(&seen.staged);
        }
        self.entries.truncate(seen.len());
        self.tally.lost += (before - seen.len()) as u64;
        let last = self.entries.last().map_or(released, |e| e.seqno);
        if seen.len() < required {
            return Err(format!("committed up to {}, survived up to {last}", self.committed));
        }
        if kept_cache && before != seen.len() {
            return Err(format!("a kill lost {} accepted records", before - seen.len()));
        }
        if report.next <= last || report.next < Seqno(min_next) || journal.accepted().next() != report.next {
            return Err(format!("numbering resumes at {}, last is {last}, floor {min_next}", report.next));
        }
        self.floor = report.next;
        // Whatever came back must be certain to survive from here on.
        self.committed = last;
        self.tally.rewritten += report.rewritten;
        self.tally.mismatches += u64::from(report.staging_mismatch.is_some());
        self.journal = Some(journal);
        self.check_staging()
    }
    fn check_staging(&self) -> Check {
        let named = self.entries.iter().flat_map(|e| e.refs.iter().zip(&e.data));
        for (r, data) in named.chain(self.held.iter().map(|(r, d)| (r, d))) {
            let read = self.journal().verify_staged(r).map_err(|e| format!("staged data: {e}"))?;
            if read != *data {
                return Err(format!("staged data of {r:?} changed"));
            }
        }
        Ok(())
    }
    fn forget_released(&mut self, released: Seqno) {
        self.released = released;
        self.released_attempt = released;
        let keep = self.entries.iter().position(|e| e.seqno > released).unwrap_or(self.entries.len());
        for e in self.entries.drain(..keep) {
            let hold = e.seqno.0 % 3 == 0;
            self.held.extend(e.refs.into_iter().zip(e.data).filter(|_| hold));
        }
    }

    fn step(&mut self) -> Check {
        match self.roll(21) {
            0..=7 => self.append(false),
            8..=12 => self.append(true),
            13..=15 => self.commit(),
            16 => self.release(),
            17 => self.retain(),
            18 => {
                self.journal().maintain();
                Ok(())
            }
            19 => self.read_back(),
            // The disk fills up, or somebody makes room.
            _ => {
                self.disk.set_capacity((self.roll(2) == 0).then(|| self.disk.used()));
                Ok(())
            }
        }
    }
    fn append(&mut self, with_data: bool) -> Check {
        let read_only = matches!(self.journal().state(), State::ReadOnly(_));
        let mut pins = Vec::new();
        let mut data = Vec::new();
        for _ in 0..if with_data { 1 + self.roll(2) } else { 0 } {
            let bytes = self.bytes(1 + self.roll(3000));
            let staged = match self.journal().stage(&bytes) {
                // No room: what the upkeep thread would do, then once more.
                Ok(None) => {
                    self.journal().maintain();
                    self.journal().stage(&bytes)
                }
                other => other,
            };
            match staged {
                Ok(Some(_)) if read_only => return Err("a read-only journal staged".into()),
                Ok(Some(pin)) => pins.push(pin),
                Ok(None) => return Err("a write-back made no room".into()),
                Err(e) => return self.refused(&e),
            }
            data.push(bytes);
        }
        let refs: Vec<StagedRef> = pins.iter().map(crate::Staged::reference).collect();
        let (stream, kind, body) = (self.roll(4), self.roll(256) as u8, self.bytes(self.roll(500)));
        let (a, b) = body.split_at(body.len() / 3);
        let class = if self.roll(4) == 0 { Class::Reserve } else { Class::Data };
        let seqno = match self.journal().append(class, stream, kind, &[a, b], &refs) {
            Ok(seqno) => seqno,
            Err(e) => return self.refused(&e),
        };
        if read_only {
            return Err("a read-only journal accepted".into());
        }
        if seqno < self.floor || seqno != self.journal().accepted() {
            return Err(format!("number {seqno} was given twice"));
        }
        self.floor = seqno.next();
        self.entries.push(Entry { seqno, stream, kind, body, data, refs });
        Ok(())
    }
    /// A full disk refuses and the journal stays healthy.
    fn refused(&mut self, error: &hiloop_types::Error) -> Check {
        if error.kind() == ErrorKind::Exhausted {
            self.tally.refused += 1;
            if !self.disk.is_off() && matches!(self.journal().state(), State::ReadOnly(e) if e.kind() == ErrorKind::Exhausted) {
                return Err(format!("a full disk ended the journal: {error}"));
            }
        }
        Ok(())
    }
    fn commit(&mut self) -> Check {
        let upto = match self.entries.len() as u64 {
            0 => return Ok(()),
            n => self.entries[self.roll(n) as usize].seqno,
        };
        let before = self.journal().flushed();
        match self.journal().commit(upto) {
            Ok(flushed) if flushed < upto || flushed < before => Err(format!("commit of {upto} answered {flushed}")),
            Ok(flushed) => {
                self.committed = self.committed.max(flushed);
                Ok(())
            }
            Err(_) => {
                self.tally.failed_flushes += 1;
                let journal = self.journal();
                if journal.flushed() < before || (self.fault.is_none() && matches!(journal.state(), State::Healthy)) {
                    return Err("a failed flush left the journal healthy".into());
                }
                Ok(())
            }
        }
    }
    fn release(&mut self) -> Check {
        let flushed = self.journal().flushed();
        let upto = Seqno(self.released.0 + self.roll(flushed.0 + 1 - self.released.0.min(flushed.0)));
        if upto <= self.released {
            return Ok(());
        }
        self.released_attempt = self.released_attempt.max(upto);
        match self.journal().release(upto) {
            Ok(()) => {
                self.tally.released += 1;
                self.forget_released(upto);
            }
            Err(e) if e.kind() == ErrorKind::Invalid => return Err(format!("release was refused: {e}")),
            Err(_) => {}
        }
        Ok(())
    }
    fn retain(&mut self) -> Check {
        if self.roll(2) == 0 {
            self.held.drain(..self.held.len() / 2);
        }
        let in_use: HashSet<SlabId> = self.held.iter().map(|(r, _)| r.slab).collect();
        if let Ok(freed) = self.journal().retain_slabs(&in_use) {
            self.tally.freed += freed.len() as u64;
        }
        if self.disk.is_off() { Ok(()) } else { self.check_staging() }
    }
    fn read_back(&mut self) -> Check {
        let Some(entry) = self.entries.last() else { return Ok(()) };
        for (r, data) in entry.refs.iter().zip(&entry.data) {
            let skip = self.roll(data.len() as u64) as usize;
            let mut out = vec![0; data.len() - skip];
            if self.journal().read_staged(r, skip as u32, &mut out).is_ok() && out != data[skip..] {
                return Err(format!("read of {r:?} from {skip} differs"));
            }
        }
        Ok(())
    }
}
