//! What the first look into a workspace costs on a node that has nothing of it: rounds of the store, counted on one thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use hiloop_engine::base::{BaseRequest, publish_base};
use hiloop_engine::catalog::Head;
use hiloop_engine::context::StoreContext;
use hiloop_engine::fork::{ForkOptions, fork};
use hiloop_engine::node::{AttachRequest, Engine, EngineOptions, StoreOpener};
use hiloop_engine::stop::{Miss, Stop};
use hiloop_engine::workspace::{Txn, View, Workspace};
use hiloop_env::Env;
use hiloop_manifest::schema::{FileKind, Key};
use hiloop_manifest::tree::{KeyRange, leaves};
use hiloop_source::SourceSpec;
use hiloop_store::Store;
use hiloop_store::faults::Faults;
use hiloop_store::rounds::Rounds;
use hiloop_types::{ErrorKind, Ino, MemoryMeta, MetaStore, Name, NameKind, ROOT_INO, Result, limits};
use tokio::runtime::{Builder, Runtime};

use hiloop_fusefs::fs::create::{New, make};
use hiloop_fusefs::fs::data::WriteMode;
use hiloop_fusefs::fs::{Caller, FsError, FsResult, data, dir, errno, lookup};

const ROOT: Caller = Caller { uid: 0, gid: 0 };

/// Bytes of a file's first line.
fn content(path: &str) -> String {
    format!("this is {path}\n")
}

/// Writes a tar of files, without entries for the directories.
fn tar(at: &Path, paths: impl Iterator<Item = String>) {
    let mut out = BufWriter::new(File::create(at).unwrap());
    for path in paths {
        let data = content(&path);
        let mut header = [0u8; 512];
        let mut field = |at: usize, value: &str| header[at..at + value.len()].copy_from_slice(value.as_bytes());
        field(0, &path);
        field(100, "0000644\0");
        field(108, "0000000\0");
        field(116, "0000000\0");
        field(124, &format!("{:011o}\0", data.len()));
        field(136, "00000000000\0");
        field(148, "        ");
        field(156, "0");
        field(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.write_all(&header).unwrap();
        let mut body = data.into_bytes();
        body.resize(512, 0);
        out.write_all(&body).unwrap();
    }
    out.write_all(&[0; 1024]).unwrap();
    out.into_inner().unwrap();
}

/// A store with a base, and nodes that open it.
struct Cold {
    runtime: Runtime,
    store: Store,
    rounds: Rounds,
    faults: Faults,
    scratch: tempfile::TempDir,
}

impl Cold {
    /// Publishes these files as the base `base`.
    fn with(paths: impl Iterator<Item = String>) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let archive = scratch.path().join("tree.tar");
        tar(&archive, paths);
        let store = Store::memory(Env::real());
        let publishing = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let ctx = StoreContext::new(store.clone(), Env::real(), "test:1");
        let request = BaseRequest::new("base", SourceSpec::Tar(archive.clone())).unwrap();
        publishing.block_on(async {
            publish_base(&ctx, request, Arc::new(|_| ())).await.unwrap();
            fork(&ctx, "base:base", &["ws".to_owned()], &ForkOptions::default()).await.unwrap();
        });
        std::fs::remove_file(archive).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, store, rounds: Rounds::default(), faults: Faults::default(), scratch }
    }

    /// `dirs` directories of `files` files.
    fn grid(dirs: u32, files: u32) -> Self {
        Self::with((0..dirs).flat_map(|d| (0..files).map(move |f| format!("d{d:04}/f{f:04}"))))
    }

    /// A node with an empty cache.
    fn node(&self, name: &str) -> Node<'_> {
        let store = self.store.wrapped(|b| self.faults.wrap(self.rounds.wrap(b)));
        let stores: StoreOpener = Arc::new(move |_, _, _| {
            let store = store.clone();
            Box::pin(async move { Ok(store) })
        });
        let options =
            EngineOptions { stores, ..EngineOptions::new(self.scratch.path().join(name), Name::new(NameKind::Node, name).unwrap()) };
        let engine = {
            let _inside = self.runtime.enter();
            Engine::open(options, Env::real(), |_| Ok(Arc::new(MemoryMeta::default()) as Arc<dyn MetaStore>)).unwrap()
        };
        Node { cold: self, engine: Some(engine) }
    }

    /// How many rounds were read so far, those of heads and of upkeep not counted, and how many bytes.
    fn cost(&self) -> (u64, u64) {
        let upkeep = ["heads/", "nodes/", "leases/", "intents/", "probe/", "bases/", "lineage/"];
        let mut reads = self.rounds.reads();
        reads.retain(|r| !upkeep.iter().any(|u| r.key.starts_with(u)));
        let mut rounds: Vec<u64> = reads.iter().map(|r| r.round).collect();
        rounds.sort_unstable();
        rounds.dedup();
        (rounds.len() as u64, reads.iter().map(|r| r.bytes).sum())
    }

    /// Flips a bit in the leaf with the attributes of `ino` in the store.
    fn damage(&self, ino: Ino) {
        self.runtime.block_on(async {
            let ctx = StoreContext::new(self.store.clone(), Env::real(), "test:2");
            let root = ctx.catalog.require::<Head>("ws").await.unwrap().doc.root.unwrap();
            let (from, to) = (Key::attr(ino), Key::attr(Ino(ino.0 + 1)));
            let range = KeyRange::between(from.as_bytes(), to.as_bytes());
            let leaf = ctx.hydrator.with_nodes(|h| leaves(h, &root, &range, 1)).await.unwrap()[0];
            assert_ne!(leaf, root.node);
            let key = leaf.loc.pack.key();
            let mut bytes = self.store.get(&key).await.unwrap().unwrap().bytes.to_vec();
            bytes[leaf.loc.offset as usize + 100] ^= 1;
            self.store.put(&key, bytes.into()).await.unwrap();
        });
    }
}

struct Node<'c> {
    cold: &'c Cold,
    engine: Option<Engine>,
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        let _inside = self.cold.runtime.enter();
        drop(self.engine.take());
    }
}

impl Node<'_> {
    /// Opens a workspace as `mount` does.
    fn mount(&self, workspace: &str) -> Workspace {
        let name = Name::new(NameKind::Workspace, workspace).unwrap();
        let request = AttachRequest { take_over: true, ..AttachRequest::new("file:///test", name).unwrap() };
        let engine = self.engine.as_ref().unwrap();
        self.cold.runtime.block_on(async {
            let (ws, _) = engine.attach(request).await.unwrap();
            dir::local(&ws, ROOT_INO).await.unwrap();
            ws
        })
    }

    fn fetch(&self, ws: &Workspace, miss: Miss) -> Result<()> {
        let (tell, told) = tokio::sync::oneshot::channel();
        ws.fetch(miss, limits::READ_DEADLINE, Box::new(move |r| tell.send(r).unwrap()));
        self.cold.runtime.block_on(told).unwrap()
    }

    /// As a request: run again after each miss.
    fn see<T>(&self, ws: &Workspace, mut f: impl FnMut(&View<'_>) -> FsResult<T>) -> FsResult<T> {
        loop {
            match f(&ws.view()) {
                Err(FsError::Stop(Stop::Miss(miss))) => self.fetch(ws, miss)?,
                other => return other,
            }
        }
    }

    fn change<T>(&self, ws: &Workspace, mut f: impl FnMut(&mut Txn<'_>) -> FsResult<T>) -> T {
        loop {
            match ws.update(&mut f) {
                Ok((value, _)) => return value,
                Err(FsError::Stop(Stop::Miss(miss))) => self.fetch(ws, miss).unwrap(),
                Err(e) => panic!("{e:?}"),
            }
        }
    }

    fn find(&self, ws: &Workspace, path: &str) -> FsResult<Option<Ino>> {
        let mut at = ROOT_INO;
        for part in path.split('/') {
            match self.see(ws, |v| lookup::lookup(v, at, part.as_bytes()))? {
                Some(found) => at = found.ino,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Publishes what was changed and gives the workspace back.
    fn publish(&self, ws: Workspace) {
        let engine = self.engine.as_ref().unwrap();
        let left = self.cold.runtime.block_on(engine.detach(&ws, std::time::Duration::from_secs(60))).unwrap();
        assert!(left.released, "{left:?}");
    }

    fn cat(&self, ws: &Workspace, path: &str) -> String {
        let ino = self.find(ws, path).unwrap().unwrap_or_else(|| panic!("no {path}"));
        let mut out = Vec::new();
        self.see(ws, |v| data::read(v, ino, 0, 4096, &mut out)).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Lists with attributes, in requests of `page` entries; each name and whether its attributes could be had.
    fn ls(&self, ws: &Workspace, d: Ino, page: usize) -> FsResult<Vec<(String, bool)>> {
        let (mut all, mut at) = (Vec::new(), 0);
        loop {
            let (mut some, mut next, mut waited) = (Vec::new(), at, Vec::new());
            let listed = self.see(ws, |v| {
                some.clear();
                let end = dir::end(v, d)?;
                let listed = dir::read_plus(v, d, at, end, &waited, &mut |item, attr| {
                    if some.len() == page {
                        return false;
                    }
                    some.push((String::from_utf8_lossy(item.name).into_owned(), attr.is_some(), item.is_dot()));
                    next = item.cookie;
                    true
                });
                if let Err(FsError::Stop(Stop::Miss(Miss::Listing(nodes)))) = &listed {
                    waited.extend(nodes);
                }
                listed
            });
            listed?;
            if some.is_empty() {
                return Ok(all);
            }
            all.extend(some.into_iter().filter(|(_, _, dot)| !dot).map(|(name, known, _)| (name, known)));
            at = next;
        }
    }
}

/// Issue 3: "cold open + ls + one small file: at most 3 sequential store reads after the head's". With attributes, which is more than `ls`.
fn open_ls_cat(dirs: u32, files: u32, most_bytes: u64) {
    let cold = Cold::grid(dirs, files);
    let node = cold.node("n1");
    cold.rounds.reset();
    let ws = node.mount("ws");
    let (mounted, _) = cold.cost();
    assert!(mounted <= 1, "the mount took {mounted} rounds: {:#?}", cold.rounds.reads());
    let listed = node.ls(&ws, ROOT_INO, 100).unwrap();
    assert_eq!(listed.len(), dirs as usize);
    assert!(listed.iter().all(|(_, known)| *known));
    assert_eq!(cold.cost().0, mounted, "the root directory is local once the mount is there");
    let path = format!("d{:04}/f{:04}", dirs / 2, files / 2 - 79 % files / 2);
    assert_eq!(node.cat(&ws, &path), content(&path));
    let (rounds, bytes) = cold.cost();
    assert!(rounds <= 3 && bytes <= most_bytes, "{rounds} rounds, {bytes} bytes: {:#?}", cold.rounds.reads());

    // Another directory, all of it: names and attributes come in one round.
    let before = cold.cost().0;
    let d = node.find(&ws, "d0001").unwrap().unwrap();
    assert_eq!(node.ls(&ws, d, 100).unwrap().len(), files as usize);
    let listing = cold.cost().0 - before;
    assert!(listing <= 1, "{listing} rounds for one listing: {:#?}", cold.rounds.reads());
}

#[test]
fn a_cold_open_of_1_000_files_takes_three_rounds() {
    open_ls_cat(10, 100, 400_000);
}

#[test]
fn a_cold_open_of_100_000_files_takes_three_rounds() {
    open_ls_cat(100, 1000, 800_000);
}

/// What a workspace published itself is found as fast as what its base was published with.
#[test]
fn a_cold_open_of_a_changed_workspace_takes_three_rounds() {
    let cold = Cold::grid(100, 40);
    let first = cold.node("n1");
    let ws = first.mount("ws");
    let d = first.find(&ws, "d0050").unwrap().unwrap();
    let made = first.change(&ws, |tx| make(tx, ROOT, &New::of(FileKind::File, d, b"new", 0o644, 0)).map(|n| n.ino));
    first.change(&ws, |tx| data::write(tx, made, 0, b"written here", WriteMode::default()));
    first.change(&ws, |tx| make(tx, ROOT, &New::of(FileKind::File, ROOT_INO, b"top", 0o644, 0)));
    first.publish(ws);

    for (path, content) in [("d0050/new", "written here".to_owned()), ("d0070/f0013", content("d0070/f0013"))] {
        let node = cold.node(&format!("n-{}", &path[1..5]));
        cold.rounds.reset();
        let ws = node.mount("ws");
        assert_eq!(node.ls(&ws, ROOT_INO, 50).unwrap().len(), 101);
        assert!(cold.cost().0 <= 1, "{:#?}", cold.rounds.reads());
        assert_eq!(node.cat(&ws, path), content);
        // A file that was numbered far from the others of its directory is found behind its name: a round more.
        let most = if path.ends_with("new") { 4 } else { 3 };
        assert!(cold.cost().0 <= most, "{path}: {:#?}", cold.rounds.reads());
        node.publish(ws);
    }
}

#[test]
fn a_very_wide_root_is_listed_whole_in_few_rounds() {
    let cold = Cold::with((0..10_000).map(|f| format!("file-{f:05}")));
    let node = cold.node("n1");
    cold.rounds.reset();
    let ws = node.mount("ws");
    assert!(cold.cost().0 <= 1, "{:#?}", cold.rounds.reads());
    let listed = node.ls(&ws, ROOT_INO, 200).unwrap();
    let expected: Vec<_> = (0..10_000).map(|f| (format!("file-{f:05}"), true)).collect();
    assert!(listed == expected, "{} entries", listed.len());
    // Fifty requests of 200 entries; each that misses fetches for those that follow.
    assert!(cold.cost().0 <= 12, "{} rounds", cold.cost().0);
}

/// Each component of a path is a round at most, and then the content.
#[test]
fn a_deep_path_takes_a_round_for_each_component_at_most() {
    let deep = (0..12).map(|d| format!("level-{d:02}")).collect::<Vec<_>>().join("/");
    let side = |d: usize| deep.split('/').take(d).collect::<Vec<_>>().join("/");
    // Each level has enough beside the next that they do not share leaves.
    let beside = (1..=12).flat_map(|d| (0..400).map(move |f| (d, f))).map(|(d, f)| format!("{}/f{f:03}", side(d)));
    let cold = Cold::with(beside.chain([format!("{deep}/end")]).filter(|p| p.len() < 100).collect::<Vec<_>>().into_iter());
    let node = cold.node("n1");
    cold.rounds.reset();
    let ws = node.mount("ws");
    let path = format!("{}/f007", side(9));
    assert_eq!(node.cat(&ws, &path), content(&path));
    assert!(cold.cost().0 <= 1 + 9 + 1, "{:#?}", cold.rounds.reads());
}

#[test]
fn damage_to_what_entries_name_is_an_io_error_and_hides_no_other_entry() {
    let cold = Cold::with((0..3000).map(|f| format!("file-{f:04}")));
    cold.damage(Ino(1500));
    let node = cold.node("n1");
    let ws = node.mount("ws");
    let listed = node.ls(&ws, ROOT_INO, 200).unwrap();
    assert_eq!(listed.len(), 3000, "every name is listed");
    let lost: Vec<&String> = listed.iter().filter(|(_, known)| !known).map(|(name, _)| name).collect();
    assert!((50..2000).contains(&lost.len()), "{}", lost.len());
    for name in [lost[0], lost[lost.len() - 1]] {
        match node.find(&ws, name) {
            Err(FsError::Stop(Stop::Error(e))) => assert_eq!((e.kind(), errno(&e)), (ErrorKind::Corrupt, libc::EIO)),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(node.find(&ws, "no-such-file").unwrap().is_none());
    let (fine, _) = listed.iter().find(|(_, known)| *known).unwrap();
    assert_eq!(node.cat(&ws, fine), content(fine));
}

#[test]
fn a_store_that_goes_away_during_a_listing_fails_it_and_the_next_one_is_whole() {
    let cold = Cold::with((0..10_000).map(|f| format!("file-{f:05}")));
    let node = cold.node("n1");
    let ws = node.mount("ws");
    cold.faults.set_down(true);
    match node.ls(&ws, ROOT_INO, 200) {
        Err(FsError::Stop(Stop::Error(e))) => assert_eq!((e.kind(), errno(&e)), (ErrorKind::Unavailable, libc::EIO)),
        other => panic!("{:?}", other.map(|l| l.len())),
    }
    assert!(cold.faults.refused_down() > 0);
    cold.faults.set_down(false);
    let listed = node.ls(&ws, ROOT_INO, 200).unwrap();
    assert!(listed.len() == 10_000 && listed.iter().all(|(_, known)| *known));
}

/// Reading a directory's files one after another, as `cp -r` and compilers do.
#[test]
fn small_files_read_in_order_share_requests_and_others_fetch_nothing_in_vain() {
    let cold = Cold::grid(4, 1000);
    let node = cold.node("n1");
    let ws = node.mount("ws");
    let chunks = |node: &Node<'_>, dir: u32, files: &mut dyn Iterator<Item = u32>| {
        // The directory itself first, so that what is counted is content.
        for f in 0..1000 {
            assert!(node.find(&ws, &format!("d{dir:04}/f{f:04}")).unwrap().is_some());
        }
        cold.rounds.reset();
        let mut read = 0;
        for f in files {
            let path = format!("d{dir:04}/f{f:04}");
            let text = node.cat(&ws, &path);
            assert_eq!(text, content(&path));
            read += 1;
        }
        (read, cold.rounds.reads().iter().filter(|r| r.key.starts_with("packs/")).count())
    };
    let (read, requests) = chunks(&node, 1, &mut (0..999));
    assert!(requests <= 16, "{requests} requests for {read} files");
    let ahead = ws.status().read_ahead;
    assert!(ahead.used_bytes * 10 >= ahead.fetched_bytes * 7, "{ahead:?}");

    // Far apart and backwards: a request each and nothing more.
    // The first one follows the last window once more.
    chunks(&node, 2, &mut std::iter::once(990));
    let ahead = ws.status().read_ahead;
    let (read, requests) = chunks(&node, 2, &mut (0..900).rev().step_by(90));
    assert_eq!(requests, read);
    assert_eq!(ws.status().read_ahead.fetched_bytes, ahead.fetched_bytes);
}

/// What was made here is read, extended and listed while the store is away, though no record of the tree near it is at hand.
#[test]
fn what_is_newer_than_the_tree_needs_no_store() {
    let cold = Cold::grid(20, 1000);
    let node = cold.node("n1");
    let ws = node.mount("ws");
    let made = node.change(&ws, |tx| make(tx, ROOT, &New::of(FileKind::File, ROOT_INO, b"new", 0o644, 0)));
    cold.faults.set_down(true);
    node.change(&ws, |tx| data::write(tx, made.ino, 0, &[7; 200_000], WriteMode::default()));
    let mut out = Vec::new();
    node.see(&ws, |v| data::read(v, made.ino, 0, 200_000, &mut out)).unwrap();
    assert_eq!(out, [7; 200_000]);
    assert_eq!(cold.faults.refused_down(), 0);
}
