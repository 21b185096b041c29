//! A volume's life on two nodes: moved cleanly, and taken from a node that fell silent.

use std::fs;

use hiloop_control::v1::lost_window::State;
use hiloop_control::v1::{AttachRequest, DescribeRequest, Workspace, attach_response, describe_request, describe_response};
use hiloop_types::Claim;
use nix::sys::signal::Signal;
use tonic::Code;

use crate::rig::{NAMESPACE, Node, PATIENCE, Rig, create_request, refused, until};

async fn describe(node: &Node, volume: &str) -> Workspace {
    let what = Some(describe_request::What::Workspace(volume.into()));
    match node.control().describe(DescribeRequest { what }, PATIENCE).await.unwrap().what {
        Some(describe_response::What::Workspace(w)) => w,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_move_loses_nothing() {
    let rig = Rig::new();
    let (one, two) = (rig.node("one").await, rig.node("two").await);
    let volume = one.create("box").await.unwrap();
    let id = volume.volume_id.as_str();
    assert_eq!(id, Claim::new(NAMESPACE, "box").unwrap().workspace().unwrap().as_str());
    assert_eq!(volume.capacity_bytes, 64 << 20);
    one.publish(id, "pod-1").await.unwrap();
    let at = one.target("pod-1");
    assert_eq!(fs::read_to_string(at.join("etc/hosts")).unwrap(), "127.0.0.1 localhost\n", "it starts from the base");
    fs::write(at.join("written"), vec![3; 200_000]).unwrap();
    one.unpublish(id, "pod-1").await.unwrap();
    one.nothing_left("pod-1");

    two.publish(id, "pod-2").await.unwrap();
    let at = two.target("pod-2");
    assert_eq!(fs::read(at.join("written")).unwrap(), vec![3; 200_000]);
    assert_eq!(fs::read(at.join("big")).unwrap(), vec![7; 300_000]);
    let head = describe(&two, id).await;
    assert_eq!((head.lost_window.unwrap().state(), head.node.as_str(), head.open), (State::None, "two", true));
    refused(one.delete(id).await, Code::FailedPrecondition, "two");
    two.unpublish(id, "pod-2").await.unwrap();
    two.nothing_left("pod-2");

    one.delete(id).await.unwrap();
    one.delete(id).await.expect("deleted is done");
    refused(two.create("box").await, Code::FailedPrecondition, "deleted");
    refused(two.publish(id, "pod-3").await, Code::NotFound, id);
    two.unpublish(id, "pod-3").await.unwrap();
    two.nothing_left("pod-3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_is_waited_for_then_fenced_and_fails_loudly() {
    let rig = Rig::new();
    let (one, two) = (rig.node("one").await, rig.node_watching("two", "4s").await);
    let id = one.create("box").await.unwrap().volume_id;
    one.publish(&id, "pod-1").await.unwrap();
    let at = one.target("pod-1");
    fs::write(at.join("replicated"), "kept").unwrap();
    let flush = hiloop_control::v1::FlushRequest { request_key: String::new(), workspace: id.clone() };
    one.control().flush(flush, PATIENCE).await.unwrap();
    refused(two.publish(&id, "pod-2").await, Code::Unavailable, "node one, epoch 1, 0 bytes unpublished");

    rig.store_away();
    fs::write(at.join("tail"), "only on the first node").unwrap();
    one.signal_daemon(Signal::SIGSTOP);
    rig.store_back();
    two.publish(&id, "pod-2").await.unwrap();
    let there = two.target("pod-2");
    assert_eq!(fs::read_to_string(there.join("replicated")).unwrap(), "kept");
    assert!(!there.join("tail").exists(), "it never reached the store");
    let lost = describe(&two, &id).await.lost_window.unwrap();
    assert!(matches!(lost.state(), State::Possible | State::Known), "{lost:?}");

    one.signal_daemon(Signal::SIGCONT);
    // The daemon that was stopped finds its head taken; from then on nobody writes into the void.
    until("the first node is fenced", async || {
        let at = at.clone();
        let wrote = tokio::task::spawn_blocking(move || fs::write(at.join("late"), "x")).await.unwrap();
        wrote.is_err_and(|e| e.raw_os_error() == Some(libc_eio()))
    })
    .await;
    assert!(!there.join("late").exists());
    one.unpublish(&id, "pod-1").await.unwrap();
    one.nothing_left("pod-1");
    fs::write(there.join("goes-on"), "x").unwrap();
    two.unpublish(&id, "pod-2").await.unwrap();
}

/// Unpublish returns after its bounded flush, and the node goes on: whoever comes next waits for that, and loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_waits_for_a_node_that_still_publishes() {
    let rig = Rig::new();
    let (one, two) = (rig.node("one").await, rig.node_watching("two", "80s").await);
    let id = one.create("box").await.unwrap().volume_id;
    one.publish(&id, "pod-1").await.unwrap();
    rig.packs_away();
    fs::write(one.target("pod-1").join("late"), vec![5; 200_000]).unwrap();
    one.unpublish(&id, "pod-1").await.unwrap();
    one.nothing_left("pod-1");
    let waits = two.publish(&id, "pod-2").await.unwrap_err();
    let left = waits.message().split(" bytes unpublished").next().and_then(|m| m.rsplit(' ').next()).and_then(|n| n.parse::<u64>().ok());
    assert!(waits.code() == Code::Unavailable && waits.message().contains("node one"), "{waits:?}");
    assert!(left.is_some_and(|l| l >= 200_000), "{waits:?}");
    rig.packs_back();
    until("it is given back", async || two.publish(&id, "pod-2").await.is_ok()).await;
    assert_eq!(fs::read(two.target("pod-2").join("late")).unwrap(), vec![5; 200_000]);
    assert_eq!(describe(&two, &id).await.lost_window.unwrap().state(), State::None);
}

/// A node that was given up and comes back: what only it had is not lost, and nobody has to ask for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_makes_a_workspace_of_what_only_it_had() {
    let rig = Rig::new();
    let (mut one, two) = (rig.node("one").await, rig.node("two").await);
    let id = one.create("box").await.unwrap().volume_id;
    one.publish(&id, "pod-1").await.unwrap();
    rig.packs_away();
    fs::write(one.target("pod-1").join("tail"), "only on the first node").unwrap();
    one.end_daemon(Signal::SIGKILL);
    rig.packs_back();
    two.publish(&id, "pod-2").await.unwrap();
    assert!(!two.target("pod-2").join("tail").exists());
    one.unpublish(&id, "pod-1").await.unwrap();
    one.start_daemon().await;
    let recovered = format!("{id}-recovered-1");
    let ask = DescribeRequest { what: Some(describe_request::What::Workspace(recovered.clone())) };
    until("it is recovered", async || two.control().describe(ask.clone(), PATIENCE).await.is_ok()).await;
    until("it is given back", async || !describe(&two, &recovered).await.open).await;
    let at = two.dir.join("looked-at");
    fs::create_dir(&at).unwrap();
    let attach = AttachRequest { workspace: recovered, target: at.display().to_string(), ..Default::default() };
    let attached = two.control().attach(attach, PATIENCE).await.unwrap();
    assert!(matches!(attached.outcome, Some(attach_response::Outcome::Attached(_))), "{attached:?}");
    assert_eq!(fs::read_to_string(at.join("tail")).unwrap(), "only on the first node");
}

fn libc_eio() -> i32 {
    nix::errno::Errno::EIO as i32
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_fork_is_adopted() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let child = Claim::new(NAMESPACE, "child").unwrap().workspace().unwrap().to_string();
    let parent = node.create("parent").await.unwrap().volume_id;
    node.publish(&parent, "p").await.unwrap();
    fs::write(node.target("p").join("inherited"), "yes").unwrap();
    let cut = hiloop_control::v1::SnapshotRequest { request_key: "k".into(), workspace: parent.clone(), name: "snap".into(), wait: true };
    assert!(node.control().snapshot(cut, PATIENCE).await.unwrap().replicated);
    let fork = hiloop_control::v1::ForkRequest { request_key: "f".into(), source: "snapshot:snap".into(), children: vec![child.clone()] };
    let made = node.control().fork(fork.clone(), PATIENCE).await.unwrap();
    assert_eq!(made.children[0].error, "");
    assert_eq!(node.control().fork(fork, PATIENCE).await.unwrap(), made, "the same key is answered from the first call");

    let volume = node.create("child").await.unwrap();
    assert_eq!(volume.volume_id, child);
    assert_eq!(node.create("child").await.unwrap().volume_id, child);
    let mut bigger = create_request("child");
    bigger.capacity_range = Some(hiloop_csi::v1::CapacityRange { required_bytes: 128 << 20, limit_bytes: 0 });
    refused(node.create_with(bigger).await, Code::AlreadyExists, "67108864");
    node.publish(&child, "c").await.unwrap();
    assert_eq!(fs::read_to_string(node.target("c").join("inherited")).unwrap(), "yes");
}
