//! A daemon or a store that is away, claims that are not served, and a publish that is called off.

use std::collections::HashMap;

use hiloop_csi::v1::identity_client::IdentityClient;
use hiloop_csi::v1::{CapacityRange, ProbeRequest};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::rig::{Rig, create_request, refused, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_down_is_unavailable_and_says_so_in_the_probe() {
    let rig = Rig::new();
    let mut node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    let endpoint = format!("unix:{}", node.dir.join("csi.sock").display());
    let probe = async || {
        let channel = tonic::transport::Endpoint::try_from(endpoint.clone()).unwrap().connect_lazy();
        IdentityClient::new(channel).probe(ProbeRequest {}).await.unwrap().into_inner().ready
    };
    assert_eq!(probe().await, Some(true));
    node.end_daemon(Signal::SIGKILL);
    assert_eq!(probe().await, Some(false));
    refused(node.create("other").await, Code::Unavailable, "daemon");
    refused(node.publish(&id, "pod").await, Code::Unavailable, "daemon");
    refused(node.stats(&id, "pod").await, Code::Unavailable, "daemon");
    refused(node.delete(&id).await, Code::Unavailable, "daemon");
    node.unpublish(&id, "pod").await.unwrap();
    // A socket file is left; the next daemon replaces it, and the driver finds it by itself.
    assert!(node.control_socket().exists());
    node.start_daemon().await;
    node.publish(&id, "pod").await.unwrap();
    node.unpublish(&id, "pod").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_unavailable_and_holds_up_no_unpublish() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let id = node.create("box").await.unwrap().volume_id;
    let other = node.create("other").await.unwrap().volume_id;
    node.publish(&id, "pod").await.unwrap();
    rig.store_away();
    refused(node.create("third").await, Code::Unavailable, "");
    refused(node.publish(&other, "pod-2").await, Code::Unavailable, "");
    node.publish(&id, "pod").await.expect("what is published needs no store");
    assert!(!node.stats(&id, "pod").await.unwrap().is_empty());
    std::fs::write(node.target("pod").join("waits"), "x").unwrap();
    node.unpublish(&id, "pod").await.unwrap();
    node.nothing_left("pod");
    node.unpublish(&other, "pod-2").await.unwrap();
    rig.store_back();
    // The rest was published meanwhile or is: the volume can be deleted once the head is given back.
    until("the head is given back", async || node.delete(&id).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_are_not_served_are_refused_for_good() {
    let rig = Rig::new();
    let node = rig.node("one").await;
    let with = |change: &dyn Fn(&mut HashMap<String, String>)| {
        let mut r = create_request("box");
        change(&mut r.parameters);
        r
    };
    let set = |k: &'static str, v: &'static str| with(&move |p| drop(p.insert(k.into(), v.into())));
    let cases = [
        (set("csi.storage.k8s.io/pvc/namespace", "default"), Code::InvalidArgument, "default"),
        (with(&|p| p.retain(|k, _| k == "baseBuild")), Code::InvalidArgument, "--extra-create-metadata"),
        (set("baseBuild", "typo"), Code::InvalidArgument, "typo"),
        (with(&|p| drop(p.remove("baseBuild"))), Code::InvalidArgument, "baseBuild"),
    ];
    for (request, code, word) in cases {
        refused(node.create_with(request).await, code, word);
    }
    let mut small = create_request("box");
    small.capacity_range = Some(CapacityRange { required_bytes: 1 << 10, limit_bytes: 1 << 10 });
    refused(node.create_with(small).await, Code::OutOfRange, "1024");
    // The same names in another namespace are another identity altogether.
    let id = node.create("box").await.unwrap().volume_id;
    let foreign = hiloop_types::Claim::new("default", "box").unwrap().workspace().unwrap();
    assert_ne!(id, foreign.as_str());
    refused(node.publish(foreign.as_str(), "pod").await, Code::NotFound, foreign.as_str());
    let mut request = crate::rig::publish_request(&id, &node.target("pod"));
    request.volume_context.insert("csi.storage.k8s.io/pod.namespace".into(), "default".into());
    refused(node.node_client().node_publish_volume(request).await, Code::InvalidArgument, "default");
    let mut request = crate::rig::publish_request(&id, &node.target("pod"));
    request.readonly = true;
    refused(node.node_client().node_publish_volume(request).await, Code::InvalidArgument, "readOnly");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpublish_calls_a_pending_publish_off() {
    let rig = Rig::new();
    let one = rig.node("one").await;
    // Watches longer than any test waits.
    let two = std::sync::Arc::new(rig.node_watching("two", "10m").await);
    let id = one.create("box").await.unwrap().volume_id;
    one.publish(&id, "pod").await.unwrap();
    one.signal_daemon(Signal::SIGSTOP);
    let (waiting, of) = (two.clone(), id.clone());
    let pending = tokio::spawn(async move { waiting.publish(&of, "pod").await });
    until("the publish runs", async || two.target("pod").exists()).await;
    refused(two.publish(&id, "pod").await, Code::Aborted, "NodePublishVolume");
    two.unpublish(&id, "pod").await.unwrap();
    refused(pending.await.unwrap(), Code::Aborted, "called off");
    two.nothing_left("pod");
    one.signal_daemon(Signal::SIGCONT);
    // Nobody wanted the second node to have it: the first one was not fenced.
    std::fs::write(one.target("pod").join("still"), "mine").unwrap();
    one.unpublish(&id, "pod").await.unwrap();
    one.publish(&id, "pod").await.unwrap();
    assert_eq!(std::fs::read_to_string(one.target("pod").join("still")).unwrap(), "mine");
}
