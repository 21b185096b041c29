//! A disk in memory that loses what a real one may lose.
//!
//! Written bytes reach the medium sector by sector (512 bytes, each whole or not at all) when the file is flushed; names when their
//! directory is. [`SimDisk::crash`] keeps a seeded subset of everything else. A failed flush behaves as Linux does: some sectors
//! reach the medium, all count as clean from then on, and the page cache keeps the new bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hiloop_env::Env;
use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile};

const SECTOR: usize = 512;

#[derive(Default)]
struct Node {
    /// What a reader sees.
    cached: Vec<u8>,
    /// What stands on the medium.
    medium: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl Node {
    fn persist(&mut self, sector: usize) {
        let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(self.cached.len()));
        if self.medium.len() < to {
            self.medium.resize(to, 0);
        }
        self.medium[from..to].copy_from_slice(&self.cached[from..to]);
    }
}

#[derive(Clone)]
enum NameChange {
    Add(PathBuf, u64),
    Remove(PathBuf),
}

impl NameChange {
    fn path(&self) -> &Path {
        match self {
            Self::Add(p, _) | Self::Remove(p) => p,
        }
    }
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Add(p, id) => names.insert(p.clone(), *id),
            Self::Remove(p) => names.remove(p),
        };
    }
}

/// Marks a name as that of a directory.
const DIRECTORY: u64 = 0;

struct Sim {
    random: Env,
    nodes: BTreeMap<u64, Node>,
    names: BTreeMap<PathBuf, u64>,
    medium_names: BTreeMap<PathBuf, u64>,
    pending: Vec<NameChange>,
    next_node: u64,
    /// Counts crashes; files opened before one answer errors.
    power: u64,
    off: bool,
    changes_left: Option<u64>,
    syncs_until_failure: Option<u64>,
    capacity: Option<u64>,
    syncs: u64,
    waiting_reads: bool,
}

/// The simulated disk; clones share it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<Sim>>);

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Sim {
    fn chance(&self, of_256: u64) -> bool {
        self.random.random_u64() >> 56 < of_256
    }
    fn powered(&self) -> io::Result<()> {
        if self.off { Err(io::Error::other("power is off")) } else { Ok(()) }
    }
    /// Counts an operation that changes something.
    fn change(&mut self) -> io::Result<()> {
        self.powered()?;
        match &mut self.changes_left {
            Some(0) => {
                self.off = true;
                self.powered()
            }
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
    fn sync_fails(&mut self) -> bool {
        self.syncs += 1;
        match &mut self.syncs_until_failure {
            Some(0) => {
                self.syncs_until_failure = None;
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        }
    }
    fn room(&self, more: u64) -> io::Result<()> {
        match self.capacity {
            Some(c) if self.used() + more > c => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            _ => Ok(()),
        }
    }
    /// Bytes of the files that have a name (one that is being written is out of the map).
    fn used(&self) -> u64 {
        self.names.values().filter_map(|id| self.nodes.get(id)).map(|n| n.cached.len() as u64).sum()
    }
    fn file(&self, path: &Path) -> io::Result<u64> {
        match self.names.get(path) {
            Some(&id) if id != DIRECTORY => Ok(id),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
    /// Frees files that have no name left anywhere.
    fn sweep(&mut self) {
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.nodes.retain(|id, _| named.contains(id));
    }
}

impl SimDisk {
    /// An empty disk with a directory `root`.
    pub fn new(seed: u64, root: &Path) -> Self {
        let names = BTreeMap::from([(root.to_owned(), DIRECTORY)]);
        Self(Arc::new(Mutex::new(Sim {
            random: Env::simulated(seed).0,
            nodes: BTreeMap::new(),
            medium_names: names.clone(),
            names,
            pending: Vec::new(),
            next_node: 1,
            power: 0,
            off: false,
            changes_left: None,
            syncs_until_failure: None,
            capacity: None,
            syncs: 0,
            waiting_reads: false,
        })))
    }
    /// Cuts the power and turns it on again: a random subset of unflushed sectors and names survives. Open files are dead.
    pub fn crash(&self) {
        let sim = &mut *self.0.lock();
        // Odds per file: all of one file and nothing of another is as likely as a mixture.
        let odds = [0, 26, 128, 230, 256];
        let ids: Vec<u64> = sim.nodes.keys().copied().collect();
        for id in ids {
            let odd = odds[(sim.random.random_u64() % odds.len() as u64) as usize];
            let Some(mut node) = sim.nodes.remove(&id) else { continue };
            for sector in std::mem::take(&mut node.dirty) {
                if sim.chance(odd) {
                    node.persist(sector);
                }
            }
            // A length that was only allocated may have been recorded without data.
            if node.medium.len() < node.cached.len() && sim.chance(odd) {
                node.medium.resize(node.cached.len(), 0);
            }
            node.cached = node.medium.clone();
            sim.nodes.insert(id, node);
        }
        let mut names = std::mem::take(&mut sim.medium_names);
        for change in std::mem::take(&mut sim.pending) {
            if sim.chance(128) {
                change.apply(&mut names);
            }
        }
        let all = names.clone();
        names.retain(|path, _| path.ancestors().skip(1).all(|a| all.get(a).is_none_or(|&id| id == DIRECTORY)));
        names.retain(|path, &mut id| id == DIRECTORY || path.parent().is_some_and(|p| all.contains_key(p)));
        sim.medium_names = names.clone();
        sim.names = names;
        sim.sweep();
        sim.power += 1;
        sim.off = false;
        sim.changes_left = None;
        sim.syncs_until_failure = None;
    }
    /// Turns the power off after this many more changing operations: all later ones fail until [`SimDisk::crash`].
    pub fn power_off_after(&self, changes: u64) {
        self.0.lock().changes_left = Some(changes);
    }
    /// Whether the power went off.
    pub fn is_off(&self) -> bool {
        self.0.lock().off
    }
    /// Lets the flush after the next `flushes` ones fail with EIO.
    pub fn fail_flush_after(&self, flushes: u64) {
        self.0.lock().syncs_until_failure = Some(flushes);
    }
    /// Bytes that files may take together; `None` for no bound.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().capacity = bytes;
    }
    /// Makes reads that may not wait answer that they would.
    pub fn set_waiting_reads(&self, waiting: bool) {
        self.0.lock().waiting_reads = waiting;
    }
    /// Flushes of files and directories so far.
    pub fn flushes(&self) -> u64 {
        self.0.lock().syncs
    }
    /// Bytes of all files.
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }
    /// Inverts bits of a byte on the medium and in the cache: bit rot.
    pub fn rot(&self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        let mut sim = self.0.lock();
        let id = sim.file(path)?;
        let node = sim.nodes.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        for copy in [&mut node.cached, &mut node.medium] {
            if let Some(b) = copy.get_mut(offset as usize) {
                *b ^= mask;
            }
        }
        Ok(())
    }
}

impl Disk for SimDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let sim = &mut *self.0.lock();
        sim.powered()?;
        if sim.names.contains_key(path) {
            return Ok(());
        }
        sim.change()?;
        let change = NameChange::Add(path.to_owned(), DIRECTORY);
        change.apply(&mut sim.names);
        sim.pending.push(change);
        Ok(())
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let sim = &mut *self.0.lock();
        sim.change()?;
        if sim.sync_fails() {
            return Err(eio());
        }
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut sim.pending).into_iter().partition(|c| c.path().parent() == Some(path));
        sim.pending = later;
        for change in now {
            change.apply(&mut sim.medium_names);
        }
        Ok(())
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let sim = self.0.lock();
        sim.powered()?;
        Ok(Arc::new(SimFile { disk: self.clone(), node: sim.file(path)?, power: sim.power }))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let sim = &mut *self.0.lock();
        sim.change()?;
        if sim.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let node = sim.next_node;
        sim.next_node += 1;
        sim.nodes.insert(node, Node::default());
        let change = NameChange::Add(path.to_owned(), node);
        change.apply(&mut sim.names);
        sim.pending.push(change);
        Ok(Arc::new(SimFile { disk: self.clone(), node, power: sim.power }))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let sim = &mut *self.0.lock();
        sim.change()?;
        sim.file(path)?;
        let change = NameChange::Remove(path.to_owned());
        change.apply(&mut sim.names);
        sim.pending.push(change);
        Ok(())
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let sim = self.0.lock();
        sim.powered()?;
        let inside = sim.names.iter().filter(|(p, id)| **id != DIRECTORY && p.parent() == Some(path));
        Ok(inside.filter_map(|(p, _)| p.file_name()?.to_str().map(str::to_owned)).collect())
    }
}

struct SimFile {
    disk: SimDisk,
    node: u64,
    power: u64,
}

impl SimFile {
    fn with<T>(&self, change: bool, body: impl FnOnce(&mut Sim, &mut Node) -> io::Result<T>) -> io::Result<T> {
        let sim = &mut *self.disk.0.lock();
        if change {
            sim.change()?;
        }
        sim.powered()?;
        if self.power != sim.power {
            return Err(io::Error::other("the file was opened before a power cut"));
        }
        let mut node = sim.nodes.remove(&self.node).ok_or(io::ErrorKind::NotFound)?;
        let result = body(sim, &mut node);
        sim.nodes.insert(self.node, node);
        result
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(false, |_, node| {
            let from = (offset as usize).min(node.cached.len());
            let n = out.len().min(node.cached.len() - from);
            out[..n].copy_from_slice(&node.cached[from..from + n]);
            Ok(n)
        })
    }
    fn read_at_nowait(&self, out: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        if self.disk.0.lock().waiting_reads {
            return Ok(None);
        }
        self.read_at(out, offset).map(Some)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.with(true, |sim, node| {
            let end = offset as usize + data.len();
            if end > node.cached.len() {
                // The node itself is out of the map while it is written.
                sim.room(end as u64)?;
                node.cached.resize(end, 0);
            }
            node.cached[offset as usize..end].copy_from_slice(data);
            node.dirty.extend(offset as usize / SECTOR..end.div_ceil(SECTOR));
            Ok(())
        })
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.with(true, |sim, node| {
            if len as usize > node.cached.len() {
                sim.room(len)?;
                node.cached.resize(len as usize, 0);
            }
            Ok(())
        })
    }
    fn sync_data(&self) -> io::Result<()> {
        self.with(true, |sim, node| {
            let fails = sim.sync_fails();
            for sector in std::mem::take(&mut node.dirty) {
                if !fails || sim.chance(128) {
                    node.persist(sector);
                }
            }
            if fails {
                return Err(eio());
            }
            node.medium.resize(node.cached.len(), 0);
            Ok(())
        })
    }
    fn size(&self) -> io::Result<u64> {
        self.with(false, |_, node| Ok(node.cached.len() as u64))
    }
}
