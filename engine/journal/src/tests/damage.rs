//! Bit rot against torn tails: the one is reported and never silently cut, the other is.

use std::path::PathBuf;

use hiloop_env::Env;
use hiloop_types::{ErrorKind, Seqno};

use super::{open_with, root, small};
use crate::disk::Disk;
use crate::{Class, JournalOptions, OnDamage, SimDisk, State};

const BODY: usize = 200;
/// Bytes of one record in these tests.
const RECORD: u64 = 32 + BODY as u64;

/// A journal with `count` records; all flushed, and the mark of that flushed too, if `flushed`.
fn journal_with(count: u64, flushed: bool) -> (SimDisk, Env) {
    let disk = SimDisk::new(3, &root());
    let env = Env::simulated(4).0;
    let (journal, ..) = open_with(&disk, &env, small(), 0).unwrap();
    for i in 0..count {
        journal.append(Class::Data, 1, 0, &[&[i as u8 + 1; BODY]], &[]).unwrap();
    }
    if flushed {
        journal.close().unwrap();
    }
    (disk, env)
}

fn segment(id: u32) -> PathBuf {
    root().join(format!("journal/segment-{id:08x}"))
}

fn keep(on_damage: OnDamage) -> JournalOptions {
    JournalOptions { on_damage, ..small() }
}

#[test]
fn rot_in_a_flushed_record_is_certain_damage_and_opens_read_only() {
    let (disk, env) = journal_with(10, true);
    disk.rot(&segment(0), 512 + 4 * RECORD + 50, 0x10).unwrap();
    for _ in 0..2 {
        let (journal, report, seen) = open_with(&disk, &env, small(), 0).unwrap();
        let damage = report.damage.expect("damage is reported");
        assert!(damage.certain);
        assert_eq!((damage.position.offset, damage.position.seqno, &damage.position.file), (512 + 4 * RECORD, Seqno(5), &segment(0)));
        assert_eq!((damage.whole_behind, damage.highest), (6, Seqno(10)), "five records and the mark");
        assert_eq!(seen.len(), 4, "the prefix is handed out");
        assert_eq!(journal.append(Class::Reserve, 1, 0, &[], &[]).unwrap_err().kind(), ErrorKind::Closed);
        assert!(matches!(journal.state(), State::ReadOnly(e) if e.kind() == ErrorKind::Corrupt && e.to_string().contains("record 5")));
        assert_eq!(journal.flushed(), Seqno(4));
    }
    let (_, report, _) = open_with(&disk, &env, keep(OnDamage::KeepPrefixIfUncertain), 0).unwrap();
    assert!(report.damage.is_some(), "certain loss is not cut by that policy");
    let (journal, report, seen) = open_with(&disk, &env, keep(OnDamage::KeepPrefix), 0).unwrap();
    assert_eq!((seen.len(), report.next), (4, Seqno(11)), "no number is used twice");
    assert!(report.damage.is_some(), "the loss stays in the report");
    assert_eq!(journal.append(Class::Data, 1, 0, &[b"x"], &[]).unwrap(), Seqno(11));
    drop(journal);
    let (_, report, seen) = open_with(&disk, &env, small(), 0).unwrap();
    assert!(report.damage.is_none());
    assert_eq!(seen.iter().map(|s| s.seqno.0).collect::<Vec<_>>(), [1, 2, 3, 4, 11]);
}

#[test]
fn a_hole_among_unflushed_records_is_uncertain() {
    let (disk, env) = journal_with(6, false);
    disk.rot(&segment(0), 512 + 2 * RECORD, 0xff).unwrap();
    let (_, report, seen) = open_with(&disk, &env, small(), 0).unwrap();
    let damage = report.damage.unwrap();
    assert_eq!((damage.certain, damage.whole_behind, damage.highest, seen.len()), (false, 3, Seqno(6), 2));
    let (journal, report, seen) = open_with(&disk, &env, keep(OnDamage::KeepPrefixIfUncertain), 0).unwrap();
    assert_eq!((seen.len(), report.next, journal.flushed()), (2, Seqno(7), Seqno(6)));
}

#[test]
fn a_torn_tail_is_cut_without_alarm() {
    for (at, survivors) in [(512 + 5 * RECORD + 40, 5), (512 + 5 * RECORD, 5), (512 + 6 * RECORD, 6)] {
        let (disk, env) = journal_with(6, false);
        disk.rot(&segment(0), at, 1).unwrap();
        let (journal, report, seen) = open_with(&disk, &env, small(), 0).unwrap();
        assert!(report.damage.is_none());
        assert_eq!((seen.len(), journal.accepted()), (survivors, Seqno(survivors as u64)));
    }
}

#[test]
fn every_rotten_byte_of_a_flushed_journal_is_noticed_or_harmless() {
    let count = 30;
    let (disk, env) = journal_with(count, true);
    let clean = open_with(&disk, &env, small(), 0).unwrap().2;
    assert_eq!(clean.len() as u64, count);
    let (mut noticed, mut harmless) = (0, 0);
    for name in disk.list(&root().join("journal")).unwrap() {
        let path = root().join("journal").join(&name);
        for at in (0..4096).step_by(31) {
            let (disk, env) = journal_with(count, true);
            if disk.rot(&path, at, 0x04).is_err() {
                continue;
            }
            match open_with(&disk, &env, small(), 0) {
                Err(e) => panic!("{name} {at}: {e}"),
                Ok((_, report, seen)) if report.damage.is_some() => {
                    noticed += 1;
                    assert_eq!(seen, clean[..seen.len()], "{name} {at}");
                }
                Ok((_, _, seen)) => {
                    harmless += 1;
                    assert_eq!(seen, clean, "{name} {at}: a silent loss");
                }
            }
        }
    }
    assert!(noticed > 200 && harmless > 20, "{noticed} noticed, {harmless} harmless");
}

#[test]
fn a_lost_anchor_beside_records_is_an_error_and_one_rotten_copy_is_not() {
    let anchor = root().join("journal/anchor");
    for copy in 0..2 {
        let (disk, env) = journal_with(3, true);
        disk.rot(&anchor, copy * 4096 + 9, 1).unwrap();
        assert_eq!(open_with(&disk, &env, small(), 0).unwrap().2.len(), 3);
    }
    let (disk, env) = journal_with(3, true);
    disk.rot(&anchor, 9, 1).unwrap();
    disk.rot(&anchor, 4096 + 9, 1).unwrap();
    assert_eq!(open_with(&disk, &env, small(), 0).err().map(|e| e.kind()), Some(ErrorKind::Corrupt));
    disk.remove(&anchor).unwrap();
    let error = open_with(&disk, &env, small(), 0).err().expect("refused");
    assert!(error.to_string().contains("anchor"), "{error}");
}
