use std::collections::BTreeSet;

use hiloop_engine::context::StoreContext;
use hiloop_engine::diff::{DiffEntry, DiffKind, diff};
use hiloop_manifest::schema::FileKind;

use crate::support::*;

async fn entries(ctx: &StoreContext, a: &str, b: &str) -> Vec<DiffEntry> {
    let mut out = Vec::new();
    let mut each = |e| {
        out.push(e);
        Ok(())
    };
    let told = diff(ctx, a, b, &mut each).await.unwrap();
    assert_eq!(told, out.len() as u64);
    out
}

/// One line an entry: `+ added`, `- removed`, `M modified (dm!)`, `R from -> to`.
async fn lines(ctx: &StoreContext, a: &str, b: &str) -> BTreeSet<String> {
    let show = |e: DiffEntry| {
        let path = String::from_utf8(e.path).unwrap();
        let flags: String = [(e.data, 'd'), (e.metadata, 'm'), (e.replaced, '!')].iter().filter(|(on, _)| *on).map(|(_, c)| c).collect();
        match e.kind {
            DiffKind::Added => format!("+ {path}"),
            DiffKind::Removed => format!("- {path}"),
            DiffKind::Modified => format!("M {path} {flags}"),
            DiffKind::Renamed => format!("R {} -> {path} {flags}", String::from_utf8(e.from.unwrap()).unwrap()),
        }
    };
    let all = entries(ctx, a, b).await;
    let lines: BTreeSet<_> = all.iter().cloned().map(show).collect();
    assert_eq!(lines.len(), all.len(), "nothing is told twice: {all:?}");
    lines
}

fn set<const N: usize>(lines: [&str; N]) -> BTreeSet<String> {
    lines.into_iter().map(String::from).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_path_of_a_hard_link_is_told() {
    let bench = Bench::memory(300);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    assert!(lines(&ctx, "base:base", "workspace:w").await.is_empty());
    let mut w = Writer::open(&ctx, "w").await;
    let mut edit = w.edit().await;
    edit.link("a", "dir/second").await;
    edit.link("a", "third").await;
    w.publish(edit).await;
    assert_eq!(lines(&ctx, "base:base", "workspace:w").await, set(["+ dir/second", "+ third", "M a m"]));
    snapshot(&ctx, "w", "linked").await;

    let mut edit = w.edit().await;
    let ino = edit.lookup("third").await;
    edit.write(ino, b"other").await;
    edit.rename("b", "dir/moved").await;
    edit.create("dir/new", FileKind::File, b"x").await;
    edit.unlink("dir/c").await;
    w.publish(edit).await;
    let told = lines(&ctx, "snapshot:linked", "workspace:w").await;
    assert_eq!(told, set(["M a dm", "M dir/second dm", "M third dm", "R b -> dir/moved ", "+ dir/new", "- dir/c"]));
    let back = lines(&ctx, "workspace:w", "snapshot:linked").await;
    assert_eq!(back, set(["M a dm", "M dir/second dm", "M third dm", "R dir/moved -> b ", "- dir/new", "+ dir/c"]));
    assert!(bench.keys("leases").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_numbers_of_siblings_are_two_inodes() {
    let bench = Bench::memory(301);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    let mut inos = Vec::new();
    for (w, file) in [("x", "only-x"), ("y", "only-y")] {
        fork_one(&ctx, "base:base", w).await;
        let mut writer = Writer::open(&ctx, w).await;
        let mut edit = writer.edit().await;
        // One name in both, made by each: the same number, directory and index.
        inos.push(edit.create("same", FileKind::File, b"same").await);
        inos.push(edit.create(file, FileKind::File, b"same").await);
        writer.publish(edit).await;
    }
    assert_eq!(inos[..2], inos[2..]);
    assert_eq!(lines(&ctx, "workspace:x", "workspace:y").await, set(["M same dm!", "- only-x", "+ only-y"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_renamed_is_told_once() {
    let bench = Bench::memory(302);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let mut w = Writer::open(&ctx, "w").await;
    let mut edit = w.edit().await;
    edit.rename("dir", "renamed").await;
    let ino = edit.lookup("renamed/c").await;
    edit.write(ino, b"short").await;
    w.publish(edit).await;
    assert_eq!(lines(&ctx, "base:base", "workspace:w").await, set(["R dir -> renamed ", "M renamed/c dm"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_replaced_is_told_as_such() {
    let bench = Bench::memory(303);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let mut w = Writer::open(&ctx, "w").await;
    let mut edit = w.edit().await;
    // As an editor saves.
    edit.create("tmp", FileKind::File, b"new content").await;
    edit.unlink("a").await;
    edit.rename("tmp", "a").await;
    w.publish(edit).await;
    assert_eq!(lines(&ctx, "base:base", "workspace:w").await, set(["M a dm!"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_bases_are_compared_by_path() {
    let (bench, dir) = (Bench::memory(304), tempfile::tempdir().unwrap());
    let (ctx, root) = (bench.ctx(), dir.path());
    for (path, data) in [("b", "b"), ("c", "c"), ("gone/x", "x"), ("kept/y", "y")] {
        std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        std::fs::write(root.join(path), data).unwrap();
    }
    publish(&ctx, "one", root).await.unwrap();
    // One more name in front moves every inode number.
    std::fs::write(root.join("a"), "a").unwrap();
    std::fs::write(root.join("c"), "other").unwrap();
    std::fs::remove_dir_all(root.join("gone")).unwrap();
    publish(&ctx, "two", root).await.unwrap();
    assert_eq!(lines(&ctx, "base:one", "base:two").await, set(["+ a", "M c dm", "- gone", "- gone/x"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cost_follows_the_changes() {
    let (bench, dir) = (Bench::memory(305), tempfile::tempdir().unwrap());
    for d in 0..20 {
        std::fs::create_dir(dir.path().join(format!("d{d}"))).unwrap();
        for f in 0..300 {
            std::fs::write(dir.path().join(format!("d{d}/file-with-a-long-name-{f}")), format!("{d}/{f}")).unwrap();
        }
    }
    let ctx = bench.ctx();
    publish(&ctx, "base", dir.path()).await.unwrap();
    fork_one(&ctx, "base:base", "w").await;
    let mut w = Writer::open(&ctx, "w").await;
    let mut edit = w.edit().await;
    let ino = edit.lookup("d7/file-with-a-long-name-33").await;
    edit.write(ino, b"changed").await;
    w.publish(edit).await;
    let before = bench.store.stats();
    let fresh = bench.ctx();
    let told = lines(&fresh, "base:base", "workspace:w").await;
    assert_eq!(told, set(["M d7/file-with-a-long-name-33 dm"]));
    let cost = bench.store.stats().since(&before);
    let nodes = fsck_nodes(&bench).await;
    assert!(cost.range_gets < nodes / 2 && nodes > 20, "{cost:?} of {nodes} nodes");
}

async fn fsck_nodes(bench: &Bench) -> u64 {
    let options = hiloop_engine::fsck::FsckOptions { deep: false, source: Some("base:base".into()) };
    hiloop_engine::fsck::fsck(&bench.ctx(), &options).await.unwrap().nodes
}
