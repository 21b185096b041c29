use std::fs;
use std::sync::Arc;
use std::time::Duration;

use hiloop_engine::base::{BaseRequest, publish_base};
use hiloop_engine::catalog::{BaseDoc, DeletedKind};
use hiloop_engine::delete::delete;
use hiloop_engine::export::export;
use hiloop_source::SourceSpec;
use hiloop_store::Call;
use hiloop_store::faults::{Fault, Rule};
use hiloop_types::ErrorKind;

use crate::support::*;

#[tokio::test]
async fn a_directory_comes_back_as_it_was_and_costs_nothing_the_second_time() {
    let (bench, dir) = (Bench::memory(1), tempfile::tempdir().unwrap());
    let (tree, out) = (dir.path().join("tree"), dir.path().join("out"));
    make_tree(&tree);
    let ctx = bench.ctx();
    let first = publish(&ctx, "one", &tree).await.unwrap();
    assert!(!first.existed && first.chunks_new > 10 && first.packs >= 3, "{first:?}");
    assert!(first.bytes_logical < (15 << 20), "holes do not count: {first:?}");
    let done = export(&bench.ctx(), "base:one", &out).await.unwrap();
    assert!(done.skipped.is_empty(), "{:?}", done.skipped);
    assert_eq!(listing(&tree), listing(&out));
    assert!(fs::metadata(out.join("sparse")).unwrap().len() == 3 << 20);
    assert_clean(&ctx).await;

    let (objects, before) = (bench.packs().await, bench.store.stats());
    let again = publish(&bench.ctx(), "one", &tree).await.unwrap();
    assert!(again.existed && again.chunks_new == 0 && again.packs == 0, "{again:?}");
    assert_eq!((again.root, again.content), (first.root, first.content));
    assert_eq!(bench.packs().await, objects);
    let cost = bench.store.stats().since(&before);
    assert!(cost.bytes_out < 20_000, "only the probe writes: {cost:?}");
}

#[tokio::test]
async fn content_is_a_function_of_the_source() {
    let (bench, dir) = (Bench::memory(2), tempfile::tempdir().unwrap());
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    make_tree(&one);
    // The same names and bytes, made in another order: the copy is an export.
    let ctx = bench.ctx();
    let a = publish(&ctx, "a", &one).await.unwrap();
    export(&ctx, "base:a", &two).await.unwrap();
    let b = publish(&ctx, "b", &two).await.unwrap();
    assert_eq!(a.content, b.content);
    assert_eq!(a.root.node.id, b.root.node.id, "all of b's chunks were found in a, so even the places are equal");
    assert_eq!((b.chunks_new, b.chunks_reused), (0, a.chunks_new), "{b:?}");
    let doc = ctx.catalog.require::<BaseDoc>("b").await.unwrap().doc;
    assert_eq!(doc.reuses, [base_of(&a)]);
    assert_clean(&ctx).await;
}

#[tokio::test]
async fn other_content_under_one_build_id_is_refused() {
    let (bench, dir) = (Bench::memory(3), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("f"), b"one").unwrap();
    publish(&bench.ctx(), "id", dir.path()).await.unwrap();
    fs::write(dir.path().join("f"), b"two").unwrap();
    let packs = bench.packs().await;
    let e = publish(&bench.ctx(), "id", dir.path()).await.unwrap_err();
    assert!(e.kind() == ErrorKind::Conflict && e.to_string().contains("\"id\""), "{e}");
    assert_eq!(bench.packs().await, packs);
}

#[tokio::test]
async fn an_upload_that_fails_leaves_no_base_and_no_intent() {
    let (bench, dir) = (Bench::memory(4), tempfile::tempdir().unwrap());
    make_tree(&dir.path().join("t"));
    let (ctx, faults) = bench.faulty();
    let broken = faults.inject(Rule::on(Fault::Before(ErrorKind::Denied)).call(Call::Create).key("packs/"));
    let e = publish(&ctx, "id", &dir.path().join("t")).await.unwrap_err();
    assert_eq!((e.kind(), broken.fired()), (ErrorKind::Denied, 1), "{e}");
    assert!(hiloop_engine::look::list_bases(&bench.ctx()).await.unwrap().is_empty());
    publish(&ctx, "id", &dir.path().join("t")).await.unwrap();
    assert_clean(&ctx).await;
}

#[tokio::test]
async fn a_second_publisher_takes_over_and_the_first_fails() {
    let (bench, dir) = (Bench::memory(5), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("f"), noise(5, 50_000)).unwrap();
    let (ctx, faults) = bench.faulty();
    let stalled = faults.inject(Rule::on(Fault::Stall).call(Call::Create).key("packs/"));
    let path = dir.path().to_owned();
    let first = tokio::spawn(async move { publish(&ctx, "id", &path).await });
    stalled.reached(1).await;
    let mut request = BaseRequest::new("id", SourceSpec::Directory(dir.path().to_owned())).unwrap();
    request.patience = Duration::ZERO;
    let second = publish_base(&bench.ctx(), request, Arc::new(|_| ())).await.unwrap();
    stalled.release();
    let e = first.await.unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    assert_eq!(bench.ctx().catalog.require::<BaseDoc>("id").await.unwrap().doc.root, Some(second.root));
    assert_clean(&bench.ctx()).await;
}

#[tokio::test]
async fn a_still_intent_is_taken_over_and_a_moving_one_is_not() {
    let (bench, dir) = (Bench::memory(6), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("f"), b"x").unwrap();
    let ctx = bench.ctx();
    small_base(&ctx, "other").await;
    let mut intent = ctx.catalog.require::<BaseDoc>("other").await.unwrap().doc;
    intent.name = name("id");
    intent.root = None;
    intent.holder = "elsewhere:9".into();
    let version = ctx.catalog.create_base(&intent).await.unwrap().unwrap();
    let mut request = BaseRequest::new("id", SourceSpec::Directory(dir.path().to_owned())).unwrap();
    request.patience = Duration::from_millis(1);

    // Its publisher renews it while the newcomer watches: before the first look, it is read once.
    let (watching, faults) = bench.faulty();
    let look = faults.inject(Rule::on(Fault::Stall).call(Call::Get).key("bases/id").after(1));
    let asked = request.clone();
    let newcomer = tokio::spawn(async move { publish_base(&watching, asked, Arc::new(|_| ())).await });
    look.reached(1).await;
    intent.nonce = ctx.catalog.nonce();
    ctx.catalog.swap_base(&version, &intent).await.unwrap().unwrap();
    look.release();
    let e = newcomer.await.unwrap().unwrap_err();
    assert!(e.kind() == ErrorKind::Conflict && e.to_string().contains("elsewhere:9") && e.to_string().contains("delete base id"), "{e}");

    let done = publish_base(&ctx, request, Arc::new(|_| ())).await.unwrap();
    assert_eq!(ctx.catalog.require::<BaseDoc>("id").await.unwrap().doc.root, Some(done.root));
}

#[tokio::test]
async fn a_deleted_intent_fails_its_publisher() {
    let (bench, dir) = (Bench::memory(7), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("f"), noise(7, 50_000)).unwrap();
    let (ctx, faults) = bench.faulty();
    let stalled = faults.inject(Rule::on(Fault::Stall).call(Call::Create).key("packs/"));
    let path = dir.path().to_owned();
    let first = tokio::spawn(async move { publish(&ctx, "id", &path).await });
    stalled.reached(1).await;
    delete(&bench.ctx(), DeletedKind::Base, "id", false).await.unwrap();
    stalled.release();
    let e = first.await.unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    assert!(hiloop_engine::look::list_bases(&bench.ctx()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_private_domain_shares_nothing_with_the_public_one() {
    let (bench, dir) = (Bench::memory(8), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("f"), noise(8, 50_000)).unwrap();
    let ctx = bench.ctx();
    let public = publish(&ctx, "public", dir.path()).await.unwrap();
    let mut request = BaseRequest::new("private", SourceSpec::Directory(dir.path().to_owned())).unwrap();
    request.domain = name("acme");
    let private = publish_base(&ctx, request, Arc::new(|_| ())).await.unwrap();
    assert_ne!(public.content, private.content);
    assert_eq!((private.chunks_new, private.chunks_reused), (1, 0));
    fork_one(&ctx, "base:private", "w").await;
    let out = dir.path().join("out");
    export(&ctx, "workspace:w", &out).await.unwrap();
    assert_eq!(fs::read(out.join("f")).unwrap(), noise(8, 50_000));
    let options = hiloop_engine::fork::ForkOptions { domain: Some(name("other")), ..Default::default() };
    let e = hiloop_engine::fork::fork(&ctx, "base:private", &["x".into()], &options).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
}

#[tokio::test]
async fn a_store_that_loses_races_is_refused() {
    let bench = Bench::memory(9);
    let (ctx, faults) = bench.faulty();
    let loses = faults.inject(Rule::on(Fault::Unconditional).key("probe/").times(1000));
    let dir = tempfile::tempdir().unwrap();
    let e = publish(&ctx, "id", dir.path()).await.unwrap_err();
    assert!(e.kind() == ErrorKind::Invalid && loses.fired() > 0, "{e}");
    assert!(bench.keys("").await.is_empty());
}
