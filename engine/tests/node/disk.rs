//! A node disk that is slow: writers wait for it, nobody else does.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};

use hiloop_engine::node::EngineOptions;
use hiloop_engine::stop::{Miss, Stop};
use hiloop_engine::workspace::{Read, Workspace};
use hiloop_journal::{Disk, DiskFile, RealDisk};
use hiloop_types::limits::{KIB, STAGING_DIRTY};
use hiloop_types::{Ino, Seqno, limits};

use crate::kit::{World, noise, put, read};

/// The real disk, whose flushes wait while the gate is shut.
#[derive(Clone, Default)]
struct Gated(Arc<(Mutex<bool>, Condvar)>);

impl Gated {
    fn shut(&self, shut: bool) {
        *self.0.0.lock().unwrap() = shut;
        self.0.1.notify_all();
    }
    fn pass(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |shut| *shut).unwrap());
    }
    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(GatedFile { gate: self.clone(), file })
    }
}

impl Disk for Gated {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        RealDisk.open(path).map(|f| self.file(f))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        RealDisk.create(path).map(|f| self.file(f))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(path)
    }
}

struct GatedFile {
    gate: Gated,
    file: Arc<dyn DiskFile>,
}

impl DiskFile for GatedFile {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(out, offset)
    }
    fn read_at_nowait(&self, out: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.file.read_at_nowait(out, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(data, offset)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.file.sync_data()
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}

/// One write as the FUSE thread makes it: it answers or says what is missing, and never waits.
fn write_at_once(w: &Workspace, ino: Ino, offset: u64, data: &[u8]) -> Result<Seqno, Stop> {
    w.update(|txn| {
        let mut attr = txn.attr(ino)?.unwrap();
        txn.write(ino, &mut attr, offset, data)?;
        txn.put_attr(ino, attr)
    })
    .map(|((), seqno)| seqno)
}

#[test]
fn a_slow_disk_parks_writers_and_holds_up_nobody_else() {
    let world = World::new();
    let disk = Gated::default();
    let engine = world.open("n1", EngineOptions { disk: Arc::new(disk.clone()), ..world.options("n1") });
    let w = world.attach(&engine, "ws");
    let ino = put(&w, "big", b"start");
    put(&w, "small", b"inline");
    world.flush(&w);
    disk.shut(true);
    let piece = noise(1, 256 * KIB as usize);
    let mut written = 0;
    let miss = loop {
        match write_at_once(&w, ino, written, &piece) {
            Ok(_) => written += piece.len() as u64,
            Err(Stop::Miss(miss)) => break miss,
            Err(Stop::Error(e)) => panic!("{e}"),
        }
        assert!(written <= 2 * STAGING_DIRTY, "the bound never came");
    };
    assert!(matches!(miss, Miss::Room(n) if n == piece.len() as u64), "{miss:?}");
    assert!(written > STAGING_DIRTY / 2, "{written}");
    let (tell, told) = mpsc::channel();
    w.fetch(miss, limits::READ_DEADLINE, Box::new(move |r| tell.send(r).unwrap()));
    // All else goes on: reads, also of what was just written, small writes, and unlinking.
    assert_eq!(read(&w, "small").unwrap(), b"inline");
    let mut out = Vec::new();
    w.view().read(ino, 0, piece.len() as u64, &mut out).unwrap();
    assert_eq!(out, piece);
    write_at_once(&w, ino, 0, b"inline data need no room").unwrap();
    assert!(matches!(told.try_recv(), Err(mpsc::TryRecvError::Empty)), "nothing was flushed");
    assert!(matches!(write_at_once(&w, ino, written, &piece), Err(Stop::Miss(Miss::Room(_)))));
    disk.shut(false);
    told.recv().unwrap().unwrap();
    w.update_blocking(|txn| {
        let mut attr = txn.attr(ino)?.unwrap();
        txn.write(ino, &mut attr, written, &piece)?;
        txn.put_attr(ino, attr)
    })
    .unwrap();
    world.flush(&w);
    assert_eq!(read(&w, "big").unwrap().len() as u64, written + piece.len() as u64);
}
