//! One writer per workspace (`protocols.md` 3).

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;

use crate::kit::{URL, World, eventually, noise, put, read, request};
use hiloop_engine::catalog::{DeletedKind, LostWindow};
use hiloop_engine::context::StoreContext;
use hiloop_engine::delete::delete;
use hiloop_engine::fsck::{FsckOptions, fsck};
use hiloop_engine::node::{AttachRequest, EngineOptions, StoreOpener};
use hiloop_engine::workspace::Standing;
use hiloop_env::Env;
use hiloop_store::faults::{Fault, Faults, Rule};
use hiloop_store::{Call, PutOutcome, Store};
use hiloop_types::ErrorKind;

#[test]
fn a_live_writer_is_refused_by_name_and_fenced_on_demand() {
    let world = World::new();
    let first = world.node("n1");
    let w = world.attach(&first, "ws");
    put(&w, "a", b"1");
    world.flush(&w);
    let second = world.patient_node("n2");
    let refused = world.runtime.block_on(second.attach(request("ws"))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("node n1") && refused.to_string().contains("--take-over"), "{refused}");
    let w2 = world.take_over(&second, "ws").unwrap();
    assert!(w2.epoch() > w.epoch());
    // Idle as it is, the first writer notices with its next heartbeat.
    eventually("the idle writer is fenced", || matches!(w.status().standing, Standing::Fenced { .. }));
    let refused = w.update(|txn| txn.new_ino()).unwrap_err();
    let hiloop_engine::stop::Stop::Error(e) = refused else { panic!("{refused:?}") };
    assert_eq!(e.kind(), ErrorKind::Fenced);
    assert_eq!(read(&w, "a").unwrap(), b"1", "local reads go on");
}

#[test]
fn fenced_tail_becomes_a_fork() {
    let world = World::new();
    let first = world.deaf_node("n1");
    let w = world.attach(&first, "ws");
    put(&w, "published", b"1");
    world.flush(&w);
    let second = world.node("n2");
    let w2 = world.take_over(&second, "ws").unwrap();
    put(&w2, "theirs", b"2");
    world.flush(&w2);
    // Accepted by the first writer, which does not know yet; its attempt to publish tells it.
    let tail = noise(5, 300_000);
    put(&w, "tail", &tail);
    eventually("the first writer is fenced", || matches!(w.status().standing, Standing::Fenced { .. }));
    // Whoever waits for durability from now on is told at once, and not left waiting; found by the simulator too.
    let flush = w.flush().now_or_never().expect("a flush after the fence is answered at once");
    assert_eq!(flush.unwrap_err().kind(), ErrorKind::Fenced);
    let (tell, told) = std::sync::mpsc::channel();
    w.sync(w.accepted(), Box::new(move |r| tell.send(r).unwrap()));
    assert_eq!(told.recv().unwrap().unwrap_err().kind(), ErrorKind::Fenced, "fsync fails, however durable the tail is here");
    let late = w.snapshot(&crate::kit::name("late"), |_| ()).now_or_never().expect("so is a snapshot");
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Fenced);
    let detached = world.runtime.block_on(first.detach(&w, std::time::Duration::from_secs(1))).unwrap();
    assert!(detached.left_bytes >= 300_000 && !detached.released, "{detached:?}");
    assert_eq!(first.status().tails, 1, "its tail is put aside");
    let recovered = world.runtime.block_on(first.recover(crate::kit::URL)).unwrap();
    assert_eq!(recovered.len(), 1);
    assert_eq!(recovered[0].from.as_str(), "ws");
    assert!(recovered[0].operations >= 1 && recovered[0].bytes >= 300_000, "{recovered:?}");
    let fork = world.attach(&second, recovered[0].name.as_str());
    assert_eq!(read(&fork, "tail").unwrap(), tail);
    assert_eq!(read(&fork, "published").unwrap(), b"1");
    assert_eq!(read(&fork, "theirs"), None);
    assert_eq!(read(&w2, "tail"), None);
    assert_eq!(world.runtime.block_on(first.recover(crate::kit::URL)).unwrap().len(), 0, "nothing is recovered twice");
}

/// A workspace that was deleted keeps the tail of no other from being recovered.
#[test]
fn a_tail_that_is_lost_keeps_no_other_from_recovery() {
    let world = World::new();
    let first = world.deaf_node("n1");
    let (a, b) = (world.attach(&first, "a"), world.attach(&first, "b"));
    for w in [&a, &b] {
        put(w, "published", b"1");
        world.flush(w);
    }
    let second = world.node("n2");
    let theirs = world.take_over(&second, "b").unwrap();
    let ctx = StoreContext::new(world.store.clone(), Env::real(), "test:1");
    world.runtime.block_on(delete(&ctx, DeletedKind::Workspace, "a", true)).unwrap();
    for w in [&a, &b] {
        put(w, "tail", b"2");
        eventually("it is fenced", || matches!(w.status().standing, Standing::Fenced { .. }));
        world.runtime.block_on(first.detach(w, Duration::from_secs(1))).unwrap();
    }
    // What a deletion cut off is kept for a while; afterwards the tail stands on nothing.
    world.runtime.block_on(world.store.delete("cutoffs/a/0000000000000001")).unwrap();
    let e = world.runtime.block_on(first.recover(URL)).unwrap_err();
    assert!(e.kind() == ErrorKind::NotFound && e.to_string().contains("b-recovered-1"), "{e}");
    drop(theirs);
    assert_eq!(read(&world.attach(&second, "b-recovered-1"), "tail").unwrap(), b"2");
}

/// Found by the simulator: the second opening took the head over from the first, on its own node.
#[test]
fn two_attaches_at_once_do_not_fence_each_other() {
    let world = World::new();
    let engine = world.node("n1");
    let both = || AttachRequest { take_over: true, ..request("ws") };
    let (a, b) = world.runtime.block_on(async { tokio::join!(engine.attach(both()), engine.attach(both())) });
    let refused = [a.as_ref().err(), b.as_ref().err()].into_iter().flatten().map(|e| e.kind()).collect::<Vec<_>>();
    assert_eq!(refused, [ErrorKind::Conflict], "one is attached, one is told");
    let (w, _) = a.or(b).unwrap();
    put(&w, "a", b"1");
    world.flush(&w);
}

#[test]
fn lost_window_is_recorded() {
    let world = World::new();
    let first = world.node("n1");
    let w = world.attach(&first, "ws");
    put(&w, "a", b"1");
    world.flush(&w);
    drop((w, first));
    let second = world.node("n2");
    let (_, report) = world.runtime.block_on(second.attach(request("ws"))).unwrap();
    assert!(matches!(report.lost_window, LostWindow::Possible), "{report:?}");
}

/// Found by the simulator: a publish was on its way when the daemon died, and landed after the next one had gone on with the tail. What a
/// take-over then left to recover began in the middle of that tail, and what stood in both was counted twice.
#[test]
fn a_publish_that_lands_after_a_restart_is_counted_once() {
    let faults = Faults::default();
    let plain = Store::memory(Env::real());
    let world = World::over(plain.wrapped(|b| faults.wrap(b)));
    let first = world.node("n1");
    let w = world.attach(&first, "ws");
    world.flush(&w);
    let late = faults.inject(Rule::on(Fault::Late).call(Call::Swap).key("heads/ws").times(u64::MAX));
    put(&w, "a", &noise(1, 70_000));
    world.runtime.block_on(late.reached(1));
    drop(w);
    let first = world.kill(first, "n1", "n1-again");
    let w = world.attach(&first, "ws");
    put(&w, "b", &noise(2, 5000));
    put(&w, "a", &noise(3, 100));
    let landed = world.runtime.block_on(late.land());
    assert!(matches!(landed[0], Ok(PutOutcome::Done(_))), "{landed:?}");
    let stores: StoreOpener = Arc::new(move |_, _, _| {
        let store = plain.clone();
        Box::pin(async move { Ok(store) })
    });
    let second = world.open("n2", EngineOptions { stores, ..world.options("n2") });
    let theirs = world.take_over(&second, "ws").unwrap();
    assert_eq!(read(&theirs, "a").unwrap(), noise(1, 70_000), "what landed");
    eventually("the first writer is fenced", || matches!(w.status().standing, Standing::Fenced { .. }));
    faults.calm();
    world.runtime.block_on(first.detach(&w, Duration::from_secs(60))).unwrap();
    let recovered = world.runtime.block_on(first.recover(URL)).unwrap();
    let fork = world.attach(&second, recovered[0].name.as_str());
    assert_eq!((read(&fork, "a").unwrap(), read(&fork, "b").unwrap()), (noise(3, 100), noise(2, 5000)));
    let ctx = StoreContext::new(world.store.clone(), Env::real(), "test:1");
    let report = world.runtime.block_on(fsck(&ctx, &FsckOptions { deep: true, source: None })).unwrap();
    assert!(report.is_clean(), "{report:?}");
}
