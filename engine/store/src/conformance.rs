//! What every backend must pass: run by the tests on memory, directories, a real S3 server and a GCS stand-in.
//!
//! Panics with the check that failed; meant for tests. Works below `conformance/<random>/` and cleans up after itself.

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use hiloop_types::{ErrorKind, Result};

use crate::store::{CreateOutcome, Store, SwapOutcome};

/// Bytes of the large object: more than one part, page or buffer anywhere, and not a multiple of any.
const LARGE: usize = 17 * 1024 * 1024 + 3;

/// Keys that stores, URLs and XML like to get wrong.
const ODD: [&str; 12] =
    ["a b", "a+b", "100%", "%41", "q?x=1&y=2", "#frag", "quote'\"<>&;", "ü/é/漢", "~t*x", "a:b@c=d,e;f$g", "UPPER/lower", "[x]{y}|z^`"];

/// Runs every check against `store`.
///
/// # Panics
/// With the check that failed.
pub async fn run(store: &Store) {
    let base = format!("conformance/{:016x}", store.env().random_u64());
    absent_is_no_error(store, &format!("{base}/absent")).await;
    round_trips(store, &format!("{base}/trip")).await;
    ranges(store, &format!("{base}/ranges")).await;
    conditions(store, &format!("{base}/conditions")).await;
    for round in 0..4 {
        races(store, &format!("{base}/races/{round}")).await;
    }
    odd_keys(store, &format!("{base}/odd")).await;
    listing(store, &format!("{base}/list")).await;
    large(store, &format!("{base}/large")).await;
    clean(store, &base).await;
}

async fn clean(store: &Store, base: &str) {
    for info in store.list(base).await.expect("list to clean up") {
        store.delete(&info.key).await.expect("delete to clean up");
    }
    assert_eq!(store.list(base).await.expect("list after clean-up"), [], "deleted objects are still listed");
}

async fn absent_is_no_error(store: &Store, key: &str) {
    assert!(store.get(key).await.expect("get of nothing").is_none());
    assert!(store.get_range(key, 0, 1).await.expect("range of nothing").is_none());
    assert!(store.head(key).await.expect("head of nothing").is_none());
    store.delete(key).await.expect("delete of nothing");
    assert!(store.list(key).await.expect("list of nothing").is_empty());
}

async fn round_trips(store: &Store, base: &str) {
    for (n, body) in [&b""[..], b"x", &[0; 4096], "grüße\r\n\0\x01".as_bytes()].into_iter().enumerate() {
        let key = format!("{base}/{n}");
        let put = store.put(&key, Bytes::copy_from_slice(body)).await.expect("put");
        let got = store.get(&key).await.expect("get").expect("object is there");
        assert_eq!(got.bytes, body, "body of {n}");
        assert_eq!(got.version, put, "a read shows the version of the put");
        let head = store.head(&key).await.expect("head").expect("object is there");
        assert_eq!((head.key.as_str(), head.size), (key.as_str(), body.len() as u64));
        assert!(head.version.is_none_or(|v| v == put), "head shows the version of the put");
        let over = store.put(&key, Bytes::from_static(b"over")).await.expect("overwrite");
        assert_ne!(over, put, "another content has another version");
        assert_eq!(store.get(&key).await.expect("get").expect("there").bytes, b"over"[..]);
        store.delete(&key).await.expect("delete");
        assert!(store.get(&key).await.expect("get after delete").is_none());
    }
}

async fn ranges(store: &Store, key: &str) {
    let body: Bytes = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    store.put(key, body.clone()).await.expect("put");
    for (offset, len) in [(0, 1), (0, 100_000), (99_999, 1), (1, 99_998), (4095, 4098), (65_536, 34_464), (7, 0), (200_000, 0)] {
        let got = store.get_range(key, offset, len).await.expect("range").expect("there");
        let want = if len == 0 { Bytes::new() } else { body.slice(offset as usize..(offset + len) as usize) };
        assert_eq!(got, want, "{len} at {offset}");
    }
    for (offset, len) in [(0, 100_001), (99_999, 2), (100_000, 1), (1 << 40, 1), (u64::MAX, 1)] {
        let error = store.get_range(key, offset, len).await.expect_err("a range beyond the end");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len} at {offset}: {error}");
    }
}

async fn conditions(store: &Store, key: &str) {
    let body = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let CreateOutcome::Done(first) = store.create(key, body("one")).await.expect("create") else { panic!("create of a free key lost") };
    assert!(matches!(store.create(key, body("other")).await, Ok(CreateOutcome::Lost)), "create over an object");
    assert_eq!(store.get(key).await.expect("get").expect("there").bytes, b"one"[..], "a lost create left no trace");
    let SwapOutcome::Done(second) = store.swap(key, &first, body("two")).await.expect("swap") else {
        panic!("swap of the current version lost")
    };
    assert_ne!(first, second);
    assert!(matches!(store.swap(key, &first, body("stale")).await, Ok(SwapOutcome::Lost)), "swap of a stale version");
    let there = store.get(key).await.expect("get").expect("there");
    assert_eq!((&there.bytes[..], &there.version), (&b"two"[..], &second), "a lost swap left no trace");
    let third = store.put(key, body("three")).await.expect("put");
    assert!(matches!(store.swap(key, &second, body("x")).await, Ok(SwapOutcome::Lost)), "swap after an unconditional put");
    assert!(matches!(store.swap(key, &third, body("four")).await, Ok(SwapOutcome::Done(_))), "swap of a version that a put gave");
    store.delete(key).await.expect("delete");
    assert!(matches!(store.swap(key, &third, body("x")).await, Ok(SwapOutcome::Lost)), "swap of a deleted object");
    assert!(store.get(key).await.expect("get").is_none(), "a lost swap did not create");
    assert!(matches!(store.create(key, body("again")).await, Ok(CreateOutcome::Done(_))), "create after delete");
}

/// One winner per race, and the winner's bytes stand. Sixteen writers, as in the survey of servers (`floors.md` 6).
async fn races(store: &Store, key: &str) {
    let body = |n: usize| Bytes::from(format!("racer {n}"));
    let created = try_join_all((0..16).map(|n| store.create(key, body(n)))).await.expect("racing creates");
    let winners: Vec<_> = created.iter().enumerate().filter(|(_, o)| matches!(o, CreateOutcome::Done(_))).map(|(n, _)| n).collect();
    assert_eq!(winners.len(), 1, "winners of racing creates: {winners:?}");
    let there = store.get(key).await.expect("get").expect("there");
    assert_eq!(there.bytes, body(winners[0]));
    // A counter that every racer raises by swaps: no increment may be lost.
    store.put(key, Bytes::from_static(b"0")).await.expect("put");
    let increments = join_all((0..8).map(|racer| async move { increment(store, key, racer).await })).await;
    increments.into_iter().collect::<Result<Vec<_>>>().expect("racing swaps");
    let end = store.get(key).await.expect("get").expect("there").bytes;
    assert!(end.starts_with(b"24 "), "24 increments, counter at {}", String::from_utf8_lossy(&end));
}

/// Three increments of the counter at `key`.
pub async fn increment(store: &Store, key: &str, racer: usize) -> Result<()> {
    for step in 0..3 {
        loop {
            let there = store.get(key).await?.expect("counter is there");
            let text = String::from_utf8_lossy(&there.bytes).into_owned();
            let count: u64 = text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
            let next = Bytes::from(format!("{} by {racer} step {step}", count + 1));
            match store.swap(key, &there.version, next).await? {
                SwapOutcome::Done(_) => break,
                SwapOutcome::Lost => {}
                SwapOutcome::Ambiguous(error) => return Err(error),
            }
        }
    }
    Ok(())
}

async fn odd_keys(store: &Store, base: &str) {
    let long = "l".repeat(200);
    for odd in ODD.into_iter().chain([long.as_str()]) {
        let key = format!("{base}/{odd}");
        let put = store.put(&key, Bytes::copy_from_slice(odd.as_bytes())).await.unwrap_or_else(|e| panic!("put {odd}: {e}"));
        assert_eq!(store.get(&key).await.expect("get").expect(odd).bytes, odd.as_bytes());
        assert!(matches!(store.swap(&key, &put, Bytes::from_static(b"swapped")).await, Ok(SwapOutcome::Done(_))), "swap {odd}");
    }
    let mut want: Vec<String> = ODD.iter().map(|odd| format!("{base}/{odd}")).chain([format!("{base}/{long}")]).collect();
    want.sort_unstable();
    let got: Vec<String> = store.list(base).await.expect("list").into_iter().map(|info| info.key).collect();
    assert_eq!(got, want);
    for key in want {
        store.delete(&key).await.expect("delete");
        assert!(store.get(&key).await.expect("get").is_none(), "{key} is deleted");
    }
}

async fn listing(store: &Store, base: &str) {
    // More than a page (1000) of S3 and GCS.
    let keys: Vec<String> = (0..1100).map(|n| format!("{base}/a/{:02}/{n:04}", n % 10)).collect();
    for some in keys.chunks(100) {
        try_join_all(some.iter().map(|key| store.put(key, Bytes::from_static(b"1")))).await.expect("puts");
    }
    // Neighbours by name that whole segments tell apart.
    for near in ["ab/x", "a-b", "b/a/x"] {
        store.put(&format!("{base}/{near}"), Bytes::from_static(b"22")).await.expect("put");
    }
    let found = store.list(&format!("{base}/a")).await.expect("list");
    let mut want = keys.clone();
    want.sort_unstable();
    assert_eq!(found.iter().map(|i| i.key.clone()).collect::<Vec<_>>(), want, "exactly what is below a/, sorted");
    assert!(found.iter().all(|i| i.size == 1));
    assert_eq!(store.list(&format!("{base}/a/")).await.expect("list").len(), 1100, "a trailing slash changes nothing");
    assert_eq!(store.list(&format!("{base}/a/03")).await.expect("list").len(), 110);
    assert_eq!(store.list(base).await.expect("list").len(), 1103);
}

async fn large(store: &Store, key: &str) {
    let body: Bytes = (0..LARGE).map(|n| (n / 3 % 253) as u8).collect();
    let put = store.put(key, body.clone()).await.expect("put");
    let got = store.get(key).await.expect("get").expect("there");
    assert!(got.bytes == body, "the large body came back");
    assert_eq!(got.version, put);
    let middle = store.get_range(key, 9_000_001, 1_048_576).await.expect("range").expect("there");
    assert!(middle == body.slice(9_000_001..9_000_001 + 1_048_576));
    store.delete(key).await.expect("delete");
}
