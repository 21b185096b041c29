//! The Node service: workspaces at the kubelet's targets.
//!
//! The daemon mounts right at the target: one workspace has one mount on a node, so a private mount with binds would only add a second
//! place that can be left behind, and one that must be propagated into each new container of the daemon. The mount reaches the pods
//! because the daemon's container has the kubelet's directory with bidirectional propagation.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hiloop_control::Client;
use hiloop_control::v1::{self as control, attach_response};
use hiloop_types::{Claim, ErrorKind};
use tonic::{Code, Request, Response, Status};

use crate::codes::{invalid, nothing, of_error, of_refusal};
use crate::controller::{DURABILITY, check_capability};
use crate::locks::Locks;
use crate::options::Options;
use crate::sealed::Sealed;
use crate::target::{self, There};
use crate::v1::node_server::Node;
use crate::v1::node_service_capability::{Rpc, Type, rpc};
use crate::v1::volume_usage::Unit;
use crate::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, VolumeUsage,
};

/// A publish may take so long: watching a silent writer elsewhere takes 30 s of it. The kubelet's own patience is two minutes.
const PUBLISH: Duration = Duration::from_secs(90);
/// Time for publishing before an unpublish returns; the daemon goes on with the rest.
const FLUSH: Duration = Duration::from_secs(10);
/// Time for the daemon to end a mount beside that: users of open files have two seconds, then they are cut off.
const DETACH: Duration = Duration::from_secs(20);
/// What the daemon answers from memory.
const MEMORY: Duration = Duration::from_secs(10);
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

pub(crate) struct NodeService {
    pub options: Arc<Options>,
    pub daemon: Client,
    pub locks: Locks,
    pub sealed: Arc<Sealed>,
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T, Status> + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(f).await.unwrap_or_else(|e| Err(Status::internal(format!("a thread died: {e}"))))
}

impl NodeService {
    /// What a publish must say, checked before anything is touched.
    fn checked(&self, r: &NodePublishVolumeRequest) -> Result<PathBuf, Status> {
        if r.volume_id.is_empty() {
            return Err(invalid("the request names no volume"));
        }
        if r.target_path.is_empty() {
            return Err(invalid("the request names no target"));
        }
        check_capability(r.volume_capability.as_ref().ok_or_else(|| invalid("no volume capability is given"))?)?;
        if r.readonly {
            return Err(invalid("read-only publishes are not offered; set readOnly on the container's volume mount"));
        }
        let sandbox = &self.options.sandbox_namespace;
        if let Some(ns) = r.volume_context.get(POD_NAMESPACE).filter(|ns| *ns != sandbox) {
            return Err(invalid(format!("pods of namespace {ns:?} are not served, only those of {sandbox:?}")));
        }
        if r.volume_context.get(EPHEMERAL).is_some_and(|e| e == "true") {
            return Err(invalid("ephemeral volumes are not offered"));
        }
        target::check(&r.target_path, &self.options.kubelet_root)
    }

    async fn publish(&self, volume: String, target: PathBuf, context: &HashMap<String, String>) -> Result<(), Status> {
        let served = self.daemon.list(control::ListRequest {}, MEMORY).await.map_err(|e| of_error(&e))?.mounts;
        if let Some(there) = served.iter().find(|m| m.alive && m.workspace == volume && Path::new(&m.target) != target) {
            return Err(Status::failed_precondition(format!("volume {volume} is published at {} already", there.target)));
        }
        let (at, sealed) = (target.clone(), self.sealed.clone());
        let there = blocking(move || match target::clear(&at, &served)? {
            There::Nothing => target::make(&at, &sealed).map(|()| There::Nothing),
            served => Ok(served),
        })
        .await?;
        match there {
            There::Served(w) if w == volume => return Ok(()),
            There::Served(w) => return Err(Status::failed_precondition(format!("{}: volume {w} is published there", target.display()))),
            There::Nothing => {}
        }
        let attached = self.attach(volume, &target, context).await;
        if attached.as_ref().is_err_and(|e| !matches!(e.code(), Code::Unavailable | Code::Aborted)) {
            // Final to the kubelet, which then removes the directory by itself; else it unpublishes, or tries again.
            let sealed = self.sealed.clone();
            blocking(move || target::open_up(&target, &sealed)).await?;
        }
        attached
    }

    async fn attach(&self, volume: String, target: &Path, context: &HashMap<String, String>) -> Result<(), Status> {
        let durability = match context.get(DURABILITY).map(String::as_str) {
            Some("replicated") => control::Durability::Replicated,
            _ => control::Durability::Local,
        };
        let target = text(target)?;
        let request = control::AttachRequest {
            request_key: String::new(),
            workspace: volume.clone(),
            target,
            durability: durability.into(),
            take_over: false,
        };
        match self.daemon.attach(request, PUBLISH).await.map_err(|e| of_error(&e))?.outcome {
            Some(attach_response::Outcome::Attached(a)) => {
                let lost = a.lost_window.unwrap_or_default();
                tracing::info!(volume, epoch = a.epoch, lost_window = lost.state().as_str_name(), "published");
                Ok(())
            }
            Some(attach_response::Outcome::Refused(r)) => Err(of_refusal(&r)),
            None => Err(nothing()),
        }
    }

    async fn unpublish(&self, volume: &str, target: PathBuf) -> Result<(), Status> {
        let flush_ms = FLUSH.as_millis() as u32;
        let request = control::DetachRequest { request_key: String::new(), target: text(&target)?, workspace: volume.to_owned(), flush_ms };
        match self.daemon.detach(request, FLUSH + DETACH).await {
            Ok(d) if d.left_bytes > 0 => tracing::info!(volume, left_bytes = d.left_bytes, "unpublished; the daemon publishes the rest"),
            Ok(_) => {}
            // The pod must not hang on a daemon that is away: the mount is taken out here, and the daemon lets go of it by itself.
            Err(e) => tracing::warn!(volume, error = %e, "the daemon did not end the mount"),
        }
        let sealed = self.sealed.clone();
        blocking(move || target::remove(&target, &sealed)).await
    }
}

fn text(path: &Path) -> Result<String, Status> {
    path.to_str().map(str::to_owned).ok_or_else(|| invalid("the target is not UTF-8"))
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(&self, r: Request<NodePublishVolumeRequest>) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let r = r.into_inner();
        let target = self.checked(&r)?;
        if !Claim::is_workspace(&r.volume_id) {
            return Err(Status::not_found(format!("there is no volume {}", r.volume_id)));
        }
        let lock = self.locks.take_to_publish(&r.volume_id)?;
        tokio::select! {
            done = tokio::time::timeout(PUBLISH, self.publish(r.volume_id.clone(), target, &r.volume_context)) => {
                let late = |_| Status::unavailable(format!("volume {} is not there after {} s; the daemon goes on", r.volume_id, PUBLISH.as_secs()));
                done.map_err(late)??;
                Ok(Response::new(NodePublishVolumeResponse {}))
            }
            () = lock.called_off() => Err(Status::aborted(format!("the publish of volume {} was called off by an unpublish", r.volume_id))),
        }
    }

    /// Needs nothing but the id and the path: the kubelet may have lost all else.
    async fn node_unpublish_volume(&self, r: Request<NodeUnpublishVolumeRequest>) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let r = r.into_inner();
        if r.volume_id.is_empty() {
            return Err(invalid("the request names no volume"));
        }
        if r.target_path.is_empty() {
            return Err(invalid("the request names no target"));
        }
        let target = target::check(&r.target_path, &self.options.kubelet_root)?;
        let _lock = self.locks.take_to_unpublish(&r.volume_id).await?;
        self.unpublish(&r.volume_id, target).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    /// From the daemon's memory.
    async fn node_get_volume_stats(&self, r: Request<NodeGetVolumeStatsRequest>) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let r = r.into_inner();
        if r.volume_id.is_empty() {
            return Err(invalid("the request names no volume"));
        }
        if r.volume_path.is_empty() {
            return Err(invalid("the request names no path"));
        }
        let absent = || Status::not_found(format!("volume {} is not published at {}", r.volume_id, r.volume_path));
        if !Claim::is_workspace(&r.volume_id) {
            return Err(absent());
        }
        let target = target::check(&r.volume_path, &self.options.kubelet_root).map_err(|_| absent())?;
        let asked = control::StatusRequest { target: text(&target)?, workspace: r.volume_id.clone() };
        let status = match self.daemon.status(asked, MEMORY).await {
            Ok(s) => s,
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(absent()),
            Err(e) => return Err(of_error(&e)),
        };
        let u = status.usage.ok_or_else(nothing)?;
        let usage = |unit: Unit, total: u64, used: u64| VolumeUsage {
            available: total.saturating_sub(used) as i64,
            total: total as i64,
            used: used as i64,
            unit: unit.into(),
        };
        let usage = vec![usage(Unit::Bytes, u.size, u.used_bytes), usage(Unit::Inodes, 0, u.used_inodes)];
        Ok(Response::new(NodeGetVolumeStatsResponse { usage, volume_condition: None }))
    }

    async fn node_get_capabilities(&self, _: Request<NodeGetCapabilitiesRequest>) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let offered = [rpc::Type::GetVolumeStats, rpc::Type::SingleNodeMultiWriter];
        let capability = |t: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: t.into() })) };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: offered.map(capability).to_vec() }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        // No ceiling and no topology: any node that reaches the store serves any volume.
        Ok(Response::new(NodeGetInfoResponse { node_id: self.options.node_id.clone(), max_volumes_per_node: 0, accessible_topology: None }))
    }
}
