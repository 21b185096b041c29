//! The interleavings of `protocols.md` 9 that concern collection: one side is stopped at a request, the other runs. All on one thread, so
//! that a request whose answer is held back has taken effect before the other side moves.

use hiloop_engine::catalog::{DeletedKind, Head};
use hiloop_engine::delete::delete;
use hiloop_engine::fork::{ForkOptions, fork};
use hiloop_engine::fsck::{FsckOptions, fsck};
use hiloop_engine::gc::{GcOptions, GcReport, gc};
use hiloop_manifest::schema::FileKind;
use hiloop_store::Call;
use hiloop_store::faults::{Fault, Injected, Rule};
use hiloop_types::{ErrorKind, Result};
use tokio::task::JoinHandle;

use crate::gc::collect;
use crate::support::*;

/// A collector that stops at the request of the rule.
async fn stopped(bench: &Bench, rule: Rule) -> (JoinHandle<Result<GcReport>>, Injected) {
    let (ctx, faults) = bench.faulty();
    let at = faults.inject(rule);
    let run = tokio::spawn(async move { gc(&ctx, GcOptions::default()).await });
    at.reached(1).await;
    (run, at)
}

/// `w` with a pack that should be rewritten, and an unused one.
async fn sparse(bench: &Bench) -> Writer {
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let mut w = Writer::open(&ctx, "w").await;
    let mut edit = w.edit().await;
    for i in 0..6 {
        edit.create(&format!("f{i}"), FileKind::File, &noise(50 + i, 40_000)).await;
    }
    w.publish(edit).await;
    let mut edit = w.edit().await;
    for i in 1..6 {
        edit.unlink(&format!("f{i}")).await;
    }
    w.publish(edit).await;
    w
}

#[tokio::test]
async fn two_collectors_while_one_rewrites() {
    // Wherever the rewriter is stopped, others run twice, and it goes on.
    for (n, rule) in [
        Rule::on(Fault::StallAnswer).call(Call::Create).key("intents/"),
        Rule::on(Fault::StallAnswer).call(Call::Create).key("packs/"),
        Rule::on(Fault::Stall).call(Call::Create).key("forwards/"),
        Rule::on(Fault::StallAnswer).call(Call::Create).key("forwards/"),
        Rule::on(Fault::StallAnswer).call(Call::Delete).key("intents/"),
    ]
    .into_iter()
    .enumerate()
    {
        let bench = Bench::memory(60 + n as u64);
        sparse(&bench).await;
        let (rewriting, at) = stopped(&bench, rule).await;
        for _ in 0..2 {
            collect(&bench).await;
            assert_clean(&bench.ctx()).await;
        }
        at.release();
        rewriting.await.unwrap().unwrap();
        assert_clean(&bench.ctx()).await;
        for _ in 0..3 {
            collect(&bench).await;
            assert_clean(&bench.ctx()).await;
        }
        assert_eq!(bench.keys("forwards").await.len(), 1);
        assert_eq!(collect(&bench).await.packs_deleted, 0);
    }
}

#[tokio::test]
async fn a_collector_that_listed_packs_before_a_rewrite_deletes_nothing_that_it_made() {
    for (n, prefix) in ["packs", "intents", "heads", "leases"].into_iter().enumerate() {
        let bench = Bench::memory(70 + n as u64);
        sparse(&bench).await;
        let (slow, at) = stopped(&bench, Rule::on(Fault::StallAnswer).call(Call::List).key(prefix)).await;
        assert_eq!(collect(&bench).await.repacked, 1);
        collect(&bench).await;
        at.release();
        // The old pack may have gone under its hands: then it says so and has deleted nothing.
        if let Err(e) = slow.await.unwrap() {
            assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
        }
        assert_clean(&bench.ctx()).await;
        collect(&bench).await;
        assert_clean(&bench.ctx()).await;
    }
}

#[tokio::test]
async fn fork_and_delete_run_around_the_listing() {
    // The collector has listed heads and read none; the tree's only name moves from `w` over `x` to `y` meanwhile.
    for (n, prefix) in ["packs", "intents", "heads", "snapshots", "bases", "deleted", "leases"].into_iter().enumerate() {
        let bench = Bench::memory(80 + n as u64);
        let ctx = bench.ctx();
        sparse(&bench).await.release().await;
        let (slow, at) = stopped(&bench, Rule::on(Fault::StallAnswer).call(Call::List).key(prefix)).await;
        for (from, to) in [("w", "x"), ("x", "y")] {
            fork_one(&ctx, &format!("workspace:{from}"), to).await;
            delete(&ctx, DeletedKind::Workspace, from, false).await.unwrap();
        }
        at.release();
        slow.await.unwrap().unwrap();
        assert!(ctx.catalog.live_head(&name("y")).await.is_ok());
        assert_clean(&bench.ctx()).await;
    }
}

#[tokio::test]
async fn a_chain_of_forks_that_no_listing_shows_keeps_its_root() {
    // At each listing of heads the tree's only name is one that is gone when it is read. The deletion objects keep the root: without them
    // (the control) it is lost.
    for guarded in [true, false] {
        let bench = Bench::memory(88);
        let ctx = bench.ctx();
        sparse(&bench).await.release().await;
        let (slow, faults) = bench.faulty();
        let heads = || Rule::on(Fault::StallAnswer).call(Call::List).key("heads");
        let mut at = faults.inject(heads());
        let run = tokio::spawn(async move { gc(&slow, GcOptions::default()).await });
        for (from, to) in [("w", "x"), ("x", "y")] {
            at.reached(1).await;
            fork_one(&ctx, &format!("workspace:{from}"), to).await;
            delete(&ctx, DeletedKind::Workspace, from, false).await.unwrap();
            if !guarded {
                for key in bench.keys("deleted").await {
                    bench.store.delete(&key).await.unwrap();
                }
            }
            let next = faults.inject(heads());
            at.release();
            at = next;
        }
        at.release();
        run.await.unwrap().unwrap();
        assert!(ctx.catalog.live_head(&name("y")).await.is_ok());
        let report = fsck(&bench.ctx(), &FsckOptions { deep: true, source: None }).await.unwrap();
        assert_eq!(report.is_clean(), guarded, "{report:#?}");
    }
}

#[tokio::test]
async fn a_rewritten_pack_is_protected_before_its_forward_is_there() {
    // By its intent: without it (the control) another collector sweeps the new pack, and the old one must then stay.
    for guarded in [true, false] {
        let bench = Bench::memory(89);
        sparse(&bench).await;
        let (first, at_forward) = stopped(&bench, Rule::on(Fault::Stall).call(Call::Create).key("forwards/")).await;
        if !guarded {
            for key in bench.keys("intents").await {
                bench.store.delete(&key).await.unwrap();
            }
        }
        let packs = bench.packs().await;
        // The second has swept when it comes to rewrite.
        let (second, at_intent) = stopped(&bench, Rule::on(Fault::Stall).call(Call::Create).key("intents/")).await;
        assert_eq!(bench.packs().await == packs, guarded);
        at_forward.release();
        first.await.unwrap().unwrap();
        at_intent.release();
        second.await.unwrap().unwrap();
        for _ in 0..3 {
            collect(&bench).await;
            assert_clean(&bench.ctx()).await;
        }
    }
}

#[tokio::test]
async fn a_fork_that_is_stopped_anywhere_keeps_its_root() {
    for (n, rule) in [
        Rule::on(Fault::StallAnswer).call(Call::Create).key("intents/"),
        Rule::on(Fault::StallAnswer).call(Call::Get).key("heads/w").after(1),
        Rule::on(Fault::Stall).call(Call::Create).key("heads/child"),
        Rule::on(Fault::StallAnswer).call(Call::Create).key("heads/child"),
    ]
    .into_iter()
    .enumerate()
    {
        let bench = Bench::memory(90 + n as u64);
        let ctx = bench.ctx();
        sparse(&bench).await.release().await;
        let (slow, faults) = bench.faulty();
        let at = faults.inject(rule);
        let forking = tokio::spawn(async move { fork(&slow, "workspace:w", &["child".into()], &ForkOptions::default()).await });
        at.reached(1).await;
        delete(&ctx, DeletedKind::Workspace, "w", false).await.unwrap();
        collect(&bench).await;
        collect(&bench).await;
        at.release();
        match forking.await.unwrap() {
            Ok(made) => {
                assert!(made[0].error.is_none() && n > 0);
                assert!(ctx.catalog.live_head(&name("child")).await.is_ok());
            }
            // It saw the deletion when it read again.
            Err(e) => assert!(e.kind() == ErrorKind::NotFound && n == 0, "{n}: {e}"),
        }
        assert_clean(&bench.ctx()).await;
        collect(&bench).await;
        assert_clean(&bench.ctx()).await;
    }
}

#[tokio::test]
async fn a_deletion_that_died_half_way_neither_loses_nor_leaks() {
    let bench = Bench::memory(100);
    sparse(&bench).await.release().await;
    let (slow, faults) = bench.faulty();
    let died = faults.inject(Rule::on(Fault::Before(ErrorKind::Denied)).call(Call::Swap).key("heads/w"));
    assert!(delete(&slow, DeletedKind::Workspace, "w", false).await.is_err());
    assert_eq!((died.fired(), bench.keys("deleted").await.len()), (1, 1));
    collect(&bench).await;
    assert_clean(&bench.ctx()).await;
    // The head moves on: the stale object holds what only it names no longer.
    let mut w = Writer::open(&bench.ctx(), "w").await;
    let mut edit = w.edit().await;
    edit.unlink("f0").await;
    w.publish(edit).await;
    let freed = collect(&bench).await;
    assert!(freed.bytes_freed > 40_000, "{freed:?}");
    assert_clean(&bench.ctx()).await;
}

#[tokio::test]
async fn a_base_that_is_a_dedup_source_is_deleted_while_another_is_published() {
    for (n, delete_it) in [false, true].into_iter().enumerate() {
        let bench = Bench::memory(110 + n as u64);
        let ctx = bench.ctx();
        let dir = tempfile::tempdir().unwrap();
        for i in 0..4 {
            std::fs::write(dir.path().join(format!("f{i}")), noise(i, 50_000)).unwrap();
        }
        publish(&ctx, "one", dir.path()).await.unwrap();
        std::fs::write(dir.path().join("new"), noise(77, 50_000)).unwrap();
        let (slow, faults) = bench.faulty();
        let at = faults.inject(Rule::on(Fault::Stall).call(Call::Create).key("packs/"));
        let path = dir.path().to_owned();
        let publishing = tokio::spawn(async move { publish(&slow, "two", &path).await });
        at.reached(1).await;
        if delete_it {
            delete(&ctx, DeletedKind::Base, "one", false).await.unwrap();
        }
        let report = collect(&bench).await;
        assert_eq!((report.packs_deleted, report.held.len()), (0, 1), "the intent records the base: {report:?}");
        at.release();
        let done = publishing.await.unwrap();
        if delete_it {
            assert_eq!(done.unwrap_err().kind(), ErrorKind::Conflict);
            collect(&bench).await;
            assert!(bench.packs().await.is_empty());
        } else {
            assert_eq!(done.unwrap().chunks_reused, 4);
            delete(&ctx, DeletedKind::Base, "one", false).await.unwrap();
            collect(&bench).await;
            assert_clean(&bench.ctx()).await;
        }
    }
}

#[tokio::test]
async fn packs_of_a_base_in_the_making_are_not_collected() {
    let bench = Bench::memory(120);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), noise(1, 12 << 20)).unwrap();
    let (slow, faults) = bench.faulty();
    // The first pack is there, the last swap is not.
    let at = faults.inject(Rule::on(Fault::Stall).call(Call::Swap).key("bases/id"));
    let path = dir.path().to_owned();
    let publishing = tokio::spawn(async move { publish(&slow, "id", &path).await });
    at.reached(1).await;
    let report = collect(&bench).await;
    assert!(report.packs_deleted == 0 && report.packs_protected >= 2, "{report:?}");
    at.release();
    publishing.await.unwrap().unwrap();
    assert_clean(&bench.ctx()).await;
}

#[tokio::test]
async fn a_head_that_moves_during_the_run_keeps_what_it_published() {
    let bench = Bench::memory(130);
    let mut w = sparse(&bench).await;
    let mut edit = w.edit().await;
    edit.create("early", FileKind::File, &noise(7, 40_000)).await;
    let early = w.ship(edit).await;
    for (n, prefix) in ["packs", "heads", "leases"].into_iter().enumerate() {
        let (slow, at) = stopped(&bench, Rule::on(Fault::StallAnswer).call(Call::List).key(prefix)).await;
        if n == 0 {
            assert!(w.commit(early).await);
        }
        let mut edit = w.edit().await;
        edit.create(&format!("during{n}"), FileKind::File, &noise(8 + n as u64, 40_000)).await;
        w.publish(edit).await;
        at.release();
        slow.await.unwrap().unwrap();
        assert_clean(&bench.ctx()).await;
    }
}

#[tokio::test]
async fn a_workspace_made_again_under_its_name_is_a_new_name() {
    let bench = Bench::memory(140);
    let ctx = bench.ctx();
    sparse(&bench).await.release().await;
    snapshot(&ctx, "w", "snap").await;
    // Pass one has seen `w` on the base; by pass two it is another workspace, on what only the snapshot named.
    fork_one(&ctx, "base:base", "v").await;
    let (slow, at) = stopped(&bench, Rule::on(Fault::StallAnswer).call(Call::List).key("snapshots")).await;
    delete(&ctx, DeletedKind::Workspace, "v", false).await.unwrap();
    fork_one(&ctx, "snapshot:snap", "v").await;
    delete(&ctx, DeletedKind::Snapshot, "snap", false).await.unwrap();
    delete(&ctx, DeletedKind::Workspace, "w", false).await.unwrap();
    at.release();
    let report = slow.await.unwrap().unwrap();
    assert!(report.passes >= 3, "{report:?}");
    assert!(!ctx.catalog.get::<Head>("v").await.unwrap().unwrap().doc.tombstone);
    assert_clean(&bench.ctx()).await;
}
