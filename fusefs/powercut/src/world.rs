//! The tree that processes see, the names on the platter, and the directory operations in between.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::dice::Dice;
use crate::file::File;
use crate::report::Losses;
use crate::{Flushes, Options};

pub(crate) const ROOT: u64 = 1;
/// An error number of libc.
pub(crate) type Answer<T> = Result<T, i32>;
/// Names on the platter.
type Names = BTreeMap<(u64, OsString), u64>;

pub(crate) enum Kind {
    File(File),
    Directory(BTreeMap<OsString, Entry>),
    Link(PathBuf),
    /// A socket, fifo or device; the type stands in the mode.
    Node(u32),
}

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) ino: u64,
    /// Place in the listing, never used twice.
    pub(crate) cookie: u64,
}

pub(crate) struct Inode {
    pub(crate) kind: Kind,
    /// Type and permission bits.
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) links: u32,
    pub(crate) modified: Duration,
    /// Where it was named last.
    home: (u64, OsString),
}

/// One name changes from `before` to `after`.
struct Renaming {
    key: (u64, OsString),
    before: Option<u64>,
    after: Option<u64>,
}

/// A directory operation: whole or not at all.
type NameOp = Vec<Renaming>;

/// Called at the moment of a cut.
pub(crate) type OnCut = Box<dyn Fn() + Send>;

/// A power cut that comes by itself.
struct Alarm {
    /// Operations until then.
    left: u64,
    seed: u64,
}

pub(crate) struct World {
    options: Options,
    inodes: BTreeMap<u64, Inode>,
    names: Names,
    pending: Vec<NameOp>,
    next_ino: u64,
    next_cookie: u64,
    steps: u64,
    alarm: Option<Alarm>,
    /// Seed of the cut that happened.
    dead: Option<u64>,
    on_cut: Option<OnCut>,
    /// Counts the times that power came back; handles of an earlier one are void.
    pub(crate) boot: u64,
}

impl World {
    pub(crate) fn new(options: Options, now: Duration) -> Self {
        let root = Inode {
            kind: Kind::Directory(BTreeMap::new()),
            mode: libc::S_IFDIR | 0o755,
            owner: (0, 0),
            links: 2,
            modified: now,
            home: (ROOT, OsString::new()),
        };
        Self {
            options,
            inodes: BTreeMap::from([(ROOT, root)]),
            names: Names::new(),
            pending: Vec::new(),
            next_ino: ROOT + 1,
            next_cookie: 1,
            steps: 0,
            alarm: None,
            dead: None,
            on_cut: None,
            boot: 0,
        }
    }
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.is_some()
    }
    pub(crate) fn cut(&mut self, seed: u64) {
        self.alarm = None;
        if self.dead.is_none() {
            self.dead = Some(seed);
            if let Some(hook) = &self.on_cut {
                hook();
            }
        }
    }
    pub(crate) fn on_cut(&mut self, hook: OnCut) {
        self.on_cut = Some(hook);
    }
    pub(crate) fn arm(&mut self, after: u64, seed: u64) {
        self.alarm = Some(Alarm { left: after, seed });
    }
    pub(crate) fn disarm(&mut self) {
        self.alarm = None;
    }
    pub(crate) fn alive(&self) -> Answer<()> {
        if self.is_dead() { Err(libc::EIO) } else { Ok(()) }
    }
    /// Counts an operation that changes or flushes; the cut comes before it.
    fn step(&mut self) -> Answer<()> {
        self.alive()?;
        if let Some(alarm) = &mut self.alarm {
            match alarm.left.checked_sub(1) {
                Some(left) => alarm.left = left,
                None => {
                    let seed = alarm.seed;
                    self.cut(seed);
                    return Err(libc::EIO);
                }
            }
        }
        self.steps += 1;
        Ok(())
    }

    pub(crate) fn inode(&self, ino: u64) -> Answer<&Inode> {
        self.alive()?;
        self.inodes.get(&ino).ok_or(libc::ESTALE)
    }
    fn inode_mut(&mut self, ino: u64) -> Answer<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(libc::ESTALE)
    }
    pub(crate) fn entries(&self, ino: u64) -> Answer<&BTreeMap<OsString, Entry>> {
        match &self.inode(ino)?.kind {
            Kind::Directory(entries) => Ok(entries),
            _ => Err(libc::ENOTDIR),
        }
    }
    fn entries_mut(&mut self, ino: u64) -> Answer<&mut BTreeMap<OsString, Entry>> {
        match &mut self.inode_mut(ino)?.kind {
            Kind::Directory(entries) => Ok(entries),
            _ => Err(libc::ENOTDIR),
        }
    }
    pub(crate) fn file(&self, ino: u64) -> Answer<&File> {
        match &self.inode(ino)?.kind {
            Kind::File(file) => Ok(file),
            Kind::Directory(_) => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }
    fn file_mut(&mut self, ino: u64) -> Answer<&mut File> {
        match &mut self.inode_mut(ino)?.kind {
            Kind::File(file) => Ok(file),
            Kind::Directory(_) => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }
    pub(crate) fn lookup(&self, dir: u64, name: &OsStr) -> Answer<u64> {
        self.entries(dir)?.get(name).map(|e| e.ino).ok_or(libc::ENOENT)
    }
    /// As processes see it, or saw it when the power went.
    pub(crate) fn resolve(&self, path: &Path) -> Option<&Inode> {
        path.components().try_fold(self.inodes.get(&ROOT)?, |at, part| match (&at.kind, part) {
            (Kind::Directory(entries), Component::Normal(name)) => self.inodes.get(&entries.get(name)?.ino),
            (_, Component::RootDir | Component::CurDir) => Some(at),
            _ => None,
        })
    }
    /// Bytes that files take.
    pub(crate) fn stored(&self) -> u64 {
        self.inodes.values().map(|i| if let (Kind::File(f), true) = (&i.kind, i.links > 0) { f.now().stored() } else { 0 }).sum()
    }

    pub(crate) fn make(&mut self, dir: u64, name: &OsStr, kind: Kind, mode: u32, owner: (u32, u32), now: Duration) -> Answer<u64> {
        self.step()?;
        if self.entries(dir)?.contains_key(name) {
            return Err(libc::EEXIST);
        }
        let ino = self.next_ino;
        self.next_ino += 1;
        let links = if matches!(kind, Kind::Directory(_)) { 1 } else { 0 };
        self.inodes.insert(ino, Inode { kind, mode, owner, links, modified: now, home: (dir, name.to_owned()) });
        self.change(vec![(dir, name, Some(ino))])?;
        Ok(ino)
    }
    pub(crate) fn link(&mut self, ino: u64, dir: u64, name: &OsStr) -> Answer<()> {
        self.step()?;
        if self.entries(dir)?.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.change(vec![(dir, name, Some(ino))])
    }
    pub(crate) fn remove(&mut self, dir: u64, name: &OsStr, directory: bool) -> Answer<()> {
        self.step()?;
        let ino = self.lookup(dir, name)?;
        match (&self.inode(ino)?.kind, directory) {
            (Kind::Directory(entries), true) if !entries.is_empty() => return Err(libc::ENOTEMPTY),
            (Kind::Directory(_), false) => return Err(libc::EISDIR),
            (Kind::Directory(_), true) => {}
            (_, true) => return Err(libc::ENOTDIR),
            (_, false) => {}
        }
        self.change(vec![(dir, name, None)])
    }
    pub(crate) fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), replace: bool) -> Answer<()> {
        self.step()?;
        let ino = self.lookup(from.0, from.1)?;
        match self.lookup(to.0, to.1) {
            Err(libc::ENOENT) => {}
            Err(e) => return Err(e),
            Ok(_) if !replace => return Err(libc::EEXIST),
            Ok(old) if old == ino => return Ok(()),
            Ok(old) => match (&self.inode(ino)?.kind, &self.inode(old)?.kind) {
                (Kind::Directory(_), Kind::Directory(entries)) if !entries.is_empty() => return Err(libc::ENOTEMPTY),
                (Kind::Directory(_), Kind::Directory(_)) => {}
                (Kind::Directory(_), _) => return Err(libc::ENOTDIR),
                (_, Kind::Directory(_)) => return Err(libc::EISDIR),
                _ => {}
            },
        }
        self.change(vec![(from.0, from.1, None), (to.0, to.1, Some(ino))])
    }
    /// Changes names in one operation that is not durable yet.
    fn change(&mut self, names: Vec<(u64, &OsStr, Option<u64>)>) -> Answer<()> {
        let mut op = NameOp::new();
        for (dir, name, after) in names {
            let cookie = self.next_cookie;
            self.next_cookie += 1;
            let entries = self.entries_mut(dir)?;
            let before = match after {
                Some(ino) => entries.insert(name.to_owned(), Entry { ino, cookie }),
                None => entries.remove(name),
            };
            let before = before.map(|e| e.ino);
            if let Some(inode) = before.and_then(|ino| self.inodes.get_mut(&ino)) {
                inode.links = inode.links.saturating_sub(1);
            }
            if let Some(inode) = after.and_then(|ino| self.inodes.get_mut(&ino)) {
                inode.links += 1;
                inode.home = (dir, name.to_owned());
            }
            op.push(Renaming { key: (dir, name.to_owned()), before, after });
        }
        self.pending.push(op);
        Ok(())
    }

    pub(crate) fn write(&mut self, ino: u64, at: u64, data: &[u8], now: Duration) -> Answer<()> {
        self.step()?;
        self.file_mut(ino)?.write(at, data);
        self.inode_mut(ino)?.modified = now;
        Ok(())
    }
    pub(crate) fn set_len(&mut self, ino: u64, len: u64, now: Duration) -> Answer<()> {
        self.step()?;
        self.file_mut(ino)?.set_len(len);
        self.inode_mut(ino)?.modified = now;
        Ok(())
    }
    /// Modes, owners and times are durable at once: nothing that is tested here leans on them.
    pub(crate) fn set_attributes(
        &mut self,
        ino: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        modified: Option<Duration>,
    ) -> Answer<()> {
        self.alive()?;
        let inode = self.inode_mut(ino)?;
        if let Some(mode) = mode {
            inode.mode = (inode.mode & libc::S_IFMT) | (mode & !libc::S_IFMT);
        }
        inode.owner = (uid.unwrap_or(inode.owner.0), gid.unwrap_or(inode.owner.1));
        inode.modified = modified.unwrap_or(inode.modified);
        Ok(())
    }
    pub(crate) fn allocate(&mut self, ino: u64, at: u64, len: u64, mode: i32) -> Answer<()> {
        self.step()?;
        let file = self.file_mut(ino)?;
        let old = file.now().len();
        let end = if mode & libc::FALLOC_FL_KEEP_SIZE == 0 { old.max(at.saturating_add(len)) } else { old };
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => file.zero(at, 0, end),
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE => file.zero(at, len.min(end.saturating_sub(at)), end),
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(())
    }

    /// `fsync` and `fdatasync` of a file.
    pub(crate) fn sync_file(&mut self, ino: u64) -> Answer<()> {
        self.step()?;
        if self.lies_about(ino) {
            return Ok(());
        }
        self.file_mut(ino)?.sync();
        if self.options.flushes == Flushes::Ext4 && self.pending.iter().flatten().any(|r| r.after == Some(ino)) {
            self.settle(|_| true);
        }
        Ok(())
    }
    /// `fsync` of a directory.
    pub(crate) fn sync_directory(&mut self, ino: u64) -> Answer<()> {
        self.step()?;
        if self.lies_about(ino) {
            return Ok(());
        }
        let all = self.options.flushes == Flushes::Ext4;
        self.settle(|r| all || r.key.0 == ino);
        Ok(())
    }
    fn lies_about(&self, ino: u64) -> bool {
        let Some(liar) = &self.options.lie_below else { return false };
        let mut at = ino;
        while at != ROOT {
            let Some(inode) = self.inodes.get(&at) else { return false };
            if inode.home.1 == *liar {
                return true;
            }
            at = inode.home.0;
        }
        liar.is_empty()
    }
    /// Makes the operations with a matching name durable, and those before them that they build on.
    fn settle(&mut self, wanted: impl Fn(&Renaming) -> bool) {
        let mut keys: std::collections::BTreeSet<(u64, OsString)> = std::collections::BTreeSet::new();
        let mut chosen = vec![false; self.pending.len()];
        for (op, chosen) in self.pending.iter().zip(&mut chosen).rev() {
            if op.iter().any(|r| wanted(r) || keys.contains(&r.key)) {
                *chosen = true;
                keys.extend(op.iter().map(|r| r.key.clone()));
            }
        }
        let mut chosen = chosen.into_iter();
        let names = &mut self.names;
        self.pending.retain(|op| {
            let settles = chosen.next().unwrap_or(false);
            if settles {
                apply(names, op);
            }
            !settles
        });
    }

    /// Power comes back: what is seen is what survived the cut.
    pub(crate) fn restore(&mut self) -> Losses {
        let mut losses = Losses::default();
        let Some(seed) = self.dead.take() else { return losses };
        let mut names = std::mem::take(&mut self.names);
        let pending = std::mem::take(&mut self.pending);
        survive(&mut names, &pending, self.options.flushes, &mut Dice::part(seed, 0), &mut losses);
        let mut old = std::mem::take(&mut self.inodes);
        let mut todo = vec![ROOT];
        while let Some(ino) = todo.pop() {
            if let Some(seen) = self.inodes.get_mut(&ino) {
                seen.links += 1;
                continue;
            }
            let Some(mut inode) = old.remove(&ino) else { continue };
            inode.links = 1;
            inode.kind = match inode.kind {
                Kind::Directory(_) => {
                    inode.links = 2;
                    let mut entries = BTreeMap::new();
                    for ((_, name), &child) in names.range((ino, OsString::new())..).take_while(|((dir, _), _)| *dir == ino) {
                        entries.insert(name.clone(), Entry { ino: child, cookie: self.next_cookie });
                        self.next_cookie += 1;
                        todo.push(child);
                    }
                    Kind::Directory(entries)
                }
                Kind::File(file) => Kind::File(file.survivor(&mut Dice::part(seed, ino), &mut losses)),
                other => other,
            };
            self.inodes.insert(ino, inode);
        }
        names.retain(|(dir, _), ino| self.inodes.contains_key(dir) && self.inodes.contains_key(ino));
        for ((dir, name), ino) in &names {
            if let Some(inode) = self.inodes.get_mut(ino) {
                inode.home = (*dir, name.clone());
            }
        }
        self.names = names;
        self.boot += 1;
        losses
    }
}

fn apply(names: &mut Names, op: &NameOp) {
    for r in op {
        match r.after {
            Some(ino) => names.insert(r.key.clone(), ino),
            None => names.remove(&r.key),
        };
    }
}

/// Applies a random part of the operations: any that finds the names as it found them (strict), or the first few (ext4's log).
fn survive(names: &mut Names, pending: &[NameOp], flushes: Flushes, dice: &mut Dice, losses: &mut Losses) {
    let prefix = match dice.below(4) {
        0 => Some(0),
        1 => Some(pending.len() as u64),
        2 => Some(dice.below(pending.len() as u64 + 1)),
        _ if flushes == Flushes::Ext4 => Some(dice.below(pending.len() as u64 + 1)),
        _ => None,
    };
    for (i, op) in pending.iter().enumerate() {
        let wanted = prefix.map_or_else(|| dice.coin(), |p| (i as u64) < p);
        if wanted && op.iter().all(|r| names.get(&r.key).copied() == r.before) {
            apply(names, op);
            losses.names_kept += 1;
        } else {
            losses.names_lost += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn world(flushes: Flushes) -> World {
        World::new(Options { flushes, ..Options::default() }, NOW)
    }
    fn os(name: &str) -> &OsStr {
        OsStr::new(name)
    }
    fn file(w: &mut World, dir: u64, name: &str, data: &[u8]) -> u64 {
        let ino = w.make(dir, os(name), Kind::File(File::default()), libc::S_IFREG | 0o644, (0, 0), NOW).unwrap();
        w.write(ino, 0, data, NOW).unwrap();
        ino
    }
    fn directory(w: &mut World, dir: u64, name: &str) -> u64 {
        w.make(dir, os(name), Kind::Directory(BTreeMap::new()), libc::S_IFDIR | 0o755, (0, 0), NOW).unwrap()
    }
    fn read(w: &World, path: &str) -> Option<Vec<u8>> {
        match &w.resolve(Path::new(path))?.kind {
            Kind::File(f) => Some(f.now().read(0, 1 << 20)),
            _ => Some(Vec::new()),
        }
    }

    #[test]
    fn a_name_needs_its_directory_flushed() {
        let mut survived = 0;
        for seed in 0..100 {
            let mut w = world(Flushes::Strict);
            let a = file(&mut w, ROOT, "a", b"one");
            w.sync_file(a).unwrap();
            w.sync_directory(ROOT).unwrap();
            let b = file(&mut w, ROOT, "b", b"two");
            w.sync_file(b).unwrap();
            w.cut(seed);
            assert_eq!(w.write(a, 0, b"later", NOW), Err(libc::EIO));
            assert_eq!(w.lookup(ROOT, os("a")), Err(libc::EIO));
            w.restore();
            assert_eq!(read(&w, "a").unwrap(), b"one");
            survived += u32::from(read(&w, "b").inspect(|b| assert_eq!(b, b"two")).is_some());
        }
        assert!((20..80).contains(&survived), "{survived}");
    }

    #[test]
    fn ext4_keeps_the_name_of_a_flushed_new_file() {
        for seed in 0..50 {
            let mut w = world(Flushes::Ext4);
            let d = directory(&mut w, ROOT, "d");
            let b = file(&mut w, d, "b", b"two");
            w.sync_file(b).unwrap();
            w.cut(seed);
            w.restore();
            assert_eq!(read(&w, "d/b").unwrap(), b"two");
        }
    }

    #[test]
    fn a_rename_is_whole_and_needs_what_it_renames() {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut w = world(Flushes::Strict);
            let old = file(&mut w, ROOT, "current", b"old");
            w.sync_file(old).unwrap();
            w.sync_directory(ROOT).unwrap();
            let new = file(&mut w, ROOT, "new", b"new");
            w.sync_file(new).unwrap();
            w.rename((ROOT, os("new")), (ROOT, os("current")), true).unwrap();
            w.cut(seed);
            w.restore();
            outcomes.insert((read(&w, "current"), read(&w, "new")));
        }
        let (old, new) = (Some(b"old".to_vec()), Some(b"new".to_vec()));
        assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), [(new.clone(), None), (old.clone(), None), (old, new)]);
    }

    #[test]
    fn flushing_the_target_directory_brings_what_it_builds_on() {
        for seed in 0..50 {
            let mut w = world(Flushes::Strict);
            let (a, b) = (directory(&mut w, ROOT, "a"), directory(&mut w, ROOT, "b"));
            w.sync_directory(ROOT).unwrap();
            let f = file(&mut w, a, "f", b"x");
            w.sync_file(f).unwrap();
            w.rename((a, os("f")), (b, os("g")), true).unwrap();
            w.sync_directory(b).unwrap();
            w.cut(seed);
            w.restore();
            assert_eq!((read(&w, "a/f"), read(&w, "b/g")), (None, Some(b"x".to_vec())));
        }
    }

    #[test]
    fn the_alarm_cuts_before_its_operation() {
        let mut w = world(Flushes::Strict);
        w.arm(2, 1);
        let a = file(&mut w, ROOT, "a", b"x");
        assert!(!w.is_dead());
        assert_eq!(w.sync_file(a), Err(libc::EIO));
        assert!(w.is_dead());
        w.restore();
        assert!(w.inode(ROOT).is_ok());
        assert_eq!(w.steps(), 2);
    }

    #[test]
    fn a_liar_loses_what_was_flushed() {
        let mut lost = 0;
        for seed in 0..50 {
            let mut w = World::new(Options { lie_below: Some("d".into()), ..Options::default() }, NOW);
            let (d, e) = (directory(&mut w, ROOT, "d"), directory(&mut w, ROOT, "e"));
            let f = file(&mut w, d, "f", b"x");
            w.sync_directory(ROOT).unwrap();
            w.sync_file(f).unwrap();
            w.sync_directory(d).unwrap();
            let g = file(&mut w, e, "g", b"y");
            w.sync_file(g).unwrap();
            w.sync_directory(e).unwrap();
            w.cut(seed);
            w.restore();
            lost += u32::from(read(&w, "d/f").is_none_or(|f| f != b"x"));
            assert_eq!(read(&w, "e/g").unwrap(), b"y");
        }
        assert!(lost > 10, "{lost}");
    }

    #[test]
    fn links_are_counted_again() {
        let mut w = world(Flushes::Strict);
        let f = file(&mut w, ROOT, "f", b"x");
        w.link(f, ROOT, os("g")).unwrap();
        assert_eq!(w.inode(f).unwrap().links, 2);
        w.sync_directory(ROOT).unwrap();
        w.cut(0);
        w.restore();
        assert_eq!(w.inode(f).unwrap().links, 2);
        w.remove(ROOT, os("f"), false).unwrap();
        w.remove(ROOT, os("g"), false).unwrap();
        assert_eq!(w.inode(f).unwrap().links, 0);
    }
}
