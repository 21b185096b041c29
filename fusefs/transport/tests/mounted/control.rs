//! Notifications, the in-hand table, passthrough.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

use hiloop_transport::abi::{self, Opcode, fopen, init};
use hiloop_transport::null::NullFs;
use hiloop_transport::{Config, FileSystem, InHand, InitConfig, Opened, Operation, Reply, Request, device};
use nix::sys::stat::{Mode, SFlag, mknod};

use crate::rig::{PATIENCE, Rig, Tally, config, null, wrapped};

fn counting() -> (Arc<dyn FileSystem>, Tally) {
    let tally = Tally::default();
    let seen = tally.clone();
    let fs = wrapped(move |request, reply| {
        seen.count(request.opcode);
        Some(reply)
    });
    (fs, tally)
}

#[test]
fn names_are_asked_for_again_once_they_are_invalid() {
    let (fs_, tally) = counting();
    let r = Rig::new(fs_, config());
    let (path, notifier) = (r.path("gone"), r.session.notifier());
    let look = || {
        let before = tally.of(Opcode::LOOKUP);
        assert!(fs::metadata(&path).is_err());
        tally.of(Opcode::LOOKUP) - before
    };
    assert_eq!((look(), look()), (1, 0));
    assert!(notifier.inval_entry(abi::ROOT, b"gone", false).unwrap());
    assert_eq!((look(), look()), (1, 0));
    assert!(!notifier.inval_entry(abi::ROOT, b"never heard of", false).unwrap());
    notifier.inc_epoch().unwrap();
    assert_eq!((look(), look()), (1, 0));
    assert!(notifier.inval_entry(abi::ROOT, b"gone", true).unwrap());
    assert_eq!((look(), look()), (1, 0));
}

#[test]
fn attributes_are_asked_for_again_once_they_are_invalid() {
    let (fs_, tally) = counting();
    let r = Rig::new(fs_, config());
    fs::write(r.path("f"), "x").unwrap();
    let node = fs::metadata(r.path("f")).unwrap().ino();
    // Which of the two depends on whether the caller wants the time of creation.
    let asked = || tally.of(Opcode::GETATTR) + tally.of(Opcode::STATX);
    let before = asked();
    fs::metadata(r.path("f")).unwrap();
    assert_eq!(asked(), before);
    assert!(r.session.notifier().inval_inode(node, 0, 0).unwrap());
    assert!(!r.session.notifier().inval_inode(4711, 0, 0).unwrap());
    fs::metadata(r.path("f")).unwrap();
    assert_eq!(asked(), before + 1);
    r.session.notifier().prune(&[node]).unwrap();
}

#[test]
fn a_removal_is_made_known() {
    let r = Rig::new(Arc::new(null()), config());
    fs::write(r.path("f"), "x").unwrap();
    let node = fs::metadata(r.path("f")).unwrap().ino();
    assert!(r.session.notifier().delete(abi::ROOT, node, b"f").unwrap());
    assert!(!r.session.notifier().delete(abi::ROOT, node, b"unknown").unwrap());
}

/// Hears what was retrieved.
struct Retrieving(NullFs, mpsc::Sender<(u64, u64, u64, Vec<u8>)>);

impl FileSystem for Retrieving {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.0.handle(request, reply);
    }
    fn forget(&self, nodeid: u64, nlookup: u64) {
        self.0.forget(nodeid, nlookup);
    }
    fn retrieved(&self, id: u64, nodeid: u64, offset: u64, data: &[u8]) {
        self.1.send((id, nodeid, offset, data.to_vec())).unwrap();
    }
}

#[test]
fn content_goes_into_the_page_cache_and_comes_back() {
    let (tx, rx) = mpsc::channel();
    let r = Rig::new(Arc::new(Retrieving(null(), tx)), config());
    fs::write(r.path("f"), [7; 8192]).unwrap();
    let node = fs::metadata(r.path("f")).unwrap().ino();
    assert!(r.session.notifier().store(node, 4096, &[8; 4096]).unwrap());
    let read = fs::read(r.path("f")).unwrap();
    assert!(read[..4096] == [7; 4096] && read[4096..] == [8; 4096], "what was stored is what is read");
    assert!(r.session.notifier().retrieve(12, node, 4096, 4096).unwrap());
    let (id, of, offset, data) = rx.recv_timeout(PATIENCE).unwrap();
    assert_eq!((id, of, offset), (12, node, 4096));
    assert!(data == [8; 4096]);
    assert!(!r.session.notifier().store(4711, 0, b"x").unwrap());
}

#[derive(Debug, PartialEq)]
enum Event {
    Received(u64, Opcode, u64),
    Applied(u64, Vec<u8>),
    Answered(u64),
}

#[derive(Default)]
struct Recorder(Mutex<Vec<Event>>);

impl InHand for Recorder {
    fn received(&self, unique: u64, opcode: Opcode, nodeid: u64) {
        self.0.lock().unwrap().push(Event::Received(unique, opcode, nodeid));
    }
    fn applied(&self, unique: u64, result: &[u8]) {
        self.0.lock().unwrap().push(Event::Applied(unique, result.to_vec()));
    }
    fn answered(&self, unique: u64) {
        self.0.lock().unwrap().push(Event::Answered(unique));
    }
}

#[test]
fn the_table_hears_of_a_change_in_order_and_its_record_answers_again() {
    let table = Arc::new(Recorder::default());
    let known = table.clone();
    let fs_ = wrapped(move |request, reply| match request.op {
        // What a successor does with a request that was done before.
        Operation::MkNod { name: b"again", .. } => {
            let events = known.0.lock().unwrap();
            let message = events.iter().find_map(|e| if let Event::Applied(_, m) = e { Some(m.clone()) } else { None }).unwrap();
            drop(events);
            reply.recorded(&message);
            None
        }
        _ => Some(reply),
    });
    let r = Rig::new(fs_, Config { readers: 1, table: table.clone(), ..config() });
    mknod(&r.path("first"), SFlag::S_IFREG, Mode::S_IRUSR, 0).unwrap();
    // A second request comes after the first is through with the table.
    r.statfs();
    {
        let events = table.0.lock().unwrap();
        let at = events.iter().position(|e| matches!(e, Event::Received(_, Opcode::MKNOD, abi::ROOT))).unwrap();
        let Event::Received(unique, ..) = events[at] else { unreachable!() };
        let Event::Applied(applied, message) = &events[at + 1] else { panic!("{:?}", events[at + 1]) };
        assert_eq!((*applied, message.len()), (unique, 16 + 128));
        assert_eq!(events[at + 2], Event::Answered(unique));
        assert!(!events.iter().any(|e| matches!(e, Event::Applied(u, _) if *u != unique)), "only changes are recorded");
    }
    mknod(&r.path("again"), SFlag::S_IFREG, Mode::S_IRUSR, 0).unwrap();
    let ino = |name| fs::metadata(r.path(name)).unwrap().ino();
    assert_eq!(ino("first"), ino("again"));
}

#[test]
fn a_backing_file_is_read_without_us() {
    let backing = tempfile::NamedTempFile::new().unwrap();
    fs::write(backing.path(), "from the backing file").unwrap();
    let id = Arc::new(AtomicI32::new(0));
    let tally = Tally::default();
    let (known, seen) = (id.clone(), tally.clone());
    let fs_ = wrapped(move |request, reply| {
        seen.count(request.opcode);
        match request.op {
            Operation::Open { .. } => {
                reply.opened(Opened { fh: 0, flags: fopen::PASSTHROUGH, backing_id: known.load(SeqCst) });
                None
            }
            _ => Some(reply),
        }
    });
    let init = InitConfig { require: init::PASSTHROUGH, max_stack_depth: 1, ..config().init };
    let r = Rig::new(fs_, Config { init, ..config() });
    mknod(&r.path("f"), SFlag::S_IFREG, Mode::S_IRUSR, 0).unwrap();
    id.store(device::backing_open(r.session.device(), File::open(backing.path()).unwrap()).unwrap(), SeqCst);
    assert_eq!(fs::read(r.path("f")).unwrap(), b"from the backing file");
    assert_eq!((tally.of(Opcode::OPEN), tally.of(Opcode::READ)), (1, 0));
    device::backing_close(r.session.device(), id.load(SeqCst)).unwrap();
    assert!(device::backing_close(r.session.device(), 4711).is_err());
}
