//! The control socket itself: what a client sees of the ladder, and what hostile ones cannot do.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use hiloop_control::v1::*;
use hiloop_types::ErrorKind;
use nix::sys::signal::Signal;

use crate::rig::{Node, PATIENCE, Rig, sandbox_workspace, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_local_at_once_and_replicated_later() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    let control = node.control();
    fs::write(node.target("pod").join("f"), "x").unwrap();
    let cut = SnapshotRequest { request_key: "one".into(), workspace: id.clone(), name: "s1".into(), wait: false };
    let local = control.snapshot(cut.clone(), PATIENCE).await.unwrap();
    assert!(!local.replicated && local.root.is_empty() && local.sequence > 0, "{local:?}");
    assert_eq!(control.snapshot(cut, PATIENCE).await.unwrap(), local, "the same key is the same snapshot");
    let other = SnapshotRequest { request_key: "one".into(), workspace: id.clone(), name: "s2".into(), wait: false };
    assert_eq!(control.snapshot(other, PATIENCE).await.unwrap_err().kind(), ErrorKind::Invalid, "the same key for something else");
    let ask = SnapshotStatusRequest { name: "s1".into() };
    until("the snapshot is replicated", async || {
        let state = control.snapshot_status(ask.clone(), PATIENCE).await.unwrap();
        state.replicated && !state.root.is_empty() && state.sequence == local.sequence
    })
    .await;
    let unknown = SnapshotStatusRequest { name: "never".into() };
    assert_eq!(control.snapshot_status(unknown, PATIENCE).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_refuses_new_mounts_and_publishes_all() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    fs::write(node.target("pod").join("f"), vec![1; 100_000]).unwrap();
    let control = node.control();
    let (tell, told) = tokio::sync::oneshot::channel();
    let watching = tokio::spawn({
        let control = control.clone();
        async move {
            let mut tell = Some(tell);
            let each = |e: Event| {
                if e.kind() == event::Kind::Detached {
                    let _ = tell.take().map(|t| t.send(e));
                }
                tell.is_some()
            };
            control.watch(each).await
        }
    });
    let left = control.drain(DrainRequest { deadline_ms: 60_000 }, PATIENCE).await.unwrap().left;
    assert!(left.is_empty(), "{left:?}");
    let status = control.status(StatusRequest { target: String::new(), workspace: id.clone() }, PATIENCE).await.unwrap();
    assert_eq!(status.usage.unwrap().backlog_bytes, 0);
    let other = node.create("other").await.unwrap().volume_id;
    crate::rig::refused(node.publish(&other, "pod-2").await, tonic::Code::Unavailable, "drained");
    node.unpublish(&id, "pod").await.unwrap();
    let event = told.await.unwrap();
    assert_eq!((event.workspace.as_str(), event.target.as_str()), (id.as_str(), node.target("pod").to_str().unwrap()));
    watching.await.unwrap().unwrap();
    let evicted = control.evict(EvictRequest {}, PATIENCE).await.unwrap();
    assert!(evicted.bytes_after <= evicted.bytes_before);
}

/// `ctl drain`: its exit code and what it printed.
fn drain(node: &Node, deadline: &str) -> (Option<i32>, String) {
    let mut c = Command::new(sandbox_workspace());
    c.args(["--json", "ctl", "--socket"]).arg(node.control_socket()).args(["drain", "--deadline", deadline]);
    let out = c.output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

/// A node that goes away while something was never published: also of a daemon that was killed before.
#[tokio::test(flavor = "multi_thread")]
async fn drain_names_what_is_only_on_this_node() {
    let rig = Rig::new();
    let mut node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    rig.store_away();
    fs::write(node.target("pod").join("f"), vec![1; 100_000]).unwrap();
    let (code, said) = drain(&node, "100ms");
    assert!(code == Some(1) && said.contains(&id), "{code:?} {said}");
    node.end_daemon(Signal::SIGKILL);
    node.unpublish(&id, "pod").await.unwrap();
    node.start_daemon().await;
    let (code, said) = drain(&node, "100ms");
    assert!(code == Some(1) && said.contains(&id), "nobody has it open, and it is nowhere else: {code:?} {said}");
    rig.store_back();
    let (code, said) = drain(&node, "100s");
    assert!(code == Some(0) && said.contains("\"left\":[]"), "{code:?} {said}");
    let two = rig.node("two").await;
    two.publish(&id, "pod").await.unwrap();
    assert_eq!(fs::read(two.target("pod").join("f")).unwrap(), vec![1; 100_000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_does_not_wait_for_what_was_deleted() {
    let rig = Rig::new();
    let (mut node, two) = (rig.node("one").await, rig.node("two").await);
    let id = node.create("box").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    rig.packs_away();
    fs::write(node.target("pod").join("f"), vec![1; 100_000]).unwrap();
    node.end_daemon(Signal::SIGKILL);
    rig.packs_back();
    until("its writer is silent, and it is deleted", async || two.delete(&id).await.is_ok()).await;
    node.unpublish(&id, "pod").await.unwrap();
    node.start_daemon().await;
    let left = node.control().drain(DrainRequest { deadline_ms: 100_000 }, PATIENCE).await.unwrap().left;
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_dead_mounts_and_daemons() {
    let rig = Rig::new();
    let mut node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    let doctor = |node: &crate::rig::Node| {
        let mut c = Command::new(sandbox_workspace());
        c.args(["--json", "ctl", "--timeout", "20s", "--socket"]).arg(node.control_socket()).arg("doctor");
        String::from_utf8_lossy(&c.output().unwrap().stdout).into_owned()
    };
    let target = node.target("pod").display().to_string();
    // Others on this machine may have something wrong.
    let well = doctor(&node);
    let served = format!("\"pid\":{}", node.daemon_pid());
    let row = well.split('{').find(|row| row.contains(&target)).unwrap_or_else(|| panic!("{well}"));
    assert!(row.contains(&served) && row.contains("\"waits\":[]") && row.contains("\"standing\":\"live\""), "{row}");
    assert!(well.contains("default_request_timeout") && well.contains("nofile"), "{well}");
    assert!(!well.contains(&format!("{target}:")), "nothing is wrong with it: {well}");
    node.end_daemon(Signal::SIGKILL);
    let ill = doctor(&node);
    assert!(ill.contains("no daemon answers on the control socket") && ill.contains(&format!("{target}: no daemon answers")), "{ill}");
    assert!(ill.contains(&format!("umount -l {target}")), "{ill}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_clients_harm_nobody() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let silent: Vec<UnixStream> = (0..1000).filter_map(|_| UnixStream::connect(node.control_socket()).ok()).collect();
    let garbage: Vec<u8> = (0..70_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for _ in 0..50 {
        if let Ok(mut s) = UnixStream::connect(node.control_socket()) {
            s.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            let _ = s.write_all(&garbage);
        }
    }
    assert_eq!(silent.len(), 1000);
    // Those that say nothing make room for those who do.
    let honest = node.control();
    honest.info(InfoRequest {}, PATIENCE).await.unwrap();
    let huge = ForkRequest { request_key: String::new(), source: "x".repeat(hiloop_control::REQUEST_MAX + 1), children: Vec::new() };
    assert!(honest.fork(huge, PATIENCE).await.is_err());
    assert!(honest.info(InfoRequest {}, PATIENCE).await.is_ok());
    drop(silent);
}

/// The directory keeps others out; for whoever got in all the same, the peer's credentials do.
#[tokio::test(flavor = "multi_thread")]
async fn only_root_may_speak() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    use std::os::unix::fs::PermissionsExt;
    for p in [rig.path(""), node.dir.clone(), node.dir.join("run")] {
        fs::set_permissions(p, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(node.control_socket(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = rig.path("sandbox-workspace");
    fs::copy(sandbox_workspace(), &program).unwrap();
    let ask = |uid: &str| {
        let mut c = Command::new("setpriv");
        c.args(["--reuid", uid, "--regid", uid, "--clear-groups"]).arg(&program).args(["ctl", "--timeout", "20s", "--socket"]);
        c.arg(node.control_socket()).arg("info").output().unwrap()
    };
    let nobody = ask("65534");
    assert_eq!(nobody.status.code(), Some(1), "{}", String::from_utf8_lossy(&nobody.stderr));
    let root = ask("0");
    assert!(root.status.success() && String::from_utf8_lossy(&root.stdout).contains("node: one"), "{root:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_places_and_second_daemons_are_named() {
    let rig = Rig::new();
    let mut node = rig.node("one").await;
    let config = fs::read_to_string(node.dir.join("daemon.toml")).unwrap();
    let start = |config: &str| {
        let file = rig.path("bad.toml");
        fs::write(&file, config).unwrap();
        let out = Command::new(sandbox_workspace()).args(["daemon", "--foreground", "--config"]).arg(&file).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let dir = node.dir.display().to_string();
    let (none, at) = (None::<&str>, |name: &str| node.dir.join(name));
    for (name, data) in [("read-only", "mode=700"), ("full", "size=4k,nr_inodes=1")] {
        fs::create_dir(at(name)).unwrap();
        nix::mount::mount(Some("tmpfs"), &at(name), Some("tmpfs"), nix::mount::MsFlags::empty(), Some(data)).unwrap();
    }
    let read_only = nix::mount::MsFlags::MS_REMOUNT | nix::mount::MsFlags::MS_RDONLY;
    nix::mount::mount(none, &at("read-only"), none, read_only, none).unwrap();
    fs::write(at("a-file"), "x").unwrap();
    for (from, to, word) in [
        ("/cache\"", "/read-only/cache\"", "Read-only file system"),
        ("/cache\"", "/full/cache\"", "No space left"),
        ("/cache\"", "/a-file/cache\"", "Not a directory"),
        ("/cache\"", "/kubelet/cache\"", "cache directory is inside"),
        ("/run/control.sock", "/kubelet/control.sock", "control socket is inside"),
        ("/run/control.sock", &format!("/{}", "x".repeat(120)), "107"),
        ("store = ", "stoer = ", "stoer"),
        ("/cache\"", "/cache-2\"", "another process listens"),
        ("/run/control.sock", "/run2/control.sock", "in use by process"),
    ] {
        let (code, said) =
            start(&config.replacen(&format!("{dir}{from}"), &format!("{dir}{to}"), 1).replacen(from, to, usize::from(from == "store = ")));
        assert!(code != Some(0) && said.contains(word) && !said.contains("panic"), "{word}: {code:?} {said}");
    }
    for name in ["read-only", "full"] {
        nix::mount::umount(&at(name)).unwrap();
    }
    assert!(!node.dir.join("kubelet/cache").exists(), "nothing was made");
    assert!(node.control().info(InfoRequest {}, PATIENCE).await.is_ok(), "the first one goes on");
    node.end_daemon(Signal::SIGTERM);
    assert!(!node.control_socket().exists());
}
