//! The main path, limits, failure of flushes, a full disk, recycling, staging.

use std::collections::HashSet;
use std::sync::Arc;

use hiloop_env::Env;
use hiloop_types::{ErrorKind, Result, Seqno, limits};
use parking_lot::Mutex;

use super::{open_with, root, small};
use crate::{Class, Journal, JournalOptions, SimDisk, State};

fn fresh(options: JournalOptions) -> (SimDisk, Env, Journal) {
    let disk = SimDisk::new(1, &root());
    let env = Env::simulated(2).0;
    let (journal, report, _) = open_with(&disk, &env, options, 0).unwrap();
    assert!(report.fresh && report.next == Seqno(1));
    (disk, env, journal)
}

fn put(journal: &Journal, body: &[u8]) -> Result<Seqno> {
    journal.append(Class::Data, 1, 0, &[body], &[])
}

#[test]
fn what_is_appended_comes_back_in_order() {
    let (disk, env, journal) = fresh(small());
    let staged = journal.stage(b"large").unwrap().unwrap();
    assert_eq!(journal.append(Class::Data, 9, 3, &[b"ab", b"", b"c"], &[staged.reference()]).unwrap(), Seqno(1));
    assert_eq!(put(&journal, b"").unwrap(), Seqno(2));
    assert_eq!((journal.accepted(), journal.flushed(), journal.usage().unflushed), (Seqno(2), Seqno(0), 2));
    assert_eq!(journal.commit(Seqno(1)).unwrap(), Seqno(2), "a commit claims everything accepted");
    drop(staged);
    journal.close().unwrap();
    disk.crash();
    let (journal, report, seen) = open_with(&disk, &env, small(), 0).unwrap();
    assert_eq!((seen.len(), report.rewritten, report.next, report.flushed), (2, 0, Seqno(3), Seqno(2)));
    assert_eq!((seen[0].stream, seen[0].kind, &seen[0].body[..]), (9, 3, &b"abc"[..]));
    assert_eq!(journal.verify_staged(&seen[0].staged[0]).unwrap(), &b"large"[..]);
    assert_eq!(put(&journal, b"x").unwrap(), Seqno(3));
}

#[test]
fn recovery_moves_unflushed_staging_and_bodies_keep_their_index() {
    let (disk, env, journal) = fresh(small());
    let pins: Vec<_> = [&b"one"[..], b"two"].iter().map(|d| journal.stage(d).unwrap().unwrap()).collect();
    let refs: Vec<_> = pins.iter().map(crate::Staged::reference).collect();
    journal.append(Class::Data, 1, 1, &[&[1, 0]], &refs).unwrap();
    drop(pins);
    drop(journal);
    let (journal, report, seen) = open_with(&disk, &env, small(), 0).unwrap();
    assert_eq!((report.rewritten, report.rewritten_bytes), (1, 6));
    assert!(seen[0].staged.iter().zip(&refs).all(|(new, old)| new.slab > old.slab));
    assert_eq!(journal.verify_staged(&seen[0].staged[usize::from(seen[0].body[0])]).unwrap(), &b"two"[..]);
    drop(journal);
    disk.crash();
    assert_eq!(open_with(&disk, &env, small(), 0).unwrap().1.rewritten, 0, "what a recovery wrote is flushed and marked");
}

#[test]
fn numbering_respects_the_callers_floor() {
    let (disk, env, journal) = fresh(small());
    put(&journal, b"a").unwrap();
    drop(journal);
    let (journal, report, _) = open_with(&disk, &env, small(), 50).unwrap();
    assert_eq!((report.next, put(&journal, b"b").unwrap()), (Seqno(50), Seqno(50)));
    drop(journal);
    let (_, report, seen) = open_with(&disk, &env, small(), 0).unwrap();
    assert_eq!(seen.iter().map(|s| s.seqno.0).collect::<Vec<_>>(), [1, 50]);
    assert_eq!(report.next, Seqno(51));
}

#[test]
fn many_restarts_keep_gaps_and_do_not_run_out_of_links() {
    let (disk, env, journal) = fresh(small());
    put(&journal, b"a").unwrap();
    drop(journal);
    let mut expected = vec![1];
    for i in 0..250u64 {
        let floor = if i % 3 == 0 { expected.last().unwrap() + 5 } else { 0 };
        let (journal, _, seen) = open_with(&disk, &env, small(), floor).unwrap();
        assert_eq!(seen.iter().map(|s| s.seqno.0).collect::<Vec<_>>(), expected, "restart {i}");
        if i % 2 == 0 {
            expected.push(put(&journal, &i.to_le_bytes()).unwrap().0);
        }
        drop(journal);
    }
}

#[test]
fn records_that_do_not_fit_are_refused_by_name() {
    let (_, _, journal) = fresh(small());
    let fits = journal.record_max() - 32;
    assert_eq!(put(&journal, &vec![1; fits + 1]).unwrap_err().kind(), ErrorKind::Invalid);
    put(&journal, &vec![1; fits]).unwrap();
    put(&journal, &vec![1; fits]).unwrap();
    assert_eq!(journal.stage(&[]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(journal.stage(&vec![0; 8192]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(journal.commit(Seqno(3)).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(matches!(journal.state(), State::Healthy));
}

#[test]
fn a_failed_flush_ends_the_journal_and_its_waiters_get_the_error() {
    let (disk, env, journal) = fresh(small());
    put(&journal, b"a").unwrap();
    journal.commit(Seqno(1)).unwrap();
    put(&journal, b"b").unwrap();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let sink = answers.clone();
    journal.commit_async(Seqno(2), Box::new(move |r| sink.lock().push(r.map_err(|e| e.kind()))));
    disk.fail_flush_after(0);
    assert_eq!(journal.commit(Seqno(2)).unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(*answers.lock(), [Err(ErrorKind::Internal)]);
    let flushes = disk.flushes();
    assert_eq!(journal.commit(Seqno(2)).unwrap_err().kind(), ErrorKind::Internal, "later waiters get the first error");
    assert_eq!(disk.flushes(), flushes, "and no flush is tried again");
    assert_eq!(journal.commit(Seqno(1)).unwrap(), Seqno(1), "what was flushed stays flushed");
    assert_eq!((put(&journal, b"c").unwrap_err().kind(), journal.flushed()), (ErrorKind::Closed, Seqno(1)));
    assert_eq!(journal.stage(b"c").unwrap_err().kind(), ErrorKind::Closed);
    assert!(matches!(journal.state(), State::ReadOnly(e) if e.kind() == ErrorKind::Internal));
    drop(journal);
    // The record is whole in the page cache and nowhere else: reopening writes it again, and then a power cut cannot take it.
    assert_eq!(open_with(&disk, &env, small(), 0).unwrap().2.len(), 2);
    disk.crash();
    assert_eq!(open_with(&disk, &env, small(), 0).unwrap().2.len(), 2);
}

#[test]
fn parked_commits_share_one_flush_and_are_served_by_maintain() {
    let (disk, _, journal) = fresh(small());
    journal.maintain();
    let answers = Arc::new(Mutex::new(Vec::new()));
    for i in 1..=3 {
        put(&journal, b"a").unwrap();
        let sink = answers.clone();
        journal.commit_async(Seqno(i), Box::new(move |r| sink.lock().push(r.unwrap())));
    }
    let flushes = disk.flushes();
    journal.maintain();
    assert_eq!(*answers.lock(), [Seqno(3); 3]);
    assert_eq!(disk.flushes(), flushes + 1, "no staging is dirty, one segment is");
    let sink = answers.clone();
    journal.commit_async(Seqno(2), Box::new(move |r| sink.lock().push(r.unwrap())));
    assert_eq!(answers.lock().len(), 4, "nothing to wait for");
    put(&journal, b"b").unwrap();
    let sink = answers.clone();
    journal.commit_async(Seqno(4), Box::new(move |r| sink.lock().push(r.map_or(Seqno(0), |s| s))));
    drop(journal);
    assert_eq!(answers.lock()[4], Seqno(0), "a journal that goes away answers");
}

#[test]
fn an_idle_second_commits() {
    let disk = SimDisk::new(1, &root());
    let (env, clock) = Env::simulated(2);
    let (journal, ..) = open_with(&disk, &env, small(), 0).unwrap();
    put(&journal, b"a").unwrap();
    journal.maintain();
    assert_eq!(journal.flushed(), Seqno(0));
    clock.advance(limits::COMMIT_INTERVAL);
    journal.maintain();
    assert_eq!(journal.flushed(), Seqno(1));
}

#[test]
fn a_full_disk_refuses_data_keeps_the_reserve_and_recovers_by_release() {
    let (disk, _, journal) = fresh(small());
    journal.maintain();
    disk.set_capacity(Some(disk.used()));
    let staged = journal.stage(b"x");
    assert_eq!(staged.unwrap_err().kind(), ErrorKind::Exhausted);
    let full = loop {
        if let Err(e) = put(&journal, &[7; 1000]) {
            break e;
        }
    };
    let accepted = journal.accepted();
    assert_eq!(full.kind(), ErrorKind::Exhausted);
    assert!(matches!(journal.state(), State::Healthy));
    assert!(accepted.0 >= 6, "the spare beyond the reserve was used");
    // Unlink and truncate go on, and data cannot eat what they opened.
    assert_eq!(journal.append(Class::Reserve, 1, 0, &[&[1; 1000]], &[]).unwrap(), accepted.next());
    assert_eq!(put(&journal, &[7; 10]).unwrap_err().kind(), ErrorKind::Exhausted);
    journal.append(Class::Reserve, 1, 0, &[&[1; 1000]], &[]).unwrap();
    let last = journal.accepted();
    journal.commit(last).unwrap();
    journal.release(last).unwrap();
    assert_eq!(put(&journal, &[7; 10]).unwrap(), last.next(), "released segments refill the reserve");
}

#[test]
fn released_segments_are_recycled_and_not_replayed() {
    let (disk, env, journal) = fresh(small());
    for round in 0..20u64 {
        for _ in 0..10 {
            put(&journal, &[round as u8; 1000]).unwrap();
        }
        let last = journal.accepted();
        assert_eq!(journal.release(last).unwrap_err().kind(), ErrorKind::Invalid, "not flushed yet");
        journal.commit(last).unwrap();
        journal.release(last).unwrap();
        assert!(journal.usage().segments == 1 && journal.usage().spares <= 3, "{:?}", journal.usage());
    }
    assert!(disk.used() < 10 * 4096 + 2 * 8192, "{}", disk.used());
    put(&journal, b"new").unwrap();
    drop(journal);
    let (journal, report, seen) = open_with(&disk, &env, small(), 0).unwrap();
    assert_eq!((seen.len(), seen[0].seqno, report.next), (1, Seqno(201), Seqno(202)));
    assert_eq!(journal.released(), Seqno(200));
}

#[test]
fn a_slab_stays_while_a_pin_a_record_or_a_layer_names_it() {
    let (_, _, journal) = fresh(small());
    let none = HashSet::new();
    let first = journal.stage(&[1; 5000]).unwrap().unwrap();
    let r = first.reference();
    journal.maintain();
    let second = journal.stage(&[2; 5000]).unwrap().unwrap();
    assert!(journal.retain_slabs(&none).unwrap().is_empty(), "pinned, and being filled");
    let seqno = journal.append(Class::Data, 1, 0, &[], &[r]).unwrap();
    drop((first, second));
    assert!(journal.retain_slabs(&none).unwrap().is_empty(), "named by a record");
    journal.commit(seqno).unwrap();
    journal.release(seqno).unwrap();
    assert!(journal.retain_slabs(&HashSet::from([r.slab])).unwrap().is_empty(), "named by a layer");
    assert_eq!(journal.verify_staged(&r).unwrap(), &[1; 5000][..]);
    assert_eq!(journal.retain_slabs(&none).unwrap(), [r.slab]);
    assert_eq!(journal.verify_staged(&r).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn unsynced_staging_is_bounded_and_partial_reads_work() {
    let (disk, _, journal) = fresh(small());
    let mut refused = 0;
    for i in 0..20u8 {
        let staged = match journal.stage(&[i; 1500]).unwrap() {
            Some(staged) => staged,
            None => {
                refused += 1;
                journal.maintain();
                journal.stage(&[i; 1500]).unwrap().expect("room after a write-back")
            }
        };
        assert!(journal.usage().staging_dirty <= small().staging_dirty + 512);
        let mut out = [0; 10];
        journal.read_staged(&staged.reference(), 1490, &mut out).unwrap();
        assert_eq!(out, [i; 10]);
        assert!(journal.read_staged_nowait(&staged.reference(), 0, &mut out).unwrap());
        assert_eq!(journal.read_staged(&staged.reference(), 1491, &mut out).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!((1..20).contains(&refused), "{refused} refusals");
    journal.maintain();
    let staged = journal.stage(b"x").unwrap().unwrap();
    disk.set_waiting_reads(true);
    assert!(!journal.read_staged_nowait(&staged.reference(), 0, &mut [0]).unwrap());
}

/// Fills staging to its bound.
fn crowd(journal: &Journal) {
    while journal.stage(&[1; 1000]).unwrap().is_some() {}
}

#[test]
fn a_stager_never_flushes_and_is_called_when_there_is_room() {
    let (disk, _, journal) = fresh(small());
    journal.maintain();
    let flushes = disk.flushes();
    crowd(&journal);
    assert_eq!(disk.flushes(), flushes, "the thread of a request waits for no disk");
    let answers = Arc::new(Mutex::new(Vec::new()));
    let ask = || {
        let sink = answers.clone();
        journal.when_room(1000, Box::new(move |r| sink.lock().push(r.map_err(|e| e.kind()))));
    };
    ask();
    assert!(answers.lock().is_empty());
    journal.maintain();
    assert_eq!(*answers.lock(), [Ok(())]);
    ask();
    assert_eq!(answers.lock().len(), 2, "there is room by now");
    let large = vec![2; 7000];
    assert!(journal.stage(&large).unwrap().is_some(), "a range above the bound has its turn");
    assert!(journal.stage(&large).unwrap().is_none());
    disk.fail_flush_after(0);
    ask();
    journal.maintain();
    assert_eq!(answers.lock()[2], Err(ErrorKind::Internal), "a failed flush makes no room");
    ask();
    assert_eq!(answers.lock()[3], Err(ErrorKind::Internal));
    drop(journal);
    let (_, _, journal) = fresh(small());
    crowd(&journal);
    let sink = answers.clone();
    journal.when_room(1000, Box::new(move |r| sink.lock().push(r.map_err(|e| e.kind()))));
    drop(journal);
    assert_eq!(answers.lock()[4], Err(ErrorKind::Closed), "a journal that goes away answers");
}

#[test]
fn callers_at_the_same_time_share_flushes() {
    let (disk, _, journal) = fresh(small());
    journal.maintain();
    let flushes = disk.flushes();
    let barrier = std::sync::Barrier::new(8);
    let seqnos: Vec<Seqno> = (0..8).map(|_| put(&journal, b"a").unwrap()).collect();
    std::thread::scope(|scope| {
        for seqno in seqnos {
            let (barrier, journal) = (&barrier, &journal);
            scope.spawn(move || {
                barrier.wait();
                assert_eq!(journal.commit(seqno).unwrap(), Seqno(8), "the leader claims all eight");
            });
        }
    });
    assert_eq!(disk.flushes(), flushes + 1);
}
