//! Readers poll only where they may, and sleep when nothing comes.

use std::sync::Arc;

use hiloop_transport::{Config, Spin, Spinners, allowed_cpus};

use crate::rig::{Rig, config, null};

#[test]
fn one_reader_polls_on_a_cpu_in_all_sessions() {
    let spinners = Spinners::default();
    let rig = || {
        // One reader each, so that both are bound to the first CPU.
        let config = Config { readers: 1, spin: Spin::Always, spinners: spinners.clone(), ..config() };
        Rig::new(Arc::new(null()), config)
    };
    let (a, b) = (rig(), rig());
    let cpu = allowed_cpus()[0];
    let work = || (0..300).for_each(|_| [&a, &b].into_iter().for_each(Rig::statfs));
    let before = {
        let turn = spinners.enter(cpu);
        // Whoever has it right now gives it back within its window.
        let _turn = turn.unwrap_or_else(|| std::iter::repeat_with(|| spinners.enter(cpu)).flatten().next().unwrap());
        let spins = |r: &Rig| r.session.stats().spins;
        let before = (spins(&a), spins(&b));
        work();
        assert_eq!((spins(&a), spins(&b)), before, "somebody else polls on this CPU");
        assert!(a.session.stats().spins_refused > 0 && b.session.stats().spins_refused > 0);
        before
    };
    work();
    let (a, b) = (a.session.stop_and_count(), b.session.stop_and_count());
    assert!(a > before.0 && b > before.1);
    assert_eq!(spinners.turns(cpu), a + b + 1);
}

trait StopAndCount {
    fn stop_and_count(&self) -> u64;
}

impl StopAndCount for hiloop_transport::Session {
    fn stop_and_count(&self) -> u64 {
        self.stop();
        self.stats().spins
    }
}

#[test]
fn readers_that_are_told_not_to_poll_do_not() {
    let r = Rig::new(Arc::new(null()), Config { spin: Spin::Off, ..config() });
    (0..50).for_each(|_| r.statfs());
    let s = r.session.stats();
    assert_eq!((s.spins, s.polls, s.spins_refused), (0, 0, 0));
}

/// On-CPU nanoseconds of the readers, and whether all of them sleep.
fn readers(prefix: &str) -> (u64, bool) {
    let mut sum = (0, true);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // Threads of other tests come and go.
        let (Ok(name), Ok(sched), Ok(stat)) = (["comm", "schedstat", "stat"].map(|f| std::fs::read_to_string(task.join(f)))).into() else {
            continue;
        };
        if name.starts_with(prefix) {
            sum.0 += sched.split(' ').next().unwrap().parse::<u64>().unwrap();
            sum.1 &= stat.rsplit(')').next().unwrap().trim_start().starts_with('S');
        }
    }
    sum
}

#[test]
fn quiet_costs_nothing() {
    let r = Rig::new(Arc::new(null()), Config { name: "quiet".into(), readers: 2, spin: Spin::Always, ..config() });
    (0..100).for_each(|_| r.statfs());
    while r.session.stats().blocked < 2 || !readers("quiet").1 {
        std::thread::yield_now();
    }
    let before = (r.session.stats(), readers("quiet").0);
    // A while of other people's work.
    let busy = (0..2_000_000u64).fold(0, |n: u64, m| n.wrapping_mul(31).wrapping_add(std::hint::black_box(m)));
    assert_ne!(busy, 1);
    assert_eq!((r.session.stats(), readers("quiet").0), before);
    assert!(before.1 > 0 && before.0.spins > 0);
}
