//! The real disk and the background threads.

use std::sync::Arc;
use std::sync::mpsc;

use hiloop_env::Env;
use hiloop_types::Seqno;

use super::open_at;
use crate::{Class, Journal, JournalOptions, RealDisk, Staged};

fn options() -> JournalOptions {
    JournalOptions { segment_size: 1 << 16, slab_size: 1 << 18, staging_dirty: 1 << 17, ..JournalOptions::default() }
}

fn stage_waiting(journal: &Journal, data: &[u8]) -> Staged {
    loop {
        if let Some(staged) = journal.stage(data).unwrap() {
            return staged;
        }
        let (send, room) = mpsc::channel();
        journal.when_room(data.len() as u64, Box::new(move |r| send.send(r).unwrap()));
        room.recv().unwrap().unwrap();
    }
}

#[test]
fn many_threads_append_stage_and_commit_and_all_of_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::real();
    let (journal, ..) = open_at(dir.path(), Arc::new(RealDisk), &env, options(), 0).unwrap();
    let journal = Arc::new(journal);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let journal = journal.clone();
            scope.spawn(move || {
                for i in 0..200u64 {
                    let staged = (i % 5 == 0).then(|| stage_waiting(&journal, &[i as u8; 5000]));
                    let refs: Vec<_> = staged.iter().map(crate::Staged::reference).collect();
                    let seqno = journal.append(Class::Data, thread, 1, &[&i.to_le_bytes(), &[0; 300]], &refs).unwrap();
                    if i % 50 == 0 {
                        assert!(journal.commit(seqno).unwrap() >= seqno);
                    }
                }
            });
        }
    });
    let (send, receive) = mpsc::channel();
    let last = journal.accepted();
    journal.commit_async(last, Box::new(move |r| send.send(r.unwrap()).unwrap()));
    assert_eq!(receive.recv().unwrap(), Seqno(800));
    let mut page = [0; 5000];
    drop(journal);
    let (journal, report, seen) = open_at(dir.path(), Arc::new(RealDisk), &env, options(), 0).unwrap();
    assert_eq!((seen.len(), report.damage.is_none(), report.next), (800, true, Seqno(801)));
    for thread in 0..4u64 {
        let mine: Vec<_> = seen.iter().filter(|s| s.stream == thread).collect();
        for (i, record) in (0..200u64).zip(&mine) {
            assert_eq!(record.body[..8], i.to_le_bytes());
            assert_eq!(record.staged.len(), usize::from(i % 5 == 0));
            for r in &record.staged {
                journal.read_staged(r, 0, &mut page).unwrap();
                assert_eq!(page, [i as u8; 5000]);
                // Just read, so in the page cache; a file system without RWF_NOWAIT may still decline.
                journal.read_staged_nowait(r, 0, &mut page).unwrap();
            }
        }
    }
    journal.release(Seqno(700)).unwrap();
    drop(journal);
    let (_, _, seen) = open_at(dir.path(), Arc::new(RealDisk), &env, options(), 0).unwrap();
    assert_eq!(seen.iter().map(|s| s.seqno.0).collect::<Vec<_>>(), (701..=800).collect::<Vec<_>>());
}
