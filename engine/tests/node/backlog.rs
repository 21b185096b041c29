//! The bound on what is accepted and not published.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kit::{World, eventually, noise, put, read, request};
use hiloop_engine::node::{AttachRequest, EngineOptions};
use hiloop_engine::workspace::{Admission, Cost, Durability};
use hiloop_env::Env;
use hiloop_store::Store;
use hiloop_store::faults::Faults;
use hiloop_types::ErrorKind;
use hiloop_types::limits::MIB;

#[test]
fn store_away_then_back() {
    let faults = Faults::default();
    let world = World::over(Store::memory(Env::real()).wrapped(|b| faults.wrap(b)));
    let engine = world.node("n1");
    let limited = AttachRequest { backlog_limit: Some(4 * MIB), ..request("ws") };
    let (w, _) = world.runtime.block_on(engine.attach(limited)).unwrap();
    world.flush(&w);
    faults.set_down(true);
    let cost = Cost { bytes: 200_000, exempt: false };
    let mut written = 0;
    while w.admit(cost) != Admission::Wait {
        put(&w, &format!("f{written}"), &noise(written, 200_000));
        written += 1;
        assert!(written < 100, "the bound never came");
    }
    assert!((10..=21).contains(&written), "{written}");
    assert_eq!(w.admit(Cost { exempt: true, ..cost }), Admission::Go);
    let woken = Arc::new(AtomicBool::new(false));
    let flag = woken.clone();
    w.when_room(cost, Box::new(move || flag.store(true, Ordering::SeqCst)));
    assert_eq!(read(&w, "f0").unwrap(), noise(0, 200_000), "reads go on");
    assert!(!woken.load(Ordering::SeqCst));
    faults.set_down(false);
    eventually("the writer is woken", || woken.load(Ordering::SeqCst));
    world.flush(&w);
    assert_eq!(w.status().backlog_bytes, 0);
    let w2 = world.take_over(&world.node("n2"), "ws").unwrap();
    for i in 0..written {
        assert_eq!(read(&w2, &format!("f{i}")).unwrap(), noise(i, 200_000));
    }
}

#[test]
fn what_is_taken_back_while_it_drains_keeps_its_promises() {
    let faults = Faults::default();
    let world = World::over(Store::memory(Env::real()).wrapped(|b| faults.wrap(b)));
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    world.flush(&w);
    faults.set_down(true);
    put(&w, "f", b"unpublished");
    let left = world.runtime.block_on(engine.detach(&w, std::time::Duration::ZERO)).unwrap();
    assert!(left.left_bytes > 0 && !left.released, "{left:?}");
    let replicated = AttachRequest { durability: Durability::Replicated, ..request("ws") };
    let refused = world.runtime.block_on(engine.attach(replicated)).unwrap_err();
    assert!(refused.kind() == ErrorKind::Conflict && refused.to_string().contains("other options"), "{refused}");
    let again = world.attach(&engine, "ws");
    assert_eq!((again.session(), read(&again, "f").unwrap()), (w.session(), b"unpublished".to_vec()));
    faults.set_down(false);
    world.flush(&again);
}

#[test]
fn a_stuck_workspace_does_not_keep_the_journal_of_the_others() {
    let faults = Faults::default();
    let world = World::over(Store::memory(Env::real()).wrapped(|b| faults.wrap(b)));
    let mut options = world.options("n1");
    options.journal.segment_size = 256 * 1024;
    options.journal.slab_size = MIB;
    let engine = world.open("n1", options);
    let stuck = world.attach(&engine, "stuck");
    let busy = world.attach(&engine, "busy");
    world.flush(&stuck);
    put(&stuck, "kept", &noise(1, 100_000));
    put(&stuck, "small", b"inline");
    // Only the stuck one's head cannot move.
    faults.set_down(true);
    for i in 0..3000u64 {
        put(&busy, &format!("f{}", i % 50), &noise(i, 300));
    }
    eventually("the journal is trimmed", || engine.status().journal.segments <= 6);
    let engine = world.kill(engine, "n1", "n1-again");
    faults.set_down(false);
    let stuck = world.attach(&engine, "stuck");
    let busy = world.attach(&engine, "busy");
    assert_eq!(read(&stuck, "kept").unwrap(), noise(1, 100_000));
    assert_eq!(read(&stuck, "small").unwrap(), b"inline");
    for i in 2950..3000u64 {
        assert_eq!(read(&busy, &format!("f{}", i % 50)).unwrap(), noise(i, 300));
    }
    assert_eq!(busy.totals().inodes, 51);
    world.flush(&stuck);
    world.flush(&busy);
    let other = world.node("n2");
    assert_eq!(read(&world.take_over(&other, "stuck").unwrap(), "kept").unwrap(), noise(1, 100_000));
    assert_eq!(world.take_over(&other, "busy").unwrap().totals().inodes, 51);
}

/// One workspace has all that the node may have unpublished: the others keep their share, and what waits is woken.
#[test]
fn neighbours_of_a_hog_keep_their_share_of_the_node() {
    let faults = Faults::default();
    let world = World::over(Store::memory(Env::real()).wrapped(|b| faults.wrap(b)));
    let engine = world.open("n1", EngineOptions { backlog_node: 16 * MIB, ..world.options("n1") });
    let all: Vec<_> = ["hog", "busy", "idle"].into_iter().map(|n| world.attach(&engine, n)).collect();
    all.iter().for_each(|w| world.flush(w));
    let [hog, busy, idle] = all.as_slice() else { unreachable!() };
    faults.set_down(true);
    let large = Cost { bytes: 200_000, exempt: false };
    let mut written = 0;
    while hog.admit(large) != Admission::Wait {
        put(hog, &format!("f{written}"), &noise(written, 200_000));
        written += 1;
        assert!(written < 200, "the node's bound never came");
    }
    assert!((60..=84).contains(&written), "16 MiB of the node, far below its own gibibyte: {written}");
    // Up to a 128th of it.
    let small = Cost { bytes: 4096, exempt: false };
    let mut share = 0;
    while busy.admit(small) != Admission::Wait {
        put(busy, &format!("f{share}"), &noise(share, 4096));
        share += 1;
        assert!(share < 100, "the share never ended");
    }
    assert!((20..=32).contains(&share), "{share}");
    let woken = Arc::new(AtomicUsize::new(0));
    for (w, cost) in [(hog, large), (busy, small)] {
        let woken = woken.clone();
        w.when_room(cost, Box::new(move || _ = woken.fetch_add(1, Ordering::SeqCst)));
    }
    assert_eq!(idle.admit(large), Admission::Go, "nothing would wake it: it has nothing to publish");
    put(idle, "f", b"x");
    assert_eq!(read(idle, "f").unwrap(), b"x");
    assert_eq!(woken.load(Ordering::SeqCst), 0);
    faults.set_down(false);
    eventually("both are woken", || woken.load(Ordering::SeqCst) == 2);
    all.iter().for_each(|w| world.flush(w));
    assert_eq!(hog.admit(large), Admission::Go);
}
