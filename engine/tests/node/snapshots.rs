//! Snapshots and forks of a workspace that goes on being written.

use crate::kit::{World, name, noise, put, read};

#[test]
fn a_snapshot_holds_its_cut_and_forks_diverge() {
    let world = World::new();
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    put(&w, "f", b"before");
    let (tx, rx) = tokio::sync::oneshot::channel();
    let cut = world.runtime.block_on(w.snapshot(&name("s1"), move |r| drop(tx.send(r)))).unwrap();
    put(&w, "f", b"after");
    put(&w, "g", &noise(3, 400_000));
    let doc = world.runtime.block_on(rx).unwrap().unwrap();
    assert_eq!(doc.sequence, cut.0);
    let a = world.fork(&engine, "a", "snapshot:s1");
    let b = world.fork(&engine, "b", "snapshot:s1");
    assert_eq!(read(&a, "f").unwrap(), b"before");
    assert_eq!(read(&a, "g"), None);
    put(&a, "f", b"of a");
    put(&b, "only-b", b"x");
    world.flush(&a);
    world.flush(&b);
    assert_eq!(read(&w, "f").unwrap(), b"after");
    assert_eq!(read(&b, "f").unwrap(), b"before");
    assert_eq!(read(&a, "only-b"), None);
    let again = world.runtime.block_on(w.snapshot(&name("s1"), |_| {})).unwrap_err();
    assert_eq!(again.kind(), hiloop_types::ErrorKind::Conflict);
}

#[test]
fn a_cut_without_changes_is_a_snapshot_too() {
    let world = World::new();
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    put(&w, "f", b"x");
    world.flush(&w);
    for s in ["s1", "s2"] {
        let (tx, rx) = tokio::sync::oneshot::channel();
        world.runtime.block_on(w.snapshot(&name(s), move |r| drop(tx.send(r)))).unwrap();
        world.runtime.block_on(rx).unwrap().unwrap();
    }
    let f = world.fork(&engine, "f", "s2");
    assert_eq!(read(&f, "f").unwrap(), b"x");
}

#[test]
fn a_read_only_opening_reads_under_a_lease_and_changes_nothing() {
    let world = World::new();
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    put(&w, "f", &noise(1, 200_000));
    world.flush(&w);
    let ro = world.runtime.block_on(engine.attach_read_only(crate::kit::URL, "workspace:ws")).unwrap();
    put(&w, "f", b"changed");
    world.flush(&w);
    assert_eq!(read(&ro, "f").unwrap(), noise(1, 200_000), "it stays at the tree it opened");
    let leases = || world.runtime.block_on(world.store.list("leases/")).unwrap().len();
    assert_eq!(leases(), 1);
    let refused = ro.update(|txn| txn.new_ino()).unwrap_err();
    assert!(matches!(refused, hiloop_engine::stop::Stop::Error(e) if e.to_string().contains("read-only")));
    drop(ro);
    crate::kit::eventually("the lease is given back", || leases() == 0);
}

#[test]
fn a_local_snapshot_survives_a_kill_between_the_head_and_its_object() {
    use hiloop_engine::catalog::{Catalog, SnapshotDoc};
    use hiloop_env::Env;
    use hiloop_store::faults::{Fault, Faults, Rule};
    use hiloop_types::ErrorKind;

    let faults = Faults::default();
    let world = World::over(hiloop_store::Store::memory(Env::real()).wrapped(|b| faults.wrap(b)));
    let engine = world.node("n1");
    let w = world.attach(&engine, "ws");
    put(&w, "f", b"cut");
    let refused = faults.inject(Rule::on(Fault::Before(ErrorKind::Unavailable)).key("snapshots/s1").after(1).times(u64::MAX));
    let cut = world.runtime.block_on(w.snapshot(&name("s1"), |_| {})).unwrap();
    crate::kit::eventually("the head stands at the cut and the snapshot is not put", || refused.fired() > 0);
    put(&w, "f", b"later");
    let engine = world.kill(engine, "n1", "n1-again");
    refused.release();
    faults.calm();
    let w = world.attach(&engine, "ws");
    let catalog = Catalog::new(world.store.clone(), Env::real());
    let found = || world.runtime.block_on(catalog.get::<SnapshotDoc>("s1")).unwrap();
    crate::kit::eventually("the snapshot is put", || found().is_some());
    assert_eq!(found().unwrap().doc.sequence, cut.0);
    assert_eq!(read(&world.fork(&engine, "fork", "snapshot:s1"), "f").unwrap(), b"cut");
    assert_eq!(read(&w, "f").unwrap(), b"later");
}
