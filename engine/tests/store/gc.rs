use std::time::Duration;

use hiloop_engine::catalog::{CutOff, DeletedKind, FORMAT, Head, Intent, IntentKind};
use hiloop_engine::delete::delete;
use hiloop_engine::fork::{ForkOptions, fork};
use hiloop_engine::gc::{GcOptions, GcReport, gc};
use hiloop_engine::lease::ReadLease;
use hiloop_manifest::schema::FileKind;
use hiloop_store::Call;
use hiloop_store::faults::{Fault, Rule};
use hiloop_types::ErrorKind;

use crate::support::*;

pub async fn collect(bench: &Bench) -> GcReport {
    gc(&bench.ctx(), GcOptions::default()).await.unwrap()
}

/// A base `base`, a workspace `w` on it with one file of its own, released.
async fn one_workspace(bench: &Bench) -> Writer {
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let mut writer = Writer::open(&ctx, "w").await;
    let mut edit = writer.edit().await;
    edit.create("own", FileKind::File, &noise(1, 40_000)).await;
    writer.publish(edit).await;
    writer
}

#[tokio::test]
async fn a_tiny_pack_is_not_sparse() {
    let bench = Bench::memory(42);
    let mut w = one_workspace(&bench).await;
    let mut edit = w.edit().await;
    edit.create("tiny", FileKind::File, b"x").await;
    w.publish(edit).await;
    assert_eq!(collect(&bench).await.repacked, 0);
    assert_eq!(collect(&bench).await.repacked, 0);
}

#[tokio::test]
async fn what_is_named_stays_and_what_is_not_goes() {
    let bench = Bench::memory(30);
    one_workspace(&bench).await.release().await;
    let packs = bench.packs().await.len() as u64;
    let report = collect(&bench).await;
    assert_eq!((report.packs_deleted, report.packs_kept, report.repacked), (0, packs, 0), "{report:?}");
    assert!(report.passes == 2 && report.nodes_marked == 2, "a pass that shows names, one that shows none: {report:?}");
    assert_clean(&bench.ctx()).await;

    delete(&bench.ctx(), DeletedKind::Workspace, "w", false).await.unwrap();
    let dry = gc(&bench.ctx(), GcOptions { dry_run: true, ..Default::default() }).await.unwrap();
    assert_eq!((dry.packs_deleted, bench.packs().await.len() as u64), (2, packs));
    let report = collect(&bench).await;
    assert_eq!((report.packs_deleted, report.bytes_freed), (2, dry.bytes_freed), "{report:?}");
    assert_clean(&bench.ctx()).await;

    delete(&bench.ctx(), DeletedKind::Base, "base", false).await.unwrap();
    assert_eq!(collect(&bench).await.packs_kept, 0);
    assert!(bench.packs().await.is_empty());
}

#[tokio::test]
async fn a_deleted_base_lives_in_what_was_built_on_it() {
    let bench = Bench::memory(31);
    one_workspace(&bench).await.release().await;
    snapshot(&bench.ctx(), "w", "snap").await;
    delete(&bench.ctx(), DeletedKind::Base, "base", false).await.unwrap();
    assert_eq!(collect(&bench).await.packs_deleted, 0);
    delete(&bench.ctx(), DeletedKind::Workspace, "w", false).await.unwrap();
    assert_eq!(collect(&bench).await.packs_deleted, 0, "the snapshot records the base root too");
    assert_clean(&bench.ctx()).await;
    delete(&bench.ctx(), DeletedKind::Snapshot, "snap", false).await.unwrap();
    collect(&bench).await;
    assert!(bench.packs().await.is_empty());
}

#[tokio::test]
async fn packs_above_the_limit_of_a_live_head_stay_and_those_of_a_fenced_one_go() {
    let bench = Bench::memory(32);
    let mut writer = one_workspace(&bench).await;
    let mut edit = writer.edit().await;
    edit.create("more", FileKind::File, &noise(2, 40_000)).await;
    let shipped = writer.ship(edit).await;
    let report = collect(&bench).await;
    assert_eq!((report.packs_deleted, report.packs_protected), (0, 2), "{report:?}");
    assert!(writer.commit(shipped).await);
    assert_clean(&bench.ctx()).await;

    let mut edit = writer.edit().await;
    edit.create("lost", FileKind::File, &noise(3, 40_000)).await;
    let shipped = writer.ship(edit).await;
    assert_eq!(collect(&bench).await.packs_deleted, 1, "nodes of the root before the last");
    let successor = Writer::open(&bench.ctx(), "w").await;
    assert_eq!(collect(&bench).await.packs_deleted, 2, "nobody can publish what a fenced session shipped");
    assert!(!writer.commit(shipped).await);
    successor.release().await;
    assert_clean(&bench.ctx()).await;
}

#[tokio::test]
async fn any_error_ends_the_run_with_nothing_deleted() {
    let bench = Bench::memory(33);
    one_workspace(&bench).await.release().await;
    delete(&bench.ctx(), DeletedKind::Workspace, "w", false).await.unwrap();
    let packs = bench.packs().await;
    for prefix in ["packs", "intents", "forwards", "heads", "snapshots", "bases", "cutoffs", "deleted", "leases"] {
        for fault in [Fault::Before(ErrorKind::Unavailable), Fault::Cut(0)] {
            let (ctx, faults) = bench.faulty();
            let broken = faults.inject(Rule::on(fault).call(Call::List).key(prefix));
            let e = gc(&ctx, GcOptions::default()).await.unwrap_err();
            assert_eq!((e.kind(), broken.fired()), (ErrorKind::Unavailable, 1), "{prefix}: {e}");
        }
    }
    // A later pass counts as much as the first; so does any document, and any node.
    for rule in [
        Rule::on(Fault::Before(ErrorKind::Unavailable)).call(Call::List).key("heads").after(1),
        Rule::on(Fault::Before(ErrorKind::Denied)).call(Call::Get).key("bases/base"),
        Rule::on(Fault::Flip(0)).call(Call::Get).key("heads/w"),
        // What is fetched ahead is asked for again.
        Rule::on(Fault::Before(ErrorKind::Unavailable)).call(Call::GetRange).key("packs/").times(2),
    ] {
        let (ctx, faults) = bench.faulty();
        let broken = faults.inject(rule.clone());
        assert!(gc(&ctx, GcOptions::default()).await.is_err(), "{rule:?}");
        assert!(broken.fired() > 0, "{rule:?}");
    }
    assert_eq!(bench.packs().await, packs);
    assert_eq!(collect(&bench).await.packs_deleted, 2);
}

#[tokio::test]
async fn a_missing_node_ends_the_run() {
    let bench = Bench::memory(34);
    one_workspace(&bench).await.release().await;
    let root = bench.ctx().catalog.live_head(&name("w")).await.unwrap().doc.root.unwrap();
    bench.store.delete(&root.node.loc.pack.key()).await.unwrap();
    let packs = bench.packs().await;
    assert_eq!(gc(&bench.ctx(), GcOptions::default()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(bench.packs().await, packs);
}

#[tokio::test]
async fn leases_and_intents_of_the_dead_protect_until_they_are_dropped() {
    let bench = Bench::memory(35);
    one_workspace(&bench).await.release().await;
    let ctx = bench.ctx();
    let lease = ReadLease::take(&ctx, "workspace:w").await.unwrap();
    // A fork that died between its intent and its children.
    let s = lease.source().clone();
    let kind = IntentKind::Fork { root: s.root, bases: s.bases };
    let intent = Intent { format: FORMAT, nonce: ctx.catalog.nonce(), holder: "dead:1".into(), kind, created: ctx.catalog.now() };
    ctx.catalog.create(&intent).await.unwrap();
    delete(&ctx, DeletedKind::Workspace, "w", false).await.unwrap();

    let report = collect(&bench).await;
    assert_eq!(report.packs_deleted, 0, "{report:?}");
    let mut held: Vec<_> = report.held.iter().map(|h| (h.what, h.holder.as_str())).collect();
    held.sort_unstable();
    assert_eq!(held, [("fork", "dead:1"), ("lease", "test:1")]);

    lease.check().await.unwrap();
    let nonce = report.held.iter().find(|h| h.what == "lease").unwrap().nonce;
    let report = gc(&ctx, GcOptions { drop: nonce, ..Default::default() }).await.unwrap();
    assert_eq!(report.packs_deleted, 0, "the intent still holds");
    let e = lease.finish().await.unwrap_err();
    assert!(e.kind() == ErrorKind::Closed && e.to_string().contains("ESTALE"), "{e}");
    let report = gc(&ctx, GcOptions { drop: Some(intent.nonce), ..Default::default() }).await.unwrap();
    assert_eq!(report.packs_deleted, 2);
    let e = gc(&ctx, GcOptions { drop: Some(intent.nonce), ..Default::default() }).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_dropped_lease_is_removed_in_the_background() {
    let bench = Bench::memory(36);
    small_base(&bench.ctx(), "base").await;
    let (ctx, faults) = bench.faulty();
    let removed = faults.inject(Rule::on(Fault::StallAnswer).call(Call::Delete).key("leases/"));
    drop(ReadLease::take(&ctx, "base").await.unwrap());
    removed.reached(1).await;
    assert!(bench.keys("leases").await.is_empty());
    removed.release();
}

#[tokio::test]
async fn a_cut_off_root_waits_for_recover_for_thirty_days() {
    let bench = Bench::memory(37);
    let writer = one_workspace(&bench).await;
    let ctx = bench.ctx();
    let h = &writer.head;
    let cut = CutOff {
        format: FORMAT,
        name: h.name.clone(),
        epoch: h.epoch,
        session: h.session,
        root: h.root,
        sequence: h.sequence,
        bases: h.bases.clone(),
        at: ctx.catalog.now(),
    };
    ctx.catalog.create(&cut).await.unwrap();
    delete(&ctx, DeletedKind::Workspace, "w", true).await.unwrap();
    assert_eq!(collect(&bench).await.packs_deleted, 0);
    bench.clock.advance(Duration::from_secs(31 * 86400));
    let report = collect(&bench).await;
    assert_eq!(report.packs_deleted, 2);
    assert!(bench.keys("cutoffs").await.is_empty());
    assert!(report.records_deleted == 2 && bench.keys("deleted").await.is_empty(), "the deletion is old as well: {report:?}");
}

#[tokio::test]
async fn grace_keeps_what_is_young() {
    let bench = Bench::memory(38);
    one_workspace(&bench).await.release().await;
    delete(&bench.ctx(), DeletedKind::Workspace, "w", false).await.unwrap();
    bench.clock.advance(Duration::from_secs(100));
    let with = |secs| GcOptions { grace: Duration::from_secs(secs), ..Default::default() };
    let report = gc(&bench.ctx(), with(3600)).await.unwrap();
    assert_eq!((report.packs_deleted, report.packs_protected), (0, 2));
    assert_eq!(gc(&bench.ctx(), with(50)).await.unwrap().packs_deleted, 2);
}

#[tokio::test]
async fn of_a_thousand_forks_the_last_one_stays_whole() {
    let bench = Bench::memory(39);
    one_workspace(&bench).await.release().await;
    snapshot(&bench.ctx(), "w", "snap").await;
    let names: Vec<_> = (0..1000).map(|i| format!("f{i}")).collect();
    let made = fork(&bench.ctx(), "snapshot:snap", &names, &ForkOptions::default()).await.unwrap();
    assert!(made.iter().all(|c| c.error.is_none()));
    for i in [0, 1, 999] {
        let mut w = Writer::open(&bench.ctx(), &format!("f{i}")).await;
        let mut edit = w.edit().await;
        edit.create("mine", FileKind::File, &noise(1000 + i, 40_000)).await;
        w.publish(edit).await;
        w.release().await;
    }
    for i in 0..999 {
        delete(&bench.ctx(), DeletedKind::Workspace, &format!("f{i}"), false).await.unwrap();
    }
    delete(&bench.ctx(), DeletedKind::Snapshot, "snap", false).await.unwrap();
    delete(&bench.ctx(), DeletedKind::Workspace, "w", false).await.unwrap();
    // Beside a live writer that ships.
    let mut live = Writer::open(&bench.ctx(), "f999").await;
    let mut edit = live.edit().await;
    edit.create("late", FileKind::File, b"late").await;
    let shipped = live.ship(edit).await;
    let report = collect(&bench).await;
    assert_eq!(report.packs_deleted, 5, "data and nodes of two forks, and w's nodes; its data is f999's too: {report:?}");
    assert!(live.commit(shipped).await);
    assert_clean(&bench.ctx()).await;
}

#[tokio::test]
async fn a_sparse_pack_is_rewritten_forwarded_and_then_goes() {
    let bench = Bench::memory(40);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let mut w = Writer::open(&ctx, "w").await;
    let mut edit = w.edit().await;
    for i in 0..10 {
        edit.create(&format!("f{i}"), FileKind::File, &noise(50 + i, 40_000)).await;
    }
    w.publish(edit).await;
    let mut edit = w.edit().await;
    for i in 1..10 {
        edit.unlink(&format!("f{i}")).await;
    }
    w.publish(edit).await;
    let root = w.head.root;

    let first = collect(&bench).await;
    assert_eq!((first.repacked, first.damaged.len()), (1, 0), "{first:?}");
    assert_eq!((bench.keys("forwards").await.len(), bench.keys("intents").await.len()), (1, 0));
    assert_clean(&bench.ctx()).await;
    let second = collect(&bench).await;
    assert_eq!((second.packs_deleted, second.repacked), (1, 0), "{second:?}");
    assert!(second.bytes_freed > 390_000 && first.bytes_repacked < 60_000, "{first:?} {second:?}");
    assert_clean(&bench.ctx()).await;
    let third = collect(&bench).await;
    assert_eq!((third.packs_deleted, third.repacked, third.forwards_deleted), (0, 0, 0), "a root still names the old pack: {third:?}");
    assert_eq!(ctx.catalog.get::<Head>("w").await.unwrap().unwrap().doc.root, root, "no head moved");

    // Content that only the forward leads to can be forked, written on and read.
    fork_one(&ctx, "workspace:w", "child").await;
    let mut child = Writer::open(&bench.ctx(), "child").await;
    let mut edit = child.edit().await;
    edit.create("new", FileKind::File, b"new").await;
    child.publish(edit).await;
    let out = tempfile::tempdir().unwrap();
    hiloop_engine::export::export(&bench.ctx(), "workspace:child", &out.path().join("out")).await.unwrap();
    assert_eq!(std::fs::read(out.path().join("out/f0")).unwrap(), noise(50, 40_000));

    delete(&ctx, DeletedKind::Workspace, "w", true).await.unwrap();
    delete(&ctx, DeletedKind::Workspace, "child", true).await.unwrap();
    collect(&bench).await;
    assert_eq!(bench.keys("forwards").await.len(), 1, "an owner that was deleted under its feet may still name its root");
    bench.clock.advance(Duration::from_secs(31 * 86400));
    collect(&bench).await;
    assert!(bench.keys("forwards").await.is_empty(), "a forward lives while a root names its old pack");
    assert_clean(&ctx).await;
}

#[tokio::test]
async fn a_rewritten_pack_is_rewritten_again() {
    let bench = Bench::memory(41);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let mut w = Writer::open(&ctx, "w").await;
    let mut edit = w.edit().await;
    for i in 0..12 {
        edit.create(&format!("f{i}"), FileKind::File, &noise(50 + i, 40_000)).await;
    }
    w.publish(edit).await;
    for (from, to) in [(5, 12), (1, 5)] {
        let mut edit = w.edit().await;
        for i in from..to {
            edit.unlink(&format!("f{i}")).await;
        }
        w.publish(edit).await;
        assert_eq!(collect(&bench).await.repacked, 1);
        assert_eq!(collect(&bench).await.packs_deleted, 1);
        assert_clean(&bench.ctx()).await;
    }
    assert_eq!(bench.keys("forwards").await.len(), 2, "the root's hint leads over both");
    assert_eq!(collect(&bench).await.packs_deleted, 0);
    assert_clean(&bench.ctx()).await;
}
