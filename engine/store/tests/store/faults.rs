//! Faults, and what the store makes of them: settled writes, deadlines, hedges, listings that are whole or nothing.

use std::time::Duration;

use bytes::Bytes;
use hiloop_env::Env;
use hiloop_store::faults::{Chaos, Fault, Faults, Rule};
use hiloop_store::{Call, CreateOutcome, Settled, Store, StoreOptions, SwapOutcome};
use hiloop_types::ErrorKind;
use proptest::prelude::*;

fn faulty(seed: u64) -> (Store, Faults) {
    faulty_with(StoreOptions::default(), seed)
}

fn faulty_with(options: StoreOptions, seed: u64) -> (Store, Faults) {
    let env = Env::simulated(seed).0;
    let faults = Faults::default();
    let backend = faults.wrap(std::sync::Arc::new(hiloop_store::MemoryBackend::new(env.clone())));
    (Store::from_parts(backend, options, env), faults)
}

fn body(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

async fn text(store: &Store, key: &str) -> String {
    String::from_utf8(store.get(key).await.unwrap().unwrap().bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn a_settled_create_wins_through_every_unclear_answer() {
    for fault in [Fault::After(ErrorKind::Unavailable), Fault::LostThoughApplied, Fault::LostThoughFree, Fault::Late] {
        let (store, faults) = faulty(1);
        let hit = faults.inject(Rule::on(fault).call(Call::Create));
        let settled = store.create_settled("k", body("mine"), |b| b[..] == b"mine"[..]).await.unwrap();
        assert!(matches!(settled, Settled::Won(_)), "{fault:?}: {settled:?}");
        assert_eq!(hit.fired(), 1);
        // A late put of the same attempt changes nothing any more.
        hit.land().await;
        assert_eq!(text(&store, "k").await, "mine");
    }
}

#[tokio::test]
async fn a_settled_swap_wins_through_every_unclear_answer() {
    for fault in [Fault::After(ErrorKind::Unavailable), Fault::LostThoughApplied, Fault::LostThoughFree, Fault::Late] {
        let (store, faults) = faulty(1);
        let before = store.put("k", body("before")).await.unwrap();
        let hit = faults.inject(Rule::on(fault).call(Call::Swap));
        let settled = store.swap_settled("k", &before, body("mine"), |b| b[..] == b"mine"[..]).await.unwrap();
        assert!(matches!(settled, Settled::Won(_)), "{fault:?}: {settled:?}");
        assert_eq!(hit.fired(), 1);
        assert_eq!(text(&store, "k").await, "mine");
    }
}

#[tokio::test]
async fn a_settled_write_knows_when_somebody_else_won() {
    let (store, faults) = faulty(1);
    let theirs = store.put("k", body("theirs")).await.unwrap();
    let mine = |b: &Bytes| b[..] == b"mine"[..];
    let Settled::Lost(Some(there)) = store.create_settled("k", body("mine"), mine).await.unwrap() else { panic!("won over an object") };
    assert_eq!((&there.bytes[..], &there.version), (&b"theirs"[..], &theirs));
    let moved = store.put("k", body("moved")).await.unwrap();
    let Settled::Lost(Some(there)) = store.swap_settled("k", &theirs, body("mine"), mine).await.unwrap() else {
        panic!("won a stale swap")
    };
    assert_eq!(there.version, moved);
    store.delete("k").await.unwrap();
    assert!(matches!(store.swap_settled("k", &moved, body("mine"), mine).await.unwrap(), Settled::Lost(None)));
    // Ambiguous, and then another writer gets there first.
    let late = faults.inject(Rule::on(Fault::Late).call(Call::Create));
    assert!(matches!(store.create("k", body("mine")).await.unwrap(), CreateOutcome::Ambiguous(_)));
    store.create("k", body("theirs")).await.unwrap();
    assert_eq!(late.land().await.len(), 1);
    assert_eq!(text(&store, "k").await, "theirs", "a late create does not overwrite");
}

#[tokio::test]
async fn a_write_that_stays_unclear_is_unavailable() {
    let (store, faults) = faulty(1);
    let hit = faults.inject(Rule::on(Fault::LostThoughFree).times(u64::MAX));
    let error = store.create_settled("k", body("mine"), |_| true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(hit.fired(), 4, "tried a bounded number of times");
    faults.calm();
    let hit = faults.inject(Rule::on(Fault::Before(ErrorKind::Unavailable)).call(Call::Get));
    faults.inject(Rule::on(Fault::After(ErrorKind::Unavailable)).call(Call::Create));
    let error = store.create_settled("k", body("mine"), |_| true).await.unwrap_err();
    assert_eq!((error.kind(), hit.fired()), (ErrorKind::Unavailable, 1), "cannot read back");
    assert_eq!(text(&store, "k").await, "mine", "and so cannot know that it won");
}

#[tokio::test]
async fn reads_end_at_their_deadline_and_writes_become_ambiguous() {
    let short = Duration::from_millis(5);
    let (store, faults) = faulty_with(StoreOptions { read_deadline: short, write_deadline: short, ..StoreOptions::default() }, 1);
    let version = store.put("k", body("x")).await.unwrap();
    let stalled = faults.inject(Rule::on(Fault::Stall).times(u64::MAX));
    let error = store.get("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("get k"), "{error}");
    assert_eq!(store.get_range("k", 0, 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.head("k").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.list("").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.put("k", body("y")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.delete("k").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(matches!(store.create("n", body("y")).await.unwrap(), CreateOutcome::Ambiguous(e) if e.kind() == ErrorKind::Unavailable));
    assert!(matches!(store.swap("k", &version, body("y")).await.unwrap(), SwapOutcome::Ambiguous(_)));
    assert_eq!(stalled.fired(), 8);
    assert_eq!(store.stats().errors, 8);
    faults.calm();
    assert_eq!(text(&store, "k").await, "x");
}

#[tokio::test]
async fn a_stalled_request_goes_on_when_released() {
    let (store, faults) = faulty(1);
    store.put("k", body("x")).await.unwrap();
    let stalled = faults.inject(Rule::on(Fault::Stall).call(Call::Get));
    let reading = tokio::spawn({
        let store = store.clone();
        async move { store.get("k").await }
    });
    stalled.reached(1).await;
    assert!(!reading.is_finished());
    stalled.release();
    assert_eq!(reading.await.unwrap().unwrap().unwrap().bytes, body("x"));
}

#[tokio::test]
async fn a_slow_read_is_hedged_and_a_slow_put_is_not() {
    let options = StoreOptions { hedge: true, write_deadline: Duration::from_millis(5), ..StoreOptions::default() };
    let (store, faults) = faulty_with(options, 1);
    store.put("k", body("x")).await.unwrap();
    for _ in 0..100 {
        store.get("k").await.unwrap();
    }
    assert_eq!(store.stats().hedges, 0, "quick reads need none");
    let stalled = faults.inject(Rule::on(Fault::Stall).call(Call::Get));
    assert_eq!(text(&store, "k").await, "x");
    assert_eq!((stalled.fired(), store.stats().hedges, store.stats().hedges_won), (1, 1, 1));
    let stalled = faults.inject(Rule::on(Fault::Stall).call(Call::Put).times(2));
    store.put("k", body("y")).await.unwrap_err();
    assert_eq!((stalled.fired(), store.stats().hedges), (1, 1));
}

#[tokio::test]
async fn a_failed_hedge_leaves_the_first_request_to_answer() {
    let (store, faults) = faulty_with(StoreOptions { hedge: true, ..StoreOptions::default() }, 1);
    store.put("k", body("x")).await.unwrap();
    for _ in 0..100 {
        store.get("k").await.unwrap();
    }
    let first = faults.inject(Rule::on(Fault::Stall).call(Call::Get));
    let second = faults.inject(Rule::on(Fault::Before(ErrorKind::Unavailable)).call(Call::Get));
    let reading = tokio::spawn({
        let store = store.clone();
        async move { store.get("k").await }
    });
    second.reached(1).await;
    first.release();
    assert!(reading.await.unwrap().unwrap().is_some());
    assert_eq!((store.stats().hedges, store.stats().hedges_won), (1, 0));
}

#[tokio::test]
async fn a_listing_is_whole_or_an_error() {
    let (store, faults) = faulty(1);
    for n in 0..5 {
        store.put(&format!("p/{n}"), body("x")).await.unwrap();
    }
    for fault in [Fault::Cut(3), Fault::Before(ErrorKind::Denied), Fault::After(ErrorKind::Unavailable)] {
        let hit = faults.inject(Rule::on(fault).call(Call::List));
        let error = store.list("p").await.unwrap_err();
        assert!(error.to_string().contains("list p"), "{error}");
        assert_eq!(hit.fired(), 1);
    }
    assert_eq!(store.list("p").await.unwrap().len(), 5);
    let stats = store.stats();
    assert_eq!((stats.lists, stats.errors), (4, 3));
}

#[tokio::test]
async fn a_cut_range_is_corrupt_and_a_flipped_bit_is_the_readers_to_find() {
    let (store, faults) = faulty(1);
    store.put("k", body("0123456789")).await.unwrap();
    faults.inject(Rule::on(Fault::Cut(3)).call(Call::GetRange));
    assert_eq!(store.get_range("k", 2, 5).await.unwrap_err().kind(), ErrorKind::Corrupt);
    let flipped = faults.inject(Rule::on(Fault::Flip(1)).call(Call::Get));
    assert_eq!(text(&store, "k").await, "0023456789");
    assert_eq!(flipped.fired(), 1);
}

#[tokio::test]
async fn down_refuses_everything_and_up_lost_nothing() {
    let (store, faults) = faulty(1);
    store.put("k", body("x")).await.unwrap();
    faults.set_down(true);
    assert_eq!(store.get("k").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.create("n", body("x")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.list("").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(faults.refused_down(), 3);
    faults.set_down(false);
    assert!(store.get("n").await.unwrap().is_none());
    assert_eq!(text(&store, "k").await, "x");
}

#[tokio::test]
async fn rules_select_by_call_key_and_count() {
    let (store, faults) = faulty(1);
    let hit = faults.inject(Rule::on(Fault::Before(ErrorKind::Denied)).call(Call::Put).key("b").after(1).times(2));
    for (key, refused) in [("a", false), ("b", false), ("b", true), ("a", false), ("ab", true), ("b", false)] {
        assert_eq!(store.put(key, body("x")).await.is_err(), refused, "{key}");
    }
    assert_eq!(hit.fired(), 2);
}

/// What a seeded run does: counts up by settled swaps, each a certain win, a certain loss or an error.
async fn count_up(seed: u64) -> (Vec<&'static str>, u64, u64, u64) {
    let (store, faults) = faulty(seed);
    store.put("n", body("0")).await.unwrap();
    faults.schedule(Env::simulated(seed).0, Chaos { before: 60, after: 60, lost_though_applied: 60, lost_though_free: 60 });
    let (mut log, mut won, mut unclear) = (Vec::new(), 0, 0);
    for step in 0..60 {
        let Ok(Some(there)) = store.get("n").await else {
            log.push("unread");
            continue;
        };
        let count: u64 = String::from_utf8_lossy(&there.bytes).split(' ').next().unwrap().parse().unwrap();
        let next = body(&format!("{} {step}", count + 1));
        log.push(match store.swap_settled("n", &there.version, next.clone(), |b| *b == next).await {
            Ok(Settled::Won(_)) => {
                won += 1;
                "won"
            }
            Ok(Settled::Lost(_)) => "lost",
            Err(_) => {
                unclear += 1;
                "unclear"
            }
        });
    }
    assert!(faults.chaos_fired() > 0);
    faults.calm();
    let end: u64 = text(&store, "n").await.split(' ').next().unwrap().parse().unwrap();
    (log, won, unclear, end)
}

#[tokio::test]
async fn a_seed_is_one_schedule() {
    let first = count_up(5).await;
    assert_eq!(first, count_up(5).await);
    assert_ne!(first.0, count_up(6).await.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn settled_answers_are_true(seed: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (log, won, unclear, end) = runtime.block_on(count_up(seed));
        prop_assert!((won..=won + unclear).contains(&end), "{} won, {} unclear, counter at {}: {:?}", won, unclear, end, log);
        prop_assert!(!log.contains(&"lost"), "nobody else wrote: {:?}", log);
    }
}
