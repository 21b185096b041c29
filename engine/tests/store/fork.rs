use hiloop_engine::catalog::{DeletedKind, Head, Intent};
use hiloop_engine::delete::delete;
use hiloop_engine::fork::{ForkOptions, fork};
use hiloop_store::Call;
use hiloop_store::faults::{Fault, Rule};
use hiloop_types::ErrorKind;

use crate::support::*;

#[tokio::test]
async fn one_conditional_put_a_child_and_one_intent_a_call() {
    let bench = Bench::memory(20);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    let before = bench.store.stats();
    let names: Vec<_> = (0..1000).map(|i| format!("w{i}")).collect();
    let made = fork(&ctx, "base:base", &names, &ForkOptions { quota: Some(5), ..ForkOptions::default() }).await.unwrap();
    let cost = bench.store.stats().since(&before);
    assert!(made.iter().all(|c| c.error.is_none() && c.bytes_written <= 8192 && c.bytes_written > 100));
    assert_eq!(made.iter().map(|c| c.name.clone()).collect::<Vec<_>>(), names);
    assert_eq!((cost.creates, cost.swaps, cost.puts, cost.deletes, cost.lists), (1001, 0, 0, 1, 0), "{cost:?}");
    assert!(cost.gets <= 4 && cost.range_gets == 0, "{cost:?}");
    assert!(cost.bytes_out <= 1001 * 8192);
    let head = ctx.catalog.live_head(&name("w7")).await.unwrap().doc;
    assert_eq!((head.quota, head.domain.as_str(), head.epoch.0), (Some(5), "default", 0));
    assert!(bench.keys("intents").await.is_empty());
}

#[tokio::test]
async fn a_name_that_exists_fails_alone_and_a_tombstone_keeps_counting() {
    let bench = Bench::memory(21);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    Writer::open(&ctx, "w").await.release().await;
    fork_one(&ctx, "workspace:w", "gone").await;
    Writer::open(&ctx, "gone").await.release().await;
    delete(&ctx, DeletedKind::Workspace, "gone", false).await.unwrap();
    let names = ["w", "gone", "fresh", "Bad Name", "fresh"].map(String::from);
    let made = fork(&ctx, "workspace:w", &names, &ForkOptions::default()).await.unwrap();
    let kinds: Vec<_> = made.iter().map(|c| c.error.as_ref().map(|e| e.kind())).collect();
    let (conflict, invalid) = (Some(ErrorKind::Conflict), Some(ErrorKind::Invalid));
    assert_eq!(kinds[0], conflict);
    assert_eq!((kinds[1], kinds[3]), (None, invalid));
    // Of the two that ask for one name, one gets it.
    assert!([(None, conflict), (conflict, None)].contains(&(kinds[2], kinds[4])), "{kinds:?}");
    let head = ctx.catalog.get::<Head>("gone").await.unwrap().unwrap().doc;
    assert!(!head.tombstone);
    assert_eq!(head.epoch.0, 3, "opened at 1, deleted at 2, created again at 3");
}

#[tokio::test]
async fn a_source_that_moves_or_goes_behind_the_intent_is_read_again() {
    let bench = Bench::memory(22);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let mut writer = Writer::open(&ctx, "w").await;

    let (slow, faults) = bench.faulty();
    let paused = faults.inject(Rule::on(Fault::StallAnswer).call(Call::Create).key("intents/"));
    let forking = tokio::spawn(async move { fork(&slow, "workspace:w", &["child".into()], &ForkOptions::default()).await });
    paused.reached(1).await;
    let mut edit = writer.edit().await;
    edit.create("new", hiloop_manifest::schema::FileKind::File, b"data").await;
    writer.publish(edit).await;
    paused.release();
    let made = forking.await.unwrap().unwrap();
    assert!(made[0].error.is_none());
    assert_eq!(
        ctx.catalog.live_head(&name("child")).await.unwrap().doc.root,
        writer.head.root,
        "the child has the root of the second reading"
    );

    let (slow, faults) = bench.faulty();
    let paused = faults.inject(Rule::on(Fault::StallAnswer).call(Call::Create).key("intents/"));
    let forking = tokio::spawn(async move { fork(&slow, "workspace:w", &["late".into()], &ForkOptions::default()).await });
    paused.reached(1).await;
    delete(&ctx, DeletedKind::Workspace, "w", true).await.unwrap();
    paused.release();
    assert_eq!(forking.await.unwrap().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(ctx.catalog.get::<Head>("late").await.unwrap().is_none());
    assert!(bench.keys("intents").await.is_empty());
}

#[tokio::test]
async fn a_lost_answer_does_not_make_a_child_foreign() {
    let bench = Bench::memory(23);
    small_base(&bench.ctx(), "base").await;
    let (ctx, faults) = bench.faulty();
    let lost = faults.inject(Rule::on(Fault::LostThoughApplied).call(Call::Create).key("heads/").times(2));
    let ambiguous = faults.inject(Rule::on(Fault::After(ErrorKind::Unavailable)).call(Call::Create).key("heads/c"));
    let names = ["a", "b", "c"].map(String::from);
    let made = fork(&ctx, "base:base", &names, &ForkOptions::default()).await.unwrap();
    assert!(made.iter().all(|c| c.error.is_none()), "{made:?}");
    assert_eq!(lost.fired() + ambiguous.fired(), 3);
}

#[tokio::test]
async fn an_intent_that_a_collector_dropped_fails_the_fork() {
    let bench = Bench::memory(24);
    small_base(&bench.ctx(), "base").await;
    let (slow, faults) = bench.faulty();
    let paused = faults.inject(Rule::on(Fault::StallAnswer).call(Call::Create).key("heads/"));
    let forking = tokio::spawn(async move { fork(&slow, "base:base", &["child".into()], &ForkOptions::default()).await });
    paused.reached(1).await;
    let ctx = bench.ctx();
    let intent = ctx.catalog.list::<Intent>().await.unwrap().remove(0).doc.nonce;
    let options = hiloop_engine::gc::GcOptions { drop: Some(intent), ..Default::default() };
    hiloop_engine::gc::gc(&ctx, options).await.unwrap();
    paused.release();
    let e = forking.await.unwrap().unwrap_err();
    assert!(e.kind() == ErrorKind::Closed && e.to_string().contains("ESTALE"), "{e}");
}

#[tokio::test]
async fn deleting_a_live_workspace_needs_force() {
    let bench = Bench::memory(25);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let mut writer = Writer::open(&ctx, "w").await;
    let e = delete(&ctx, DeletedKind::Workspace, "w", false).await.unwrap_err();
    assert!(e.kind() == ErrorKind::Conflict && e.to_string().contains("node-1"), "{e}");
    assert!(bench.keys("deleted").await.is_empty());
    delete(&ctx, DeletedKind::Workspace, "w", true).await.unwrap();
    assert_eq!(bench.keys("deleted").await.len(), 1);
    let root = writer.head.root.unwrap();
    assert!(!writer.commit(root).await, "its writer is fenced");
    assert_eq!(delete(&ctx, DeletedKind::Workspace, "w", true).await.unwrap_err().kind(), ErrorKind::NotFound);
    delete(&ctx, DeletedKind::Base, "base", false).await.unwrap();
    assert!(hiloop_engine::look::list_bases(&ctx).await.unwrap().is_empty());
}
