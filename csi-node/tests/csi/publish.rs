//! Publishing twice, restarts between every pair of calls, leftovers.

use std::fs;

use hiloop_control::mountinfo;
use hiloop_csi::v1::volume_usage::Unit;
use nix::sys::signal::Signal;
use tonic::Code;

use crate::rig::{Node, PATIENCE, Rig, clean_targets, publish_request, refused, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_second_publish_is_the_first_and_elsewhere_is_refused() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    let mounted = mountinfo::find(&node.target("pod")).unwrap().unwrap();
    assert_eq!(mounted.workspace(), Some(id.as_str()));
    node.publish(&id, "pod").await.unwrap();
    assert_eq!(mountinfo::find(&node.target("pod")).unwrap().unwrap(), mounted, "it is the same mount");
    refused(node.publish(&id, "other-pod").await, Code::FailedPrecondition, "already");
    let second = node.create("second").await.unwrap().volume_id;
    refused(node.publish(&second, "pod").await, Code::FailedPrecondition, "published there");
    node.unpublish(&second, "other-pod").await.expect("what was not published");
    assert!(mountinfo::find(&node.target("pod")).unwrap().is_some());
    let options = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = options.lines().find(|l| l.contains(&node.target("pod").display().to_string())).unwrap();
    assert!(line.contains("nosuid") && line.contains("nodev") && line.contains("default_permissions"), "{line}");

    let usage = node.stats(&id, "pod").await.unwrap();
    let bytes = usage.iter().find(|u| u.unit() == Unit::Bytes).unwrap();
    assert!(bytes.total == 64 << 20 && bytes.used >= 300_000 && bytes.available == bytes.total - bytes.used, "{bytes:?}");
    refused(node.stats(&id, "other-pod").await, Code::NotFound, "not published");
    refused(node.stats(&second, "pod").await, Code::NotFound, "not published");
    node.unpublish(&id, "pod").await.unwrap();
    node.unpublish(&id, "pod").await.expect("what is not published any more");
    node.nothing_left("pod");
}

/// The driver keeps nothing: it may be another process at every call.
#[tokio::test(flavor = "multi_thread")]
async fn the_driver_restarts_between_every_pair_of_calls() {
    let rig = Rig::new();
    let mut node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.restart_driver().await;
    assert_eq!(node.create("box").await.unwrap().volume_id, id);
    node.restart_driver().await;
    node.publish(&id, "pod").await.unwrap();
    fs::write(node.target("pod").join("f"), "x").unwrap();
    node.restart_driver().await;
    node.publish(&id, "pod").await.unwrap();
    node.restart_driver().await;
    assert_eq!(node.stats(&id, "pod").await.unwrap().len(), 2);
    node.restart_driver().await;
    assert_eq!(fs::read_to_string(node.target("pod").join("f")).unwrap(), "x", "mounts do not depend on the driver");
    node.unpublish(&id, "pod").await.unwrap();
    node.restart_driver().await;
    node.nothing_left("pod");
    node.delete(&id).await.unwrap();
    node.restart_driver().await;
    node.delete(&id).await.unwrap();
}

async fn restart(node: &mut Node, signal: Signal) {
    node.end_daemon(signal);
    node.start_daemon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_is_killed_between_every_pair_of_calls() {
    let rig = Rig::new();
    let mut node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    restart(&mut node, Signal::SIGKILL).await;
    node.publish(&id, "pod").await.unwrap();
    fs::write(node.target("pod").join("accepted"), "x").unwrap();
    restart(&mut node, Signal::SIGKILL).await;
    refused(node.stats(&id, "pod").await, Code::NotFound, "not published");
    // Its dead mount is taken away and the workspace mounted anew, with every accepted byte.
    node.publish(&id, "pod").await.unwrap();
    assert_eq!(fs::read_to_string(node.target("pod").join("accepted")).unwrap(), "x");
    let stacked = mountinfo::mounts().unwrap().into_iter().filter(|m| m.mountpoint == node.target("pod")).count();
    assert_eq!(stacked, 1);
    restart(&mut node, Signal::SIGKILL).await;
    node.unpublish(&id, "pod").await.unwrap();
    node.nothing_left("pod");
    restart(&mut node, Signal::SIGTERM).await;
    node.publish(&id, "pod").await.unwrap();
    assert_eq!(fs::read_to_string(node.target("pod").join("accepted")).unwrap(), "x");
    node.unpublish(&id, "pod").await.unwrap();
    restart(&mut node, Signal::SIGKILL).await;
    node.delete(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unpublish_needs_no_daemon_and_the_next_one_publishes_what_was_left() {
    let rig = Rig::new();
    // Watches until the first node gives it back, or the publish's time is up.
    let (mut one, two) = (rig.node("one").await, rig.node_watching("two", "80s").await);
    let id = one.create("box").await.unwrap().volume_id;
    one.publish(&id, "pod").await.unwrap();
    rig.store_away();
    fs::write(one.target("pod").join("tail"), "not lost").unwrap();
    one.end_daemon(Signal::SIGKILL);
    one.unpublish(&id, "pod").await.unwrap();
    one.nothing_left("pod");
    rig.store_back();
    one.start_daemon().await;
    // Nobody asks for it: what an earlier daemon left is published, and the head given back.
    until("the second node gets it with all that was accepted", async || two.publish(&id, "pod").await.is_ok()).await;
    assert_eq!(fs::read_to_string(two.target("pod").join("tail")).unwrap(), "not lost");
}

/// Daemon and mount are lost while the pod runs: it must not write to the node's disk instead, though it is root.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_written_below_a_lost_mount() {
    let rig = Rig::new();
    let mut node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    let target = node.target("pod");
    let lost = || {
        nix::mount::umount2(&target, nix::mount::MntFlags::MNT_DETACH).unwrap();
        let refused = fs::write(target.join("into-the-void"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(nix::errno::Errno::EPERM as i32), "below {}", target.display());
    };
    node.publish(&id, "pod").await.unwrap();
    fs::write(target.join("kept"), "x").unwrap();
    node.end_daemon(Signal::SIGKILL);
    lost();
    node.unpublish(&id, "pod").await.unwrap();
    node.nothing_left("pod");

    // Published again where it lay: the same directory serves.
    node.start_daemon().await;
    node.publish(&id, "pod").await.unwrap();
    node.end_daemon(Signal::SIGKILL);
    lost();
    node.start_daemon().await;
    node.publish(&id, "pod").await.unwrap();
    assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "x");

    // Nobody unpublishes: the next driver clears it away, or the command does, with no daemon and no driver.
    node.end_daemon(Signal::SIGKILL);
    let mounted = clean_targets(&node.dir);
    assert!(
        !mounted.status.success() && String::from_utf8_lossy(&mounted.stderr).contains("umount -l"),
        "a dead mount is still one: {mounted:?}"
    );
    lost();
    node.restart_driver().await;
    fs::write(target.join("f"), "x").expect("it belongs to nobody any more");
    fs::remove_file(target.join("f")).unwrap();
    node.start_daemon().await;
    node.publish(&id, "pod").await.unwrap();
    node.end_daemon(Signal::SIGKILL);
    node.end_driver(Signal::SIGKILL);
    lost();
    let cleaned = clean_targets(&node.dir);
    assert!(cleaned.status.success(), "{cleaned:?}");
    fs::remove_dir(&target).unwrap();
}

/// Volumes that came and went leave nothing behind: no descriptor, no mount, no record.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_come_and_go_leave_nothing() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    // The files of the index have a bound of their own.
    let is_index = |p: &std::path::Path| p.extension().is_some_and(|e| e == "sst");
    let count = |pid: i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(|e| fs::read_link(e.ok()?.path()).ok());
        open.filter(|p| !is_index(p)).count()
    };
    let held = || [count(node.daemon_pid()), count(node.driver_pid())];
    let round = async |i: usize| {
        let id = node.create(&format!("box-{i}")).await.unwrap().volume_id;
        node.publish(&id, "pod").await.unwrap();
        fs::write(node.target("pod").join("f"), "x").unwrap();
        node.stats(&id, "pod").await.unwrap();
        refused(node.publish(&id, "other").await, Code::FailedPrecondition, "already");
        node.unpublish(&id, "pod").await.unwrap();
        node.nothing_left("pod");
        node.delete(&id).await.unwrap();
    };
    for i in 0..5 {
        round(i).await;
    }
    let before = held();
    for i in 5..30 {
        round(i).await;
    }
    // Connections of this test and of the driver come and go; twenty-five volumes that left one each would show.
    until("nothing is held for them", async || held().iter().zip(before).all(|(now, then)| *now < then + 10)).await;
    assert_eq!(fs::read_dir(node.dir.join("state")).unwrap().count(), 0, "no target is recorded");
    assert!(mountinfo::mounts().unwrap().iter().all(|m| !m.mountpoint.starts_with(&node.dir)));
    let list = node.control().list(Default::default(), PATIENCE).await.unwrap();
    assert!(list.mounts.is_empty() && list.draining.is_empty(), "{list:?}");
}

/// What the kubelet removes by itself after a final error.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_publish_leaves_a_target_that_can_be_removed() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    node.delete(&id).await.unwrap();
    refused(node.publish(&id, "pod").await, Code::NotFound, &id);
    fs::remove_dir(node.target("pod")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_way_is_named_and_left() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    let pods = node.dir.join("kubelet/pods");
    for pod in ["file", "link", "full", "foreign"] {
        fs::create_dir_all(pods.join(pod)).unwrap();
    }
    fs::write(node.target("file"), "x").unwrap();
    std::os::unix::fs::symlink("/tmp", node.target("link")).unwrap();
    fs::create_dir(node.target("full")).unwrap();
    fs::write(node.target("full").join("local"), "x").unwrap();
    fs::create_dir(node.target("foreign")).unwrap();
    let nothing: Option<&str> = None;
    nix::mount::mount(Some("none"), &node.target("foreign"), Some("tmpfs"), nix::mount::MsFlags::empty(), nothing).unwrap();
    refused(node.publish(&id, "file").await, Code::InvalidArgument, "no directory");
    refused(node.publish(&id, "link").await, Code::InvalidArgument, "symbolic link");
    refused(node.publish(&id, "full").await, Code::FailedPrecondition, "not empty");
    refused(node.publish(&id, "foreign").await, Code::FailedPrecondition, "something else is mounted");
    refused(node.unpublish(&id, "full").await, Code::FailedPrecondition, "holds files");
    refused(node.unpublish(&id, "foreign").await, Code::FailedPrecondition, "something else is mounted");
    nix::mount::umount(&node.target("foreign")).unwrap();
    node.unpublish(&id, "foreign").await.unwrap();
    let outside = publish_request(&id, &rig.path("elsewhere"));
    refused(node.node_client().node_publish_volume(outside).await, Code::InvalidArgument, "kubelet's directory");
    assert!(fs::read_to_string(node.target("full").join("local")).is_ok());
    assert!(mountinfo::mounts().unwrap().iter().all(|m| !m.mountpoint.starts_with(&node.dir)), "nothing was mounted");
}
