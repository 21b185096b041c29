//! A caller who waits can be killed.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver};

use hiloop_transport::{Config, Operation, Parked};

use crate::rig::{PATIENCE, Rig, config, wait, wrapped};

/// A mount on which looking up `hold` is parked.
fn holding(readers: usize) -> (Rig, Receiver<Parked<()>>) {
    let (tx, rx) = mpsc::channel();
    let fs = wrapped(move |request, reply| match request.op {
        Operation::Lookup { name: b"hold" } => {
            tx.send(reply.park(())).unwrap();
            None
        }
        _ => Some(reply),
    });
    (Rig::new(fs, Config { readers, ..config() }), rx)
}

fn cat(r: &Rig) -> std::process::Child {
    Command::new("cat").arg(r.path("hold")).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_killed_caller_of_a_parked_request_dies() {
    for readers in [1, 2] {
        let (r, parked) = holding(readers);
        for _ in 0..10 {
            let mut child = cat(&r);
            let held = parked.recv_timeout(PATIENCE).unwrap();
            assert!(!held.is_interrupted());
            child.kill().unwrap();
            assert_eq!(wait(child).signal(), Some(libc::SIGKILL));
            assert!(held.is_interrupted());
            assert!(held.take().is_none(), "it was answered with EINTR and must not be done");
        }
        r.session.stop();
        let s = r.session.stats();
        assert_eq!((r.session.in_hand(), s.unanswered), (0, 0));
        assert!(s.interrupts >= 10 || s.interrupts_early > 0, "{s:?}");
    }
}

#[test]
fn what_was_taken_back_is_answered_whoever_interrupts() {
    let (r, parked) = holding(1);
    let mut child = cat(&r);
    let reply = parked.recv_timeout(PATIENCE).unwrap().take().unwrap().0;
    child.kill().unwrap();
    // The interrupt may be on its way: it finds nothing to answer, and the answer is the one that counts.
    reply.error(libc::ENOENT);
    wait(child);
    r.session.stop();
    assert_eq!(r.session.in_hand(), 0);
}

#[test]
fn a_parked_reply_that_is_dropped_answers() {
    let (r, parked) = holding(1);
    let child = cat(&r);
    drop(parked.recv_timeout(PATIENCE).unwrap());
    assert_eq!(wait(child).code(), Some(1));
    assert_eq!(r.session.stats().unanswered, 1);
}

#[test]
fn a_hook_runs_once() {
    let ran = Arc::new(AtomicUsize::new(0));
    let (tx, rx) = mpsc::channel();
    let fs = wrapped({
        let ran = ran.clone();
        move |request, reply| match request.op {
            Operation::Lookup { name: b"hold" } => {
                let (ran, heard) = (ran.clone(), tx.clone());
                reply.on_interrupt(move || {
                    ran.fetch_add(1, SeqCst);
                    heard.send(None).unwrap();
                });
                tx.send(Some(reply)).unwrap();
                None
            }
            _ => Some(reply),
        }
    });
    let r = Rig::new(fs, config());
    let mut child = cat(&r);
    let reply = rx.recv_timeout(PATIENCE).unwrap().expect("the request comes first");
    child.kill().unwrap();
    assert!(rx.recv_timeout(PATIENCE).unwrap().is_none());
    reply.error(libc::EINTR);
    assert_eq!(wait(child).signal(), Some(libc::SIGKILL));
    assert_eq!(ran.load(SeqCst), 1);
}
