//! Workspaces of Kubernetes claims.

use hiloop_engine::catalog::{Claimed, Found, Head, ParentKind};
use hiloop_engine::context::StoreContext;
use hiloop_engine::fork::{ForkOptions, fork};
use hiloop_engine::volume::{How, Outcome, VolumeRequest, Why, create, retire};
use hiloop_types::{Claim, Name};

use crate::support::{Bench, Writer, name, small_base};

const GIB: u64 = 1 << 30;

fn request(claim: &str) -> VolumeRequest {
    let claim = Claim::parse(claim).unwrap();
    VolumeRequest { name: claim.workspace().unwrap(), claim, base: Some(name("base")), required: GIB, limit: 0 }
}
async fn ready(ctx: &StoreContext, r: &VolumeRequest) -> (Head, How) {
    match create(ctx, r).await.unwrap() {
        Outcome::Ready(head, how) => (*head, how),
        other => panic!("{other:?}"),
    }
}
async fn why(ctx: &StoreContext, r: &VolumeRequest) -> (Why, String) {
    match create(ctx, r).await.unwrap() {
        Outcome::Refused(why, sentence) => (why, sentence),
        other => panic!("{other:?}"),
    }
}
async fn head(ctx: &StoreContext, name: &Name) -> Found<Head> {
    ctx.catalog.get::<Head>(name.as_str()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_claim_gets_one_workspace_and_keeps_it() {
    let bench = Bench::memory(1);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    let asked = request("ns/claim");
    let (made, how) = ready(&ctx, &asked).await;
    assert_eq!((how, made.quota, made.claimed.as_ref().and_then(|c| c.size)), (How::Created, Some(GIB), Some(GIB)));
    assert_eq!(made.parent.as_ref().map(|p| (p.kind, p.name.as_str())), Some((ParentKind::Base, "base")));
    assert_eq!(ready(&ctx, &asked).await.1, How::Found, "asked again");
    assert_eq!(ready(&ctx, &VolumeRequest { required: GIB / 2, ..asked.clone() }).await.1, How::Found, "a smaller one is there");
    for (other, reason) in [
        (VolumeRequest { required: 2 * GIB, ..asked.clone() }, Why::OtherSize),
        (VolumeRequest { required: 0, limit: GIB / 2, ..asked.clone() }, Why::OtherSize),
        (VolumeRequest { base: Some(name("second")), ..asked.clone() }, Why::OtherBase),
        (VolumeRequest { claim: Claim::parse("else/where").unwrap(), ..asked.clone() }, Why::OtherClaim),
    ] {
        let (got, sentence) = why(&ctx, &other).await;
        assert_eq!(got, reason, "{sentence}");
    }
    assert_eq!(head(&ctx, &asked.name).await.doc, made, "a refusal changes nothing");
}

#[tokio::test]
async fn sizes_and_bases_are_checked_before_anything_is_made() {
    let bench = Bench::memory(2);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    let (reason, sentence) = why(&ctx, &VolumeRequest { required: 4096, ..request("ns/small") }).await;
    assert!(reason == Why::TooSmall && sentence.contains("4096") && sentence.contains("base base"), "{sentence}");
    let (reason, sentence) = why(&ctx, &VolumeRequest { base: Some(name("typo")), ..request("ns/small") }).await;
    assert!(reason == Why::UnknownBase && sentence.contains("typo"), "{sentence}");
    assert!(create(&ctx, &VolumeRequest { limit: 1, ..request("ns/small") }).await.is_err());
    assert!(bench.keys("heads").await.is_empty());
    let (made, _) = ready(&ctx, &VolumeRequest { required: 0, base: None, ..request("ns/any") }).await;
    assert_eq!((made.quota, made.claimed, made.root), (None, Some(Claimed::default()), None));
}

#[tokio::test]
async fn a_prepared_workspace_is_adopted_once_and_only_while_nobody_has_it() {
    let bench = Bench::memory(3);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    let asked = VolumeRequest { base: Some(name("other")), ..request("ns/child") };
    fork(&ctx, "base:base", &[asked.name.to_string()], &ForkOptions::default()).await.unwrap();
    let (got, _) = why(&ctx, &VolumeRequest { required: 1, ..asked.clone() }).await;
    assert_eq!(got, Why::TooSmall);

    let writer = Writer::open(&ctx, asked.name.as_str()).await;
    let open = head(&ctx, &asked.name).await;
    let (got, sentence) = why(&ctx, &asked).await;
    assert!(got == Why::Open && sentence.contains("open on"), "{sentence}");
    assert_eq!(head(&ctx, &asked.name).await.version, open.version, "its owner's head did not move");
    drop(writer);
    // Given back with a tail: its node must find its own swap there.
    let mut released = open.doc.clone();
    released.release = Some(hiloop_engine::catalog::Release { tail: 9 });
    released.nonce = ctx.catalog.nonce();
    let version = ctx.catalog.swap_head(&open.version, &released).await.unwrap().unwrap();
    assert_eq!(why(&ctx, &asked).await.0, Why::Open);
    released.release = Some(hiloop_engine::catalog::Release { tail: 0 });
    released.nonce = ctx.catalog.nonce();
    ctx.catalog.swap_head(&version, &released).await.unwrap().unwrap();

    let (adopted, how) = ready(&ctx, &asked).await;
    assert_eq!((how, adopted.quota, adopted.epoch), (How::Adopted, Some(GIB), released.epoch));
    assert_eq!(ready(&ctx, &asked).await.1, How::Found, "asked again, whatever base it came from");
    assert_eq!(why(&ctx, &request("ns/child")).await.0, Why::OtherBase);
}

#[tokio::test]
async fn a_deleted_identity_never_comes_back() {
    let bench = Bench::memory(4);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    let asked = request("ns/claim");
    ready(&ctx, &asked).await;
    let writer = Writer::open(&ctx, asked.name.as_str()).await;
    let (reason, sentence) = retire(&ctx, &asked.name, false).await.unwrap().unwrap();
    assert!(reason == Why::Open && sentence.contains("open for write"), "{sentence}");
    drop(writer);
    assert_eq!(retire(&ctx, &asked.name, true).await.unwrap(), None);
    assert_eq!(retire(&ctx, &asked.name, false).await.unwrap(), None, "gone is done");
    assert_eq!(retire(&ctx, &name("never"), false).await.unwrap(), None);
    let (reason, sentence) = why(&ctx, &asked).await;
    assert!(reason == Why::Deleted && sentence.contains("ns/claim"), "{sentence}");
    assert_eq!(head(&ctx, &asked.name).await.doc.claim, Some(asked.claim), "the tombstone still names its claim");
}
