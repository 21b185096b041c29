//! Opening a journal: what survived, and making it certain (crate documentation, "Recovery").

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use hiloop_env::Env;
use hiloop_types::{Error, ErrorKind, Result, ResultExt, Seqno};

use crate::anchor::Anchor;
use crate::disk::Disk;
use crate::format::{LINKS_MAX, Link, RecordView, Slot, StagedRef, StreamId, encode_record};
use crate::head::{Head, LiveSegment};
use crate::health::Health;
use crate::options::{Class, Fault, JournalOptions, OnDamage};
use crate::segments::{Pool, find_segments, segment_id};
use crate::staging::Staging;
use crate::walk::{Chain, Walk, holds_records};

/// A record that survived.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredRecord<'a> {
    /// Its number.
    pub seqno: Seqno,
    /// Its workspace session.
    pub stream: StreamId,
    /// The caller's kind.
    pub kind: u8,
    /// The caller's bytes.
    pub body: &'a [u8],
    /// Staged ranges in the order the body counts them; possibly not the references that `append` was given.
    pub staged: &'a [StagedRef],
}

/// A place in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Segment file (the directory if the segment itself is missing).
    pub file: PathBuf,
    /// Generation of the segment.
    pub generation: u64,
    /// Byte in the file.
    pub offset: u64,
    /// First number that is not there.
    pub seqno: Seqno,
}

/// A record is bad although whole ones stand behind it, or although it had been flushed.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The bad record.
    pub position: Position,
    /// It had been flushed: this is loss. Otherwise it may be a power cut in the middle of a flush that nobody was told had ended.
    pub certain: bool,
    /// Whole records behind it, which cannot be kept.
    pub whole_behind: u64,
    /// Highest number among them and among those known to have been flushed.
    pub highest: Seqno,
}

impl Damage {
    /// The named error that a read-only journal carries.
    pub fn error(&self) -> Error {
        let p = &self.position;
        let loss = if self.certain { "loss" } else { "possible loss" };
        Error::corrupt(format!(
            "{loss}: record {} is bad; {} whole ones up to {} stand behind it",
            p.seqno, self.whole_behind, self.highest
        ))
        .at(format!("{} at byte {}", p.file.display(), p.offset))
        .hint("`recover` keeps the records before it")
    }
}

/// What opening found and did.
#[derive(Clone, Debug)]
pub struct RecoveryReport {
    /// There was no journal.
    pub fresh: bool,
    /// Records handed to the replay callback.
    pub replayed: u64,
    /// Last surviving record (the released one if none survived; zero in a fresh journal).
    pub last: Seqno,
    /// Number that the next record gets.
    pub next: Seqno,
    /// Highest number that the old stream called flushed.
    pub flushed: Seqno,
    /// Records written again because they stood above it.
    pub rewritten: u64,
    /// Staged bytes written again.
    pub rewritten_bytes: u64,
    /// Where the old stream ended (absent in a fresh journal).
    pub end: Option<Position>,
    /// The first record whose staging had not reached the disk; it and what followed were never flushed and are cut.
    pub staging_mismatch: Option<Seqno>,
    /// A bad record that is more than a torn tail.
    pub damage: Option<Damage>,
}

/// The parts of an open journal.
pub(crate) struct Recovered {
    pub(crate) head: Head,
    pub(crate) anchor: Anchor,
    pub(crate) pool: Pool,
    pub(crate) staging: Staging,
    pub(crate) flushed: Seqno,
    pub(crate) report: RecoveryReport,
}

pub(crate) type Replay<'a> = &'a mut dyn FnMut(RecoveredRecord<'_>) -> Result<()>;

pub(crate) fn recover(
    dir: &Path,
    disk: Arc<dyn Disk>,
    env: &Env,
    options: &JournalOptions,
    health: &Arc<Health>,
    min_next: Seqno,
    replay: Replay<'_>,
) -> Result<Recovered> {
    let (journal_dir, staging_dir) = (dir.join("journal"), dir.join("staging"));
    disk.create_dir(&journal_dir).at(journal_dir.display())?;
    disk.create_dir(&staging_dir).at(staging_dir.display())?;
    disk.sync_dir(dir).at(dir.display())?;
    let names = disk.list(&journal_dir).at(journal_dir.display())?;
    let found = find_segments(&*disk, &journal_dir, &names)?;
    let mut anchor = Anchor::open(&*disk, &journal_dir, &names)?;
    if anchor.slot.is_none() {
        for f in &found {
            if holds_records(&journal_dir, f)? {
                return Err(anchor.missing());
            }
        }
    }
    let next_id = names.iter().filter_map(|n| segment_id(n)).max().map_or(0, |id| id + 1);
    let pool = Pool::new(journal_dir.clone(), disk.clone(), options, next_id);
    let next_slab = anchor.slot.as_ref().map_or(0, |s| s.next_slab);
    let staging = Staging::open(staging_dir, disk.clone(), health.clone(), options, next_slab)?;
    let incarnation = env.random_u64();

    let Some(slot) = anchor.slot.clone() else {
        for f in found {
            pool.give_back(f.segment)?;
        }
        let next = min_next.max(Seqno(1));
        let before = Seqno(next.0 - 1);
        let mut head = Head::start(&pool, incarnation, 1, next, before)?;
        flush(&mut head, &staging)?;
        let link = Link { incarnation, first_generation: 1, end_generation: None, first: next };
        let slot = Slot { update: 0, released: before, oldest_generation: 1, next_slab: staging.next_id(), links: vec![link] };
        anchor.write(slot)?;
        disk.sync_dir(&journal_dir).at(journal_dir.display())?;
        let report = RecoveryReport {
            fresh: true,
            replayed: 0,
            last: before,
            next,
            flushed: before,
            rewritten: 0,
            rewritten_bytes: 0,
            end: None,
            staging_mismatch: None,
            damage: None,
        };
        return Ok(Recovered { head, anchor, pool, staging, flushed: before, report });
    };

    let chain = Chain::new(journal_dir.clone(), found, &slot)?;
    let survey = survey(&chain, &staging)?;
    let refuse = survey.damage.as_ref().is_some_and(|d| match options.on_damage {
        OnDamage::ReadOnly => true,
        OnDamage::KeepPrefixIfUncertain => d.certain,
        OnDamage::KeepPrefix => false,
    });
    let mut report = RecoveryReport {
        fresh: false,
        replayed: 0,
        last: slot.released,
        next: min_next,
        flushed: survey.flushed,
        rewritten: 0,
        rewritten_bytes: 0,
        end: Some(survey.end.clone()),
        staging_mismatch: None,
        damage: survey.damage.clone(),
    };
    let job = Job { chain: &chain, survey: &survey, slot: &slot, staging: &staging, options };
    if refuse {
        let (closed, current) = job.read_only(&mut report, replay)?;
        health.fail(&survey.damage.as_ref().expect("damage was found").error());
        let next = survey.highest.next().max(min_next).max(slot.released.next());
        report.next = next;
        let flushed = survey.flushed;
        return Ok(Recovered {
            head: Head::closed_for_writing(closed, current, report.last.max(flushed).next()),
            anchor,
            pool,
            staging,
            flushed,
            report,
        });
    }
    // Rule 2.5 holds for the anchor and the names too: what we read may stand in the page cache only, after a flush that failed. Nothing
    // that it calls free may be written before it is certain.
    if !options.planted(Fault::TrustAnchor) {
        anchor.write(slot.clone())?;
    }
    disk.sync_dir(&journal_dir).at(journal_dir.display())?;
    disk.sync_dir(&dir.join("staging")).at(dir.display())?;
    for stray in &chain.strays {
        pool.give_back(stray.clone())?;
    }
    let mut head = job.rewrite(&mut report, replay, &pool, incarnation)?;
    let next = survey.highest.next().max(min_next).max(slot.released.next()).max(head.next);
    if next > head.next {
        head.skip_to(next, &pool, survey.flushed)?;
    }
    report.next = next;
    // True by the time the anchor names this incarnation.
    head.mark_flushed(head.accepted(), &pool)?;
    flush(&mut head, &staging)?;
    let superseded = job.keep(&mut head);
    anchor.write(job.new_slot(&head))?;
    for file in superseded {
        pool.give_back(file)?;
    }
    let flushed = head.accepted();
    Ok(Recovered { head, anchor, pool, staging, flushed, report })
}

fn flush(head: &mut Head, staging: &Staging) -> Result<()> {
    staging.flush()?;
    for file in head.take_dirty() {
        file.sync_data().at("journal segment")?;
    }
    Ok(())
}

/// What the first walk learnt.
struct Survey {
    end: Position,
    /// Last record of the whole prefix.
    prefix: Seqno,
    /// Of it, what the stream calls flushed.
    flushed: Seqno,
    /// Highest whole record anywhere.
    highest: Seqno,
    damage: Option<Damage>,
}

fn survey(chain: &Chain, staging: &Staging) -> Result<Survey> {
    let walk: Walk = chain.walk(&mut |record, _| {
        // A slab whose file was lost must not see its number again while an old record names it.
        record.staged().iter().for_each(|r| staging.raise_next(r.slab));
        Ok(true)
    })?;
    let behind = chain.look_behind(&walk)?;
    let known = walk.flushed.max(behind.flushed);
    let prefix = Seqno(walk.expected.0 - 1);
    let end = Position { file: chain.path(walk.generation), generation: walk.generation, offset: walk.offset, seqno: walk.expected };
    let certain = walk.broken || walk.expected <= known;
    let highest = prefix.max(behind.highest).max(known);
    let damage = (certain || behind.whole > 0).then(|| Damage { position: end.clone(), certain, whole_behind: behind.whole, highest });
    Ok(Survey { end, prefix, flushed: known.min(prefix), highest, damage })
}

struct Job<'a> {
    chain: &'a Chain,
    survey: &'a Survey,
    slot: &'a Slot,
    staging: &'a Staging,
    options: &'a JournalOptions,
}

impl Job<'_> {
    /// Last record that stays in its old segment; everything above is written again.
    fn cut(&self) -> Seqno {
        if self.slot.links.len() >= LINKS_MAX {
            self.slot.released
        } else if self.options.planted(Fault::SkipRewrite) {
            self.survey.prefix
        } else {
            self.survey.flushed
        }
    }
    /// Checks that the staging of a record above the flushed seqno reached the disk; `None` if not.
    fn staged_data(&self, staged: &[StagedRef]) -> Result<Option<Vec<Bytes>>> {
        let mut all = Vec::with_capacity(staged.len());
        for r in staged {
            if self.options.planted(Fault::SkipStagingCheck) {
                let mut data = vec![0; r.len as usize];
                let _ = self.staging.read(r, 0, &mut data);
                all.push(data.into());
                continue;
            }
            match self.staging.verify(r) {
                Ok(data) => all.push(data),
                Err(e) if e.kind() == ErrorKind::Corrupt => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(Some(all))
    }
    fn hand_out(&self, record: &RecordView<'_>, staged: &[StagedRef], report: &mut RecoveryReport, replay: Replay<'_>) -> Result<()> {
        report.last = record.seqno;
        report.replayed += 1;
        replay(RecoveredRecord { seqno: record.seqno, stream: record.stream, kind: record.kind, body: record.body, staged })
            .at(format!("record {}", record.seqno))
    }
    /// Hands out the prefix without writing anything.
    fn read_only(&self, report: &mut RecoveryReport, replay: Replay<'_>) -> Result<(VecDeque<LiveSegment>, LiveSegment)> {
        self.chain.walk(&mut |record, _| {
            let staged = record.staged();
            if record.seqno <= self.slot.released {
                return Ok(true);
            }
            if record.seqno > self.survey.flushed && self.staged_data(&staged)?.is_none() {
                report.staging_mismatch = Some(record.seqno);
                return Ok(false);
            }
            self.hand_out(record, &staged, report, replay)?;
            Ok(true)
        })?;
        let mut segments: VecDeque<LiveSegment> = self
            .chain
            .segments
            .iter()
            .map(|(&generation, s)| LiveSegment {
                file: s.file.clone(),
                generation,
                first: s.header.first,
                last: s.header.first,
                slabs: Vec::new(),
            })
            .collect();
        let current =
            segments.pop_back().ok_or_else(|| Error::corrupt("no segment of the journal is left").at(self.survey.end.file.display()))?;
        Ok((segments, current))
    }
    /// Old segments that hold numbers up to the cut, by generation.
    fn kept(&self, cut: Seqno) -> BTreeMap<u64, LiveSegment> {
        let kept = self.chain.segments.iter().filter(|(_, s)| s.header.first <= cut);
        kept.map(|(&generation, s)| {
            let live = LiveSegment { file: s.file.clone(), generation, first: s.header.first, last: cut, slabs: Vec::new() };
            (generation, live)
        })
        .collect()
    }
    /// Hands out the prefix and writes what stands above the cut to a new incarnation.
    fn rewrite(&self, report: &mut RecoveryReport, replay: Replay<'_>, pool: &Pool, incarnation: u64) -> Result<Head> {
        let cut = self.cut();
        let generation = self.chain.highest_generation + 1;
        let mut head = Head::start(pool, incarnation, generation, cut.next(), cut)?;
        let mut kept = self.kept(cut);
        let mut buf = Vec::new();
        self.chain.walk(&mut |record, generation| {
            let staged = record.staged();
            if record.seqno <= cut {
                let segment = kept.get_mut(&generation).expect("a segment with a record up to the cut starts below it");
                segment.note(record.seqno, &staged);
                if record.seqno > self.slot.released {
                    self.hand_out(record, &staged, report, replay)?;
                }
                return Ok(true);
            }
            if record.seqno <= self.slot.released {
                return Ok(true);
            }
            let (mut moved, mut pins) = (staged.clone(), Vec::new());
            if record.seqno > self.survey.flushed {
                let Some(data) = self.staged_data(&staged)? else {
                    report.staging_mismatch = Some(record.seqno);
                    return Ok(false);
                };
                for (r, data) in moved.iter_mut().zip(&data) {
                    let new = self.staging.stage_or_flush(data)?;
                    *r = new.reference();
                    report.rewritten_bytes += data.len() as u64;
                    pins.push(new);
                }
            }
            if record.seqno > head.next {
                head.skip_to(record.seqno, pool, cut)?;
            }
            encode_record(&mut buf, record.stream, record.kind, &[record.body], &moved)?;
            head.append(&mut buf, Class::Reserve, &moved, pool, cut)?;
            report.rewritten += 1;
            self.hand_out(record, &moved, report, replay)?;
            Ok(true)
        })?;
        // A segment covers the numbers up to the next one's first, those that were skipped included.
        let ends: Vec<Seqno> = kept.values().skip(1).map(|s| Seqno(s.first.0 - 1)).chain([cut]).collect();
        let mut closed: VecDeque<LiveSegment> = kept.into_values().zip(ends).map(|(s, last)| LiveSegment { last, ..s }).collect();
        closed.append(&mut head.closed);
        head.closed = closed;
        Ok(head)
    }
    /// Drops from the head what is released already; returns the old files that no longer count.
    fn keep(&self, head: &mut Head) -> Vec<crate::segments::SegmentFile> {
        while head.closed.front().is_some_and(|s| s.last <= self.slot.released && s.generation <= self.chain.highest_generation) {
            head.closed.pop_front();
        }
        let kept: Vec<u64> = head.segments().map(|s| s.generation).collect();
        self.chain.segments.iter().filter(|(g, _)| !kept.contains(g)).map(|(_, s)| s.file.clone()).collect()
    }
    /// The anchor that makes the new incarnation count.
    fn new_slot(&self, head: &Head) -> Slot {
        let first_generation = self.chain.highest_generation + 1;
        let oldest = head.segments().next().map_or(first_generation, |s| s.generation);
        let last_kept = head.segments().map(|s| s.generation).take_while(|&g| g < first_generation).last();
        let cut = self.cut();
        let mut links: Vec<Link> = Vec::new();
        if let Some(last_kept) = last_kept {
            let old = self.slot.links.iter().filter(|l| l.first_generation <= last_kept && l.end_generation.is_none_or(|e| e > oldest));
            links
                .extend(old.map(|l| Link { end_generation: Some(l.end_generation.map_or(last_kept + 1, |e| e.min(last_kept + 1))), ..*l }));
        }
        links.push(Link { incarnation: head.incarnation, first_generation, end_generation: None, first: cut.next() });
        Slot { update: 0, released: self.slot.released, oldest_generation: oldest, next_slab: self.staging.next_id(), links }
    }
}
