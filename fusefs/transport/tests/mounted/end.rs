//! How sessions end.

use std::fs;
use std::io;
use std::sync::Arc;

use hiloop_transport::abi::init;
use hiloop_transport::null::{init_config, mount};
use hiloop_transport::{Config, Ended, InitConfig, Operation, Session};

use crate::rig::{Rig, config, null, wrapped};

#[test]
fn an_unmount_ends_it() {
    let r = Rig::new(Arc::new(null()), config());
    fs::write(r.path("f"), "x").unwrap();
    assert!(r.session.is_running());
    r.mounted.unmount().unwrap();
    assert_eq!(r.session.wait(), Ended::Unmounted);
    assert!(!r.session.notifier().inval_entry(hiloop_transport::abi::ROOT, b"f", false).unwrap_or(false));
}

#[test]
fn an_abort_ends_it_and_callers_get_an_error() {
    let fs_ = wrapped(|request, reply| match request.op {
        Operation::Lookup { name: b"cut" } => {
            // For ever in hand; the reply is still there to be answered, to nobody.
            std::mem::forget(reply);
            None
        }
        _ => Some(reply),
    });
    let r = Rig::new(fs_, config());
    r.statfs();
    let path = r.path("cut");
    let caller = std::thread::spawn(move || fs::metadata(path));
    while r.session.in_hand() == 0 {
        std::thread::yield_now();
    }
    r.mounted.abort().unwrap();
    assert!(caller.join().unwrap().is_err());
    assert_eq!(r.session.wait(), Ended::Aborted);
}

#[test]
fn a_stop_leaves_the_mount() {
    let r = Rig::new(Arc::new(null()), config());
    assert_eq!(r.session.stop(), Ended::Stopped);
    assert!(!r.session.is_running());
    assert_eq!(r.session.stop(), Ended::Stopped, "once more changes nothing");
    r.mounted.unmount().unwrap();
}

#[test]
fn a_dropped_reply_is_eio() {
    let fs_ = wrapped(|request, reply| (!matches!(request.op, Operation::MkDir { .. })).then_some(reply));
    let r = Rig::new(fs_, config());
    assert_eq!(fs::create_dir(r.path("d")).unwrap_err().raw_os_error(), Some(libc::EIO));
    r.session.stop();
    assert_eq!((r.session.stats().unanswered, r.session.in_hand()), (1, 0));
}

#[test]
fn a_panic_fails_the_session_and_answers_its_caller() {
    let fs_ = wrapped(|request, reply| match request.op {
        Operation::MkDir { .. } => panic!("planted"),
        _ => Some(reply),
    });
    let r = Rig::new(fs_, Config { readers: 2, ..config() });
    assert_eq!(fs::create_dir(r.path("d")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(matches!(r.session.wait(), Ended::Failed(_)));
}

#[test]
fn what_the_kernel_lacks_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (device, mounted) = mount(dir.path()).unwrap();
    let init = InitConfig { require: 1 << 62, ..init_config() };
    let refused = Session::start(vec![device], Arc::new(null()), Config { init, ..config() }, |_, _| Ok(()));
    assert_eq!(refused.err().map(|e| e.kind()), Some(io::ErrorKind::Unsupported));
    drop(mounted);
}

#[test]
fn what_cannot_be_recorded_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let (device, mounted) = mount(dir.path()).unwrap();
    let refused = Session::start(vec![device], Arc::new(null()), config(), |_, _| Err(io::ErrorKind::StorageFull.into()));
    assert_eq!(refused.err().map(|e| e.kind()), Some(io::ErrorKind::StorageFull));
    drop(mounted);
}

#[test]
fn what_was_agreed_is_recorded_with_all_descriptors_before_it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let (device, _mounted) = mount(dir.path()).unwrap();
    let mut recorded = None;
    let config = Config { readers: 2, ..config() };
    let session = Session::start(vec![device], Arc::new(null()), config, |state, devices| {
        recorded = Some((*state, devices.len()));
        Ok(())
    })
    .unwrap();
    let (state, devices) = recorded.unwrap();
    assert_eq!((state, devices), (*session.init(), 2));
    assert!(state.has(init::HAS_RESEND) && state.has(init::DONT_MASK) && !state.has(init::WRITEBACK_CACHE));
    assert_eq!((state.max_write, state.max_pages), (1 << 20, 256));
}
