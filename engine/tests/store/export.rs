use std::fs;
use std::os::unix::fs::symlink;

use hiloop_engine::diff::diff;
use hiloop_engine::du::du;
use hiloop_engine::export::export;
use hiloop_env::Env;
use hiloop_manifest::schema::{Entry, FileKind, IndexEntry, Key};
use hiloop_store::{Store, StoreOptions, StoreUrl};
use hiloop_types::{ErrorKind, ROOT_INO};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn over_a_directory_store() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, out) = (dir.path().join("tree"), dir.path().join("out"));
    make_tree(&tree);
    let url = StoreUrl::file(&dir.path().join("store")).unwrap();
    let open = || async { Store::open(&url, StoreOptions::default(), Env::real()).await.unwrap() };
    let ctx = hiloop_engine::context::StoreContext::new(open().await, Env::real(), "test:1");
    publish(&ctx, "base", &tree).await.unwrap();
    fork_one(&ctx, "base:base", "w").await;
    let mut w = Writer::open(&ctx, "w").await;
    let mut edit = w.edit().await;
    edit.create("added", FileKind::File, &noise(9, 300_000)).await;
    edit.unlink("big").await;
    w.publish(edit).await;
    let ctx = hiloop_engine::context::StoreContext::new(open().await, Env::real(), "test:2");
    let collected = hiloop_engine::gc::gc(&ctx, Default::default()).await.unwrap();
    assert_eq!(collected.packs_deleted, 0, "{collected:?}");
    assert_clean(&ctx).await;
    let done = export(&ctx, "workspace:w", &out).await.unwrap();
    assert_eq!(fs::read(out.join("added")).unwrap(), noise(9, 300_000));
    assert!(!out.join("big").exists() && (done.inodes, done.names) == (13, 14), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_into_an_empty_directory() {
    let (bench, dir) = (Bench::memory(400), tempfile::tempdir().unwrap());
    small_base(&bench.ctx(), "base").await;
    fs::write(dir.path().join("mine"), b"mine").unwrap();
    let e = export(&bench.ctx(), "base", dir.path()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    let e = export(&bench.ctx(), "base", &dir.path().join("no/such")).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let e = diff(&bench.ctx(), "base", "nothing", &mut |_| Ok(())).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert_eq!(bench.store.list("leases").await.unwrap(), [], "what fails holds up no collection");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_lead_outside_are_refused() {
    for (n, bad) in ["..", ".", "", "a/b", "../../evil"].into_iter().enumerate() {
        let (bench, dir) = (Bench::memory(410 + n as u64), tempfile::tempdir().unwrap());
        let ctx = bench.ctx();
        small_base(&ctx, "base").await;
        fork_one(&ctx, "base:base", "w").await;
        let mut w = Writer::open(&ctx, "w").await;
        let mut edit = w.edit().await;
        let ino = edit.create("good", FileKind::File, b"evil").await;
        let index = edit.attr(ROOT_INO).await.next_index - 1;
        let _: Entry = Entry { ino, kind: FileKind::File, index };
        edit.set(Key::index(ROOT_INO, index), Some(IndexEntry { ino, kind: FileKind::File, name: bad.into() }.encode()));
        w.publish(edit).await;
        let e = export(&ctx, "workspace:w", &dir.path().join("in/out")).await;
        assert!(e.is_err());
        fs::create_dir(dir.path().join("in")).unwrap();
        let e = export(&ctx, "workspace:w", &dir.path().join("in/out")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{bad:?}: {e}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing beside the directory");
        assert_eq!(fs::read_dir(dir.path().join("in")).unwrap().count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_the_tree_is_a_link_and_never_a_way() {
    let (bench, dir) = (Bench::memory(420), tempfile::tempdir().unwrap());
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::create_dir(dir.path().join("outside")).unwrap();
    symlink(dir.path().join("outside"), tree.join("way")).unwrap();
    fs::write(tree.join("zz"), b"file").unwrap();
    publish(&bench.ctx(), "base", &tree).await.unwrap();
    fork_one(&bench.ctx(), "base:base", "w").await;
    // A tree in which the link also has entries, as only an attacker makes one.
    let mut w = Writer::open(&bench.ctx(), "w").await;
    let mut edit = w.edit().await;
    let (way, file) = (edit.lookup("way").await, edit.lookup("zz").await);
    let at_root = |kind| IndexEntry { ino: way, kind, name: b"way".to_vec() };
    edit.set(Key::index(ROOT_INO, 1), Some(at_root(FileKind::Directory).encode()));
    edit.set(Key::index(way, 1), Some(IndexEntry { ino: file, kind: FileKind::File, name: b"planted".to_vec() }.encode()));
    w.publish(edit).await;
    let _ = export(&bench.ctx(), "workspace:w", &dir.path().join("out")).await;
    assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 0);
    assert!(fs::symlink_metadata(dir.path().join("out/way")).unwrap().is_symlink());
}

#[tokio::test(flavor = "multi_thread")]
async fn weights() {
    let bench = Bench::memory(430);
    let ctx = bench.ctx();
    let base = small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let b = du(&ctx, "base:base").await.unwrap();
    assert_eq!((b.files, b.directories, b.inodes, b.bytes_logical, b.bytes_allocated, b.chunks), (3, 2, 5, 90_000, 90_000, 3), "{b:?}");
    assert!(b.bytes_unique == b.bytes_stored && b.bytes_shared == 0 && b.bytes_stored <= base.bytes_stored, "{b:?}");
    let untouched = du(&ctx, "workspace:w").await.unwrap();
    assert_eq!((untouched.bytes_unique, untouched.bytes_shared), (0, b.bytes_stored));
    let mut w = Writer::open(&ctx, "w").await;
    let mut edit = w.edit().await;
    edit.create("own", FileKind::File, &noise(3, 50_000)).await;
    w.publish(edit).await;
    let d = du(&ctx, "workspace:w").await.unwrap();
    assert_eq!((d.bytes_logical, d.chunks), (140_000, 4));
    assert_eq!(d.bytes_shared, b.bytes_stored - b.bytes_nodes, "the base's chunks: {d:?}");
    assert_eq!(d.bytes_unique, 50_000 + d.bytes_nodes, "{d:?}");
}
