//! Snapshots over the control socket while a writer runs.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use hiloop_control::v1::{SnapshotRequest, SnapshotResponse, SnapshotStatusRequest, StatusRequest};

use nix::sys::signal::Signal;

use crate::rig::{Node, PATIENCE, Rig, sandbox_workspace, until};

/// More than one, so that a cut meets the writer at each of its steps.
const CUTS: usize = 30;
const BLOCK: usize = 8_000;
const BLOCKS: u64 = 4;

/// A writer that keeps a promise over several files: first the block of number N, then N into `first`, then N into `second`.
struct Writer {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn start(at: &Path) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (at, stopped, counted) = (at.to_owned(), stop.clone(), done.clone());
        let make = |name: &str| File::create(at.join(name)).unwrap();
        let (first, second) = (make("first"), make("second"));
        let blocks: Vec<File> = (0..BLOCKS).map(|i| make(&format!("block-{i}"))).collect();
        let run = move || {
            for n in 1u64.. {
                let block: Vec<u8> = n.to_le_bytes().into_iter().cycle().take(BLOCK).collect();
                blocks[(n % BLOCKS) as usize].write_all_at(&block, 0).unwrap();
                first.write_all_at(&n.to_le_bytes(), 0).unwrap();
                second.write_all_at(&n.to_le_bytes(), 0).unwrap();
                counted.store(n, Ordering::SeqCst);
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
            }
        };
        Self { stop, done, thread: Some(std::thread::spawn(run)) }
    }
    fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }
    fn finish(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// The number that a snapshot holds; the promise must hold in it.
fn check(store: &Path, snapshot: &str, out: &Path) -> u64 {
    let url = format!("file://{}", store.display());
    let ran =
        Command::new(sandbox_workspace()).args(["export", "--store", &url, &format!("snapshot:{snapshot}")]).arg(out).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let number = |name: &str| u64::from_le_bytes(fs::read(out.join(name)).unwrap().try_into().unwrap());
    let (first, second) = (number("first"), number("second"));
    assert!(first == second || first == second + 1, "{first} and {second} never were there together");
    let block = fs::read(out.join(format!("block-{}", first % BLOCKS))).unwrap();
    let wanted: Vec<u8> = first.to_le_bytes().into_iter().cycle().take(BLOCK).collect();
    assert!(block == wanted, "the block of {first} was written before its number");
    first
}

async fn cut(node: &Node, workspace: &str, name: &str, wait: bool) -> SnapshotResponse {
    let request = SnapshotRequest { request_key: name.into(), workspace: workspace.into(), name: name.into(), wait };
    let made = node.control().snapshot(request, PATIENCE).await.unwrap();
    assert_eq!((made.replicated, made.unsynced.as_str()), (wait, ""), "{made:?}");
    made
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_under_a_writer_is_one_moment_and_whole_when_it_is_replicated() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    let writer = Writer::start(&node.target("pod"));
    until("the writer runs", async || writer.done() > 10).await;
    let mut last = 0;
    for i in 0..CUTS {
        let (name, before) = (format!("s{i}"), writer.done());
        cut(&node, &id, &name, i % 2 == 0).await;
        let after = writer.done();
        let ask = SnapshotStatusRequest { name: name.clone() };
        until("it is replicated", async || node.control().snapshot_status(ask.clone(), PATIENCE).await.unwrap().replicated).await;
        let number = check(&rig.path("store"), &name, &rig.path(&name));
        assert!(number >= before && number >= last, "{number} was cut after {before} was written");
        assert!(i % 2 == 0 || number <= after + 1, "{number} was written after the cut was answered at {after}");
        last = number;
        until("the writer goes on", async || writer.done() > last).await;
    }
    // As it stands in the moment in which it is said to be replicated, the store has all of it.
    cut(&node, &id, "last", true).await;
    rig.store_away();
    check(&rig.path("store-away"), "last", &rig.path("last"));
    rig.store_back();
    writer.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_not_replicated_while_a_chunk_of_it_is_missing() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    let at = node.target("pod");
    fs::write(at.join("early"), vec![1; BLOCK]).unwrap();
    cut(&node, &id, "early", true).await;
    // No content can be put from here on; heads and snapshots can.
    rig.packs_away();
    let writer = Writer::start(&at);
    until("the writer runs", async || writer.done() > 3).await;
    cut(&node, &id, "late", false).await;
    let waiting = tokio::spawn({
        let (control, workspace) = (node.control(), id.clone());
        let request = SnapshotRequest { request_key: "waits".into(), workspace, name: "waits".into(), wait: true };
        async move { control.snapshot(request, PATIENCE).await }
    });
    let of = StatusRequest { target: String::new(), workspace: id.clone() };
    until("it was tried in vain", async || {
        !node.control().status(of.clone(), PATIENCE).await.unwrap().json.contains("\"replication_error\":null")
    })
    .await;
    let ask = |name: &str| SnapshotStatusRequest { name: name.into() };
    let late = node.control().snapshot_status(ask("late"), PATIENCE).await.unwrap();
    assert!(!late.replicated && late.root.is_empty(), "{late:?}");
    assert!(!rig.path("store/snapshots/late").exists(), "nobody else may see it");
    assert!(!waiting.is_finished(), "it waits for what is missing");
    rig.packs_back();
    assert!(waiting.await.unwrap().unwrap().replicated);
    until("it is replicated", async || node.control().snapshot_status(ask("late"), PATIENCE).await.unwrap().replicated).await;
    assert!(rig.path("store/snapshots/late").exists());
    assert!(check(&rig.path("store"), "late", &rig.path("late")) >= 3);
    check(&rig.path("store"), "waits", &rig.path("waits"));
    writer.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_snapshot_is_known_and_replicated_after_a_restart() {
    let rig = Rig::new();
    let mut node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    let writer = Writer::start(&node.target("pod"));
    until("the writer runs", async || writer.done() > 3).await;
    writer.finish();
    rig.packs_away();
    let made = cut(&node, &id, "late", false).await;
    fs::write(node.target("pod").join("after"), "the cut").unwrap();
    node.end_daemon(Signal::SIGKILL);
    node.unpublish(&id, "pod").await.unwrap();
    node.start_daemon().await;
    let ask = SnapshotStatusRequest { name: "late".into() };
    let known = node.control().snapshot_status(ask.clone(), PATIENCE).await.unwrap();
    assert_eq!(known, made, "by the daemon that did not cut it");
    rig.packs_back();
    until("it is replicated", async || node.control().snapshot_status(ask.clone(), PATIENCE).await.unwrap().replicated).await;
    check(&rig.path("store"), "late", &rig.path("late"));
    assert!(!rig.path("late/after").exists());
}
