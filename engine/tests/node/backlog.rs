//! The bound on what is accepted and not published.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::kit::{World, eventually, noise, put, read, request};
use hiloop_engine::node::AttachRequest;
use hiloop_engine::workspace::{Admission, Cost};
use hiloop_env::Env;
use hiloop_store::Store;
use hiloop_store::faults::Faults;
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
