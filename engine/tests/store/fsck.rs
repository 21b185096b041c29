use hiloop_engine::fsck::{FsckOptions, FsckReport, fsck};
use hiloop_manifest::schema::{FileKind, Key};
use hiloop_types::{ErrorKind, Ino, Owner, PackId, ROOT_INO};

use crate::support::*;

async fn check(bench: &Bench, deep: bool) -> FsckReport {
    fsck(&bench.ctx(), &FsckOptions { deep, source: None }).await.unwrap()
}

/// The packs of a base: contents, nodes.
async fn packs_of(bench: &Bench, base: &str) -> (String, String) {
    let root = bench.ctx().catalog.require::<hiloop_engine::catalog::BaseDoc>(base).await.unwrap().doc.root.unwrap();
    let nodes = root.node.loc.pack.key();
    let owner = Owner::base(&name(base));
    let mut all = bench.packs().await;
    all.retain(|k| *k != nodes && PackId::parse_key(k).unwrap().owner == owner);
    (all.remove(0), nodes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_pack_is_named_with_what_it_held() {
    let bench = Bench::memory(200);
    small_base(&bench.ctx(), "base").await;
    fork_one(&bench.ctx(), "base:base", "w").await;
    let report = check(&bench, true).await;
    assert!(report.is_clean());
    assert_eq!((report.roots, report.nodes, report.chunks, report.packs, report.inodes), (2, 1, 3, 2, 5), "{report:?}");
    let (data, nodes) = packs_of(&bench, "base").await;
    let kept = bench.store.get(&data).await.unwrap().unwrap().bytes;
    bench.store.delete(&data).await.unwrap();
    for deep in [false, true] {
        let report = check(&bench, deep).await;
        assert_eq!((report.missing_total, report.corrupt_total), (3, 0), "{report:?}");
        assert!(report.missing.iter().all(|f| f.pack == data && f.what == "chunk" && f.inode.is_some() && f.source == "base:base"));
    }
    bench.store.put(&data, kept).await.unwrap();
    bench.store.delete(&nodes).await.unwrap();
    let report = check(&bench, false).await;
    assert_eq!((report.missing_total, report.missing[0].what), (1, "node"), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_found_by_the_deep_check() {
    let bench = Bench::memory(201);
    small_base(&bench.ctx(), "base").await;
    let (data, nodes) = packs_of(&bench, "base").await;
    let good = bench.store.get(&data).await.unwrap().unwrap().bytes;
    let mut bad = good.to_vec();
    bad[20_000] ^= 1;
    bench.store.put(&data, bad.into()).await.unwrap();
    assert!(check(&bench, false).await.is_clean(), "the quick check reads directories only");
    let report = check(&bench, true).await;
    assert_eq!((report.missing_total, report.corrupt_total), (0, 1), "{report:?}");
    assert!(report.corrupt[0].pack == data && report.corrupt[0].inode.is_some());

    // The directory itself.
    let mut bad = good.to_vec();
    let at = bad.len() - 30;
    bad[at] ^= 1;
    bench.store.put(&data, bad.into()).await.unwrap();
    assert_eq!(check(&bench, false).await.corrupt_total, 3);
    bench.store.put(&data, good).await.unwrap();

    let mut bad = bench.store.get(&nodes).await.unwrap().unwrap().bytes.to_vec();
    bad[200] ^= 1;
    bench.store.put(&nodes, bad.into()).await.unwrap();
    let report = check(&bench, false).await;
    assert_eq!((report.corrupt_total, report.corrupt[0].what), (1, "node"), "nodes are always read: {report:?}");
    assert!(
        fsck(&bench.ctx(), &FsckOptions { deep: false, source: Some("no-such".into()) })
            .await
            .is_err_and(|e| e.kind() == ErrorKind::NotFound)
    );
    assert!(bench.keys("leases").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_rules_of_the_file_system_are_named() {
    type Break = fn(&mut Edit) -> futures::future::BoxFuture<'_, ()>;
    let breaks: [(&str, Break); 9] = [
        ("links", |e| {
            Box::pin(async {
                let ino = e.lookup("a").await;
                let mut attr = e.attr(ino).await;
                attr.nlink = 2;
                e.set_attr(ino, &attr);
            })
        }),
        ("entries", |e| {
            Box::pin(async {
                let mut attr = e.attr(ROOT_INO).await;
                attr.entries += 1;
                e.set_attr(ROOT_INO, &attr);
            })
        }),
        ("use index", |e| {
            Box::pin(async {
                let mut attr = e.attr(ROOT_INO).await;
                attr.next_index = 2;
                e.set_attr(ROOT_INO, &attr);
            })
        }),
        ("by name", |e| {
            Box::pin(async {
                e.set(Key::index(ROOT_INO, 1), None);
            })
        }),
        ("does not say so", |e| {
            Box::pin(async {
                let ino = e.lookup("a").await;
                e.set(Key::backref(ino, ROOT_INO, 1), None);
                e.set(Key::backref(ino, ROOT_INO, 77), Some(Vec::new()));
            })
        }),
        ("superblock", |e| {
            Box::pin(async {
                let mut s = e.superblock().await;
                s.totals.bytes += 1;
                e.set(Key::superblock(), Some(s.encode()));
            })
        }),
        ("its blocks hold", |e| {
            Box::pin(async {
                let ino = e.lookup("b").await;
                e.set(Key::block(ino, 0), None);
            })
        }),
        ("orphan", |e| {
            Box::pin(async {
                e.set(Key::orphan(Ino(4711)), Some(Vec::new()));
            })
        }),
        ("no attributes", |e| {
            Box::pin(async {
                e.set(Key::xattr(Ino(4711), b"user.x"), Some(Vec::new()));
            })
        }),
    ];
    let bench = Bench::memory(202);
    small_base(&bench.ctx(), "base").await;
    for (n, (word, broken)) in breaks.into_iter().enumerate() {
        let w = format!("w{n}");
        fork_one(&bench.ctx(), "base:base", &w).await;
        let mut writer = Writer::open(&bench.ctx(), &w).await;
        let mut edit = writer.edit().await;
        edit.create("fine", FileKind::File, b"fine").await;
        broken(&mut edit).await;
        writer.publish(edit).await;
        let report = fsck(&bench.ctx(), &FsckOptions { deep: false, source: Some(format!("workspace:{w}")) }).await.unwrap();
        assert!(report.structure.iter().any(|f| f.why.contains(word)), "{word}: {report:#?}");
        assert!(!report.is_clean() && report.missing_total + report.corrupt_total == 0);
    }
}
