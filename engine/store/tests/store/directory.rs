//! `file://`: exact across instances and processes, whole after a kill, readable by plain tools.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::future::join_all;
use hiloop_env::Env;
use hiloop_store::{Store, StoreOptions, StoreUrl, conformance};
use hiloop_types::ErrorKind;

use crate::directory_store;

const CHILD_DIR: &str = "HILOOP_TEST_STORE_DIR";

/// This test binary again, running one of the ignored tests below over `dir`.
fn child(test: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn child_store() -> Store {
    directory_store(Path::new(&std::env::var(CHILD_DIR).unwrap())).await
}

#[tokio::test]
#[ignore = "run by processes_lose_no_increment"]
async fn child_increments() {
    let store = child_store().await;
    for racer in 0..4 {
        conformance::increment(&store, "counter", racer).await.unwrap();
    }
}

#[tokio::test]
#[ignore = "run by a_killed_writer_leaves_a_whole_object"]
async fn child_overwrites() {
    let store = child_store().await;
    for n in 0u64.. {
        store.put("object", Bytes::from(vec![n as u8; 300_000])).await.unwrap();
        println!("written {n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_lose_no_increment() {
    let dir = tempfile::tempdir().unwrap();
    let store = directory_store(dir.path()).await;
    store.put("counter", Bytes::from_static(b"0")).await.unwrap();
    let children: Vec<Child> = (0..3).map(|_| child("directory::child_increments", dir.path())).collect();
    let twin = directory_store(dir.path()).await;
    let here = join_all([&store, &twin].into_iter().map(|s| conformance::increment(s, "counter", 9))).await;
    assert!(here.iter().all(Result::is_ok));
    for c in children {
        assert!(c.wait_with_output().unwrap().status.success());
    }
    let end = store.get("counter").await.unwrap().unwrap().bytes;
    assert!(end.starts_with(b"42 "), "3 children x 4 racers x 3, and 2 x 3 here: {}", String::from_utf8_lossy(&end));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_writer_leaves_a_whole_object() {
    let dir = tempfile::tempdir().unwrap();
    for kill_after in [1, 3, 8] {
        let mut writer = child("directory::child_overwrites", dir.path());
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let written = lines.map(Result::unwrap).filter(|l| l.contains("written")).take(kill_after).count();
        assert_eq!(written, kill_after);
        writer.kill().unwrap();
        writer.wait().unwrap();
        let store = directory_store(dir.path()).await;
        let object = store.get("object").await.unwrap().unwrap().bytes;
        assert_eq!(object.len(), 300_000);
        assert!(object.iter().all(|b| *b == object[0]), "one writing, not two");
        let keys: Vec<String> = store.list("").await.unwrap().into_iter().map(|i| i.key).collect();
        assert_eq!(keys, ["object"], "what the killed writer was writing is no object");
    }
}

#[tokio::test]
async fn objects_are_plain_files_below_the_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let url = StoreUrl::parse(&format!("file://{}?prefix=a/b", dir.path().display())).unwrap();
    let store = Store::open(&url, StoreOptions::default(), Env::real()).await.unwrap();
    store.put("heads/x", Bytes::from_static(b"plain")).await.unwrap();
    assert_eq!(std::fs::read(dir.path().join("a/b/heads/x")).unwrap(), b"plain");
    assert_eq!(store.list("").await.unwrap()[0].key, "heads/x");
    assert_eq!(directory_store(dir.path()).await.list("").await.unwrap()[0].key, "a/b/heads/x");
    let other = StoreUrl::parse(&format!("file://{}?prefix=a/bc", dir.path().display())).unwrap();
    let other = Store::open(&other, StoreOptions::default(), Env::real()).await.unwrap();
    assert!(other.get("heads/x").await.unwrap().is_none());
    assert!(other.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_version_outlives_a_copy_and_equal_bytes_are_an_equal_version() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let put = directory_store(one.path()).await.put("k", Bytes::from_static(b"same")).await.unwrap();
    std::fs::copy(one.path().join("k"), two.path().join("k")).unwrap();
    assert_eq!(directory_store(two.path()).await.get("k").await.unwrap().unwrap().version, put);
}

#[tokio::test]
async fn what_dead_writers_left_is_swept_and_what_is_young_is_not() {
    let dir = tempfile::tempdir().unwrap();
    directory_store(dir.path()).await.put("k", Bytes::new()).await.unwrap();
    let (old, young) = (dir.path().join(".tmp/old"), dir.path().join(".tmp/young"));
    std::fs::write(&young, b"").unwrap();
    let file = std::fs::File::create(&old).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Env::real().wall() - Duration::from_secs(2 * 24 * 3600)).unwrap();
    let store = directory_store(dir.path()).await;
    assert!(!old.exists());
    assert!(young.exists());
    assert_eq!(store.list("").await.unwrap().len(), 1, "neither is an object");
}

#[tokio::test]
async fn a_missing_directory_is_made_or_named() {
    let dir = tempfile::tempdir().unwrap();
    let url = StoreUrl::file(&dir.path().join("x/y")).unwrap();
    let reading = StoreOptions { create_directory: false, ..StoreOptions::default() };
    let error = Store::open(&url, reading.clone(), Env::real()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("x/y"));
    Store::open(&url, StoreOptions::default(), Env::real()).await.unwrap();
    let store = Store::open(&url, reading, Env::real()).await.unwrap();
    assert!(store.get("k").await.unwrap().is_none());
    assert_eq!(std::fs::read_dir(dir.path().join("x/y")).unwrap().count(), 0, "reading leaves no trace");
    store.put("k", Bytes::from_static(b"1")).await.unwrap();
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let url = StoreUrl::file(&dir.path().join("file")).unwrap();
    assert_eq!(Store::open(&url, StoreOptions::default(), Env::real()).await.err().unwrap().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn an_object_cannot_be_a_directory_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = directory_store(dir.path()).await;
    store.put("a", Bytes::from_static(b"1")).await.unwrap();
    store.put("d/e", Bytes::from_static(b"2")).await.unwrap();
    for key in ["a/b", "a/b/c", "d"] {
        assert_eq!(store.put(key, Bytes::new()).await.unwrap_err().kind(), ErrorKind::Invalid, "{key}");
        assert!(store.get(key).await.unwrap().is_none(), "{key}");
        assert!(!store.delete(key).await.unwrap(), "{key}");
    }
    assert_eq!(store.list("").await.unwrap().len(), 2);
    assert_eq!(std::fs::read_dir(dir.path().join(".tmp")).unwrap().count(), 0, "refused puts leave nothing");
}

#[tokio::test]
async fn what_is_no_object_fails_the_listing() {
    let dir = tempfile::tempdir().unwrap();
    let store = directory_store(dir.path()).await;
    store.put("a/b", Bytes::new()).await.unwrap();
    std::os::unix::fs::symlink("/nowhere", dir.path().join("a/link")).unwrap();
    assert_eq!(store.list("a").await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A file system that was unmounted, a directory that was moved: what was in it is away, not absent.
#[tokio::test]
async fn a_directory_that_is_gone_or_another_is_unavailable_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (root, elsewhere) = (dir.path().join("store"), dir.path().join("elsewhere"));
    std::fs::create_dir(&root).unwrap();
    let store = directory_store(&root).await;
    store.put("heads/a", Bytes::from_static(b"1")).await.unwrap();
    let version = store.get("heads/a").await.unwrap().unwrap().version;
    std::fs::rename(&root, &elsewhere).unwrap();
    for other in [false, true] {
        if other {
            std::fs::create_dir(&root).unwrap();
        }
        let kinds = [
            store.get("heads/a").await.unwrap_err(),
            store.head("heads/a").await.unwrap_err(),
            store.get_range("heads/a", 0, 1).await.unwrap_err(),
            store.list("heads").await.unwrap_err(),
            store.delete("heads/a").await.unwrap_err(),
            store.put("heads/b", Bytes::from_static(b"2")).await.unwrap_err(),
            store.swap("heads/a", &version, Bytes::from_static(b"2")).await.unwrap_err(),
        ];
        for e in kinds {
            assert!(e.kind() == ErrorKind::Unavailable, "{e}");
        }
        assert_eq!(std::fs::read_dir(&root).map_or(0, Iterator::count), 0, "nothing is written there");
    }
    std::fs::remove_dir(&root).unwrap();
    std::fs::rename(&elsewhere, &root).unwrap();
    assert_eq!(store.get("heads/a").await.unwrap().unwrap().bytes, "1");
}
