//! What survives what (`protocols.md` 1).

use crate::kit::{World, eventually, name, noise, put, read, request};
use hiloop_engine::catalog::{Catalog, Head};
use hiloop_engine::node::{AttachRequest, EngineOptions};
use hiloop_engine::workspace::{Residency, Standing};
use hiloop_env::Env;
use hiloop_journal::JournalOptions;
use hiloop_store::faults::{Fault, Faults, Rule};
use hiloop_store::{Call, Store};

#[test]
fn killed_keeps_accepted() {
    let world = World::new();
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    let (small, large) = (b"hello".to_vec(), noise(1, 3_000_000));
    put(&w, "small", &small);
    put(&w, "large", &large);
    world.flush(&w);
    put(&w, "small", b"changed after the flush");
    put(&w, "late", &noise(2, 500_000));
    let epoch = w.epoch();
    drop(w);
    let engine = world.kill(engine, "n1", "n1-again");
    let w = world.attach(&engine, "ws");
    assert_eq!(w.epoch(), epoch, "a restarted daemon keeps its session");
    assert_eq!(read(&w, "small").unwrap(), b"changed after the flush");
    assert_eq!(read(&w, "late").unwrap(), noise(2, 500_000));
    assert_eq!(read(&w, "large").unwrap(), large);
    // And what was recovered is published like everything else.
    world.flush(&w);
    let other = world.node("n2");
    let w2 = world.take_over(&other, "ws").unwrap();
    assert_eq!(read(&w2, "small").unwrap(), b"changed after the flush");
    assert_eq!(read(&w2, "late").unwrap(), noise(2, 500_000));
}

#[test]
fn node_lost_keeps_published() {
    let world = World::new();
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    for i in 0..200u64 {
        put(&w, &format!("f{i}"), &noise(i, 1 + i as usize * 97));
    }
    world.flush(&w);
    let totals = w.totals();
    let other = world.node("n2");
    let w2 = world.take_over(&other, "ws").unwrap();
    for i in 0..200u64 {
        assert_eq!(read(&w2, &format!("f{i}")).unwrap(), noise(i, 1 + i as usize * 97), "f{i}");
    }
    assert_eq!(w2.totals(), totals);
    assert_eq!(w2.totals().inodes, 201);
}

#[test]
fn a_miss_waits_for_a_store_that_is_away() {
    use hiloop_env::Env;
    use hiloop_store::faults::{Fault, Faults, Rule};
    use hiloop_store::{Call, Store};
    use hiloop_types::ErrorKind;

    let faults = Faults::default();
    let world = World::over(Store::memory(Env::real()).wrapped(|b| faults.wrap(b)));
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    put(&w, "f", &noise(1, 300_000));
    world.flush(&w);
    let other = world.node("n2");
    let w2 = world.take_over(&other, "ws").unwrap();
    // More often than one fetch asks.
    let away = faults.inject(Rule::on(Fault::Before(ErrorKind::Unavailable)).call(Call::GetRange).times(5));
    assert_eq!(read(&w2, "f").unwrap(), noise(1, 300_000));
    assert_eq!(away.fired(), 5);
}

#[test]
fn overwrites_and_truncation_survive_publishing() {
    let world = World::new();
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    let mut model = noise(7, 700_000);
    put(&w, "f", &model);
    world.flush(&w);
    let ino = w.read_blocking(|v| hiloop_engine::workspace::Read::entry(v, hiloop_types::ROOT_INO, b"f")).unwrap().unwrap().ino;
    for round in 0..30u64 {
        let at = (round * 23_311) as usize % 690_000;
        let patch = noise(100 + round, 1 + (round as usize * 311) % 9000);
        w.update_blocking(|txn| {
            let mut attr = hiloop_engine::workspace::Read::attr(txn, ino)?.unwrap();
            txn.write(ino, &mut attr, at as u64, &patch)?;
            txn.put_attr(ino, attr)
        })
        .unwrap();
        let end = (at + patch.len()).max(model.len());
        model.resize(end, 0);
        model[at..at + patch.len()].copy_from_slice(&patch);
        if round % 7 == 3 {
            world.flush(&w);
        }
        assert_eq!(read(&w, "f").unwrap(), model, "round {round}");
    }
    w.update_blocking(|txn| {
        let mut attr = hiloop_engine::workspace::Read::attr(txn, ino)?.unwrap();
        txn.truncate(ino, &mut attr, 300_001)?;
        txn.put_attr(ino, attr)
    })
    .unwrap();
    model.truncate(300_001);
    world.flush(&w);
    let w2 = world.take_over(&world.node("n2"), "ws").unwrap();
    assert_eq!(read(&w2, "f").unwrap(), model);
}

#[test]
fn a_clean_detach_loses_nothing_and_says_so() {
    let world = World::new();
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    put(&w, "f", &noise(1, 100_000));
    let report = world.runtime.block_on(engine.detach(&w, std::time::Duration::from_secs(30))).unwrap();
    assert_eq!((report.left_bytes, report.released), (0, true));
    let catalog = Catalog::new(world.store.clone(), Env::real());
    let head = world.runtime.block_on(catalog.require::<Head>(name("ws").as_str())).unwrap().doc;
    assert_eq!(head.release.unwrap().tail, 0);
    // Another node need not watch, and nothing was lost.
    let other = world.node("n2");
    let (w2, report) = world.runtime.block_on(other.attach(crate::kit::request("ws"))).unwrap();
    assert_eq!(report.lost_window, hiloop_engine::catalog::LostWindow::None);
    assert_eq!(read(&w2, "f").unwrap(), noise(1, 100_000));
}

#[test]
fn a_quota_given_to_a_restarted_daemon_holds_and_stays() {
    let world = World::new();
    let engine = world.node("n1");
    let quota = |q| AttachRequest { quota: Some(q), ..request("ws") };
    let (w, _) = world.runtime.block_on(engine.attach(quota(1 << 20))).unwrap();
    put(&w, "f", b"1");
    world.flush(&w);
    put(&w, "unpublished", b"2");
    drop(w);
    let engine = world.kill(engine, "n1", "n1-again");
    let (w, report) = world.runtime.block_on(engine.attach(quota(5 << 20))).unwrap();
    assert!(report.recovered_operations > 0 && !report.created, "the same opening goes on: {report:?}");
    assert_eq!((w.quota(), w.status().quota), (Some(5 << 20), Some(5 << 20)));
    world.flush(&w);
    world.runtime.block_on(engine.detach(&w, std::time::Duration::from_secs(60))).unwrap();
    let w = world.attach(&world.node("n2"), "ws");
    assert_eq!(w.quota(), Some(5 << 20));
    // Forks inherit it.
    world.flush(&w);
    assert_eq!(world.fork(&world.node("n3"), "child", "workspace:ws").quota(), Some(5 << 20));
    // 0 takes it away, for good.
    drop(w);
    let take = |q| AttachRequest { take_over: true, ..quota(q) };
    let fifth = world.node("n5");
    let (w, _) = world.runtime.block_on(fifth.attach(take(0))).unwrap();
    assert_eq!((w.quota(), w.status().quota), (None, None));
    world.runtime.block_on(fifth.detach(&w, std::time::Duration::from_secs(60))).unwrap();
    assert_eq!(world.attach(&world.node("n6"), "ws").quota(), None);
}

#[test]
fn what_is_on_the_node_is_counted_without_fetching_anything() {
    let world = World::new();
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    assert_eq!(w.residency(), Residency { complete: true, ..Residency::default() }, "nothing is published");
    for i in 0..10 {
        put(&w, &format!("f{i}"), &noise(i, 100_000));
    }
    world.flush(&w);
    let here = w.residency();
    assert!(here.complete && here.chunks >= 10 && here.bytes >= 1_000_000 && here.nodes_absent == 0, "{here:?}");
    assert_eq!((here.chunks_local, here.bytes_local), (here.chunks, here.bytes), "the writer keeps what it wrote");
    world.runtime.block_on(engine.detach(&w, std::time::Duration::from_secs(60))).unwrap();
    // Elsewhere, one file is read and the others are not.
    let other = world.node("n2");
    let w = world.attach(&other, "ws");
    read(&w, "f3").unwrap();
    let before = other.status().cache.fills;
    let part = w.residency();
    assert_eq!(other.status().cache.fills, before, "asking fetches nothing");
    assert!(part.complete && part.chunks == here.chunks && part.chunks_local > 0 && part.chunks_local < part.chunks, "{part:?}");
    for i in 0..10 {
        assert_eq!(read(&w, &format!("f{i}")).unwrap(), noise(i, 100_000));
    }
    assert_eq!(w.residency().chunks_local, here.chunks);
}

/// spkenv/spk#904, libkrun/libkrun#80: a clock that jumps makes `make` loop, or fences a writer.
#[test]
fn file_times_never_go_back_while_a_workspace_is_open() {
    let world = World::new();
    let (env, clock) = Env::simulated(3);
    let hours = |h: u64| std::time::Duration::from_secs(1_700_000_000 + h * 3600);
    clock.set_wall_offset(hours(10));
    let engine = world.open_in("n1", world.options("n1"), env);
    let w = world.attach(&engine, "ws");
    let mut last = w.now();
    for at in [hours(10), hours(11), hours(9), hours(10), hours(12), hours(0)] {
        clock.set_wall_offset(at);
        let ino = put(&w, "f", b"x");
        let written = w.read_blocking(|v| hiloop_engine::workspace::Read::attr(v, ino)).unwrap().unwrap().mtime;
        assert!(written >= last, "{written:?} after {last:?}");
        last = written;
    }
    world.flush(&w);
    assert!(matches!(w.status().standing, Standing::Live), "time does not fence");
}

/// Found by the simulator: a trim of the journal while a workspace was being opened took the record of the opening with it, and a restart
/// dropped all that was written since, synced or not.
#[test]
fn an_opening_outlives_a_trim_of_the_journal_beside_it() {
    let faults = Faults::default();
    let world = World::over(Store::memory(Env::real()).wrapped(|b| faults.wrap(b)));
    let journal = JournalOptions { segment_size: 64 << 10, ..JournalOptions::default() };
    let engine = world.open("n1", EngineOptions { journal, ..world.options("n1") });
    let busy = world.attach(&engine, "busy");
    let stalled = faults.inject(Rule::on(Fault::Stall).call(Call::Put).key("lineage/ws"));
    let inner = engine.clone();
    let attaching = world.runtime.spawn(async move { inner.attach(request("ws")).await });
    world.runtime.block_on(stalled.reached(1));
    for i in 0..60 {
        put(&busy, "f", &noise(i, 4000));
    }
    world.flush(&busy);
    eventually("the journal is trimmed", || engine.status().journal.segments == 1);
    stalled.release();
    let (w, _) = world.runtime.block_on(attaching).unwrap().unwrap();
    put(&w, "kept", b"1");
    world.runtime.block_on(engine.sync()).unwrap();
    let epoch = w.epoch();
    drop((w, busy));
    let engine = world.kill(engine, "n1", "n1-again");
    let w = world.attach(&engine, "ws");
    assert_eq!(w.epoch(), epoch, "a restarted daemon keeps its session");
    assert_eq!(read(&w, "kept").unwrap(), b"1");
}
