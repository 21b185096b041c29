//! Deleting names: exactly what was read goes, and nothing that was made under the name since.

use std::time::Duration;

use hiloop_engine::catalog::DeletedKind;
use hiloop_engine::delete::delete;
use hiloop_engine::look::{list_bases, list_snapshots, resolve};
use hiloop_store::Call;
use hiloop_store::faults::{Fault, Rule};
use hiloop_types::ErrorKind;

use crate::gc::collect;
use crate::support::*;

/// A base `b`, a workspace `w` on it, a snapshot `s` of that.
async fn one_of_each(bench: &Bench) {
    let ctx = bench.ctx();
    small_base(&ctx, "b").await;
    fork_one(&ctx, "base:b", "w").await;
    snapshot(&ctx, "w", "s").await;
}

const EACH: [(DeletedKind, &str, &str); 3] =
    [(DeletedKind::Base, "b", "bases/b"), (DeletedKind::Snapshot, "s", "snapshots/s"), (DeletedKind::Workspace, "w", "heads/w")];

#[tokio::test]
async fn a_late_deletion_spares_what_was_made_under_the_name_since() {
    // The write that deletes is held back, or its answer is lost and it lands later; meanwhile somebody deletes and makes anew.
    for (n, (kind, called, key)) in EACH.into_iter().enumerate() {
        for late in [false, true] {
            let bench = Bench::memory(900 + n as u64);
            let ctx = bench.ctx();
            one_of_each(&bench).await;
            let (slow, faults) = bench.faulty();
            let fault = if late { Fault::Late } else { Fault::Stall };
            let at = faults.inject(Rule::on(fault).call(Call::Swap).key(key));
            let again = faults.inject(Rule::on(Fault::Stall).call(Call::Get).key(key).after(1));
            let run = tokio::spawn(async move { delete(&slow, kind, called, false).await });
            if late {
                again.reached(1).await
            } else {
                at.reached(1).await
            }
            delete(&ctx, kind, called, false).await.unwrap();
            // Time passes: what is made anew has another birth.
            bench.clock.advance(Duration::from_secs(2));
            match kind {
                DeletedKind::Base => drop(small_base(&ctx, "b").await),
                DeletedKind::Snapshot => snapshot(&ctx, "w", "s").await,
                DeletedKind::Workspace => fork_one(&ctx, "base:b", "w").await,
            }
            if late {
                at.land().await;
            } else {
                at.release();
            }
            again.release();
            assert_eq!(at.fired(), 1, "{key}");
            let error = run.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            resolve(&ctx, called).await.unwrap_or_else(|e| panic!("{key}, late: {late}: {e}"));
            for _ in 0..2 {
                collect(&bench).await;
                assert_clean(&ctx).await;
            }
            resolve(&ctx, called).await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_unclear_answer_to_a_deletion_is_settled() {
    for (n, (kind, called, key)) in EACH.into_iter().enumerate() {
        for fault in [Fault::After(ErrorKind::Unavailable), Fault::Before(ErrorKind::Unavailable), Fault::LostThoughApplied] {
            let bench = Bench::memory(910 + n as u64);
            one_of_each(&bench).await;
            let (ctx, faults) = bench.faulty();
            let hit = faults.inject(Rule::on(fault).call(Call::Swap).key(key));
            let first = delete(&ctx, kind, called, false).await;
            assert_eq!(hit.fired(), 1, "{key} {fault:?}");
            if let Err(e) = &first {
                assert_eq!(e.kind(), ErrorKind::Unavailable, "{key} {fault:?}: {e}");
                delete(&ctx, kind, called, false).await.unwrap();
            }
            assert_eq!(resolve(&ctx, called).await.unwrap_err().kind(), ErrorKind::NotFound, "{key} {fault:?}");
            assert_clean(&bench.ctx()).await;
        }
    }
}

#[tokio::test]
async fn a_deleted_name_is_free_and_its_tombstone_goes_after_thirty_days() {
    let bench = Bench::memory(920);
    let ctx = bench.ctx();
    one_of_each(&bench).await;
    for (kind, called, _) in EACH {
        delete(&ctx, kind, called, false).await.unwrap();
        assert_eq!(delete(&ctx, kind, called, false).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(resolve(&ctx, called).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert!(list_bases(&ctx).await.unwrap().is_empty() && list_snapshots(&ctx).await.unwrap().is_empty());
    assert_eq!(collect(&bench).await.packs_kept, 0);
    assert_eq!((bench.keys("bases").await.len(), bench.keys("snapshots").await.len()), (1, 1), "the tombstones");
    // All three names are taken again.
    one_of_each(&bench).await;
    assert_clean(&ctx).await;
    for (kind, called, _) in EACH {
        delete(&ctx, kind, called, false).await.unwrap();
    }
    bench.clock.advance(Duration::from_secs(31 * 86400));
    collect(&bench).await;
    assert!(bench.keys("bases").await.is_empty() && bench.keys("snapshots").await.is_empty());
    assert_eq!(bench.keys("heads").await.len(), 1, "a head's tombstone keeps the epoch");
}
