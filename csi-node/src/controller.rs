//! The Controller service: volumes of claims. It does not depend on the node that it runs on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hiloop_control::Client;
use hiloop_control::v1::{self as control, create_response, describe_request, describe_response};
use hiloop_types::{Claim, ErrorKind};
use tonic::{Request, Response, Status};

use crate::codes::{invalid, nothing, of_error, of_refusal};
use crate::locks::Locks;
use crate::options::Options;
use crate::v1::controller_server::Controller;
use crate::v1::controller_service_capability::{Rpc, Type, rpc};
use crate::v1::validate_volume_capabilities_response::Confirmed;
use crate::v1::volume_capability::{AccessType, access_mode::Mode};
use crate::v1::*;

/// Deadline of a call to the daemon that goes to the store. The provisioner's own is shorter, and it asks again.
const STORE: Duration = Duration::from_secs(60);
/// Prefix of what the provisioner adds by itself.
const RESERVED: &str = "csi.storage.k8s.io/";
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
/// Parameters of a class.
const BASE: &str = "baseBuild";
pub(crate) const DURABILITY: &str = "durability";

pub(crate) struct ControllerService {
    pub options: Arc<Options>,
    pub daemon: Client,
    pub locks: Locks,
}

/// Checks what is asked of a volume; the error says what is not offered.
pub(crate) fn check_capability(c: &VolumeCapability) -> Result<(), Status> {
    match &c.access_type {
        None => return Err(invalid("the volume capability has no access type")),
        Some(AccessType::Block(_)) => return Err(invalid("block volumes are not offered: a workspace is a file system")),
        Some(AccessType::Mount(m)) if !m.mount_flags.is_empty() => {
            return Err(invalid(format!("mount options are not taken: {}", m.mount_flags.join(","))));
        }
        // The file system type is ours whatever is asked for; Kubernetes' classes name one by habit.
        Some(AccessType::Mount(_)) => {}
    }
    let mode = c.access_mode.as_ref().ok_or_else(|| invalid("the volume capability has no access mode"))?.mode();
    match mode {
        Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter => Ok(()),
        Mode::Unknown => Err(invalid("the volume capability has an unknown access mode")),
        other => Err(invalid(format!("access mode {} is not offered: a workspace has one writer on one node", other.as_str_name()))),
    }
}

/// What a class says about its volumes.
struct Class {
    claim: Claim,
    base: String,
    context: HashMap<String, String>,
}

impl ControllerService {
    fn class(&self, name: &str, parameters: &HashMap<String, String>) -> Result<Class, Status> {
        let known = |k: &String| [BASE, DURABILITY].contains(&k.as_str()) || k.starts_with(RESERVED);
        if let Some(k) = parameters.keys().find(|k| !known(k)) {
            return Err(invalid(format!("parameter {k:?} of the class is not known; there are {BASE} and {DURABILITY}")));
        }
        let sandbox = &self.options.sandbox_namespace;
        let by_name = self.options.allow_name_identity;
        let (namespace, claim) = match (parameters.get(CLAIM_NAMESPACE), parameters.get(CLAIM_NAME)) {
            (Some(ns), Some(name)) => (ns.as_str(), name.as_str()),
            (None, None) if by_name => (sandbox.as_str(), name),
            _ => {
                return Err(invalid(format!(
                    "the request does not say for which claim it is ({CLAIM_NAMESPACE}, {CLAIM_NAME}): run the provisioner with --extra-create-metadata"
                )));
            }
        };
        if namespace != sandbox {
            return Err(invalid(format!("claims of namespace {namespace:?} are not served, only those of {sandbox:?}")));
        }
        let claim = Claim::new(namespace, claim).map_err(|e| invalid(e.to_string()))?;
        let base = parameters.get(BASE).filter(|b| !b.is_empty()).cloned();
        if base.is_none() && !by_name {
            return Err(invalid(format!("the class names no base: give it the parameter {BASE}")));
        }
        let mut context = HashMap::from([("claim".to_owned(), claim.to_string())]);
        match parameters.get(DURABILITY).map(String::as_str) {
            None => {}
            Some(d @ ("local" | "replicated")) => drop(context.insert(DURABILITY.into(), d.into())),
            Some(d) => return Err(invalid(format!("{DURABILITY} is {d:?}; there are local and replicated"))),
        }
        Ok(Class { claim, base: base.unwrap_or_default(), context })
    }

    async fn describe(&self, volume: &str) -> Result<control::Workspace, Status> {
        let unknown = || Status::not_found(format!("there is no volume {volume}"));
        if !Claim::is_workspace(volume) {
            return Err(unknown());
        }
        let what = Some(describe_request::What::Workspace(volume.to_owned()));
        match self.daemon.describe(control::DescribeRequest { what }, STORE).await {
            Ok(control::DescribeResponse { what: Some(describe_response::What::Workspace(w)) }) if !w.deleted && w.claim.is_some() => Ok(w),
            Ok(control::DescribeResponse { what: Some(_) }) => Err(unknown()),
            Ok(_) => Err(nothing()),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(unknown()),
            Err(e) => Err(of_error(&e)),
        }
    }
}

/// Bytes that are required, and the limit; 0: none.
fn range(r: Option<&CapacityRange>) -> Result<(u64, u64), Status> {
    let r = r.cloned().unwrap_or_default();
    let bytes = |v: i64, what: &str| u64::try_from(v).map_err(|_| invalid(format!("{what} of {v} bytes is negative")));
    let (required, limit) = (bytes(r.required_bytes, "a required size")?, bytes(r.limit_bytes, "a limit")?);
    if limit > 0 && limit < required {
        return Err(invalid(format!("the limit of {limit} bytes is below the {required} that are required")));
    }
    Ok((required, limit))
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(&self, r: Request<CreateVolumeRequest>) -> Result<Response<CreateVolumeResponse>, Status> {
        let r = r.into_inner();
        if r.name.is_empty() {
            return Err(invalid("the volume has no name"));
        }
        if r.volume_capabilities.is_empty() {
            return Err(invalid("no volume capability is given"));
        }
        r.volume_capabilities.iter().try_for_each(check_capability)?;
        if r.volume_content_source.is_some() {
            return Err(invalid(
                "volumes are not made from snapshots or volumes here: prepare the claim's workspace by a fork, which is adopted",
            ));
        }
        if !r.mutable_parameters.is_empty() {
            return Err(invalid("volumes have no mutable parameters"));
        }
        let (required_bytes, limit_bytes) = range(r.capacity_range.as_ref())?;
        let class = self.class(&r.name, &r.parameters)?;
        let volume = class.claim.workspace().map_err(|e| of_error(&e))?.to_string();
        let _one = self.locks.take(&volume, "CreateVolume")?;
        let request = control::CreateRequest {
            request_key: String::new(),
            workspace: volume.clone(),
            claim: Some((&class.claim).into()),
            base: class.base,
            required_bytes,
            limit_bytes,
        };
        let made = match self.daemon.create(request, STORE).await.map_err(|e| of_error(&e))?.outcome {
            Some(create_response::Outcome::Created(c)) => c.workspace.ok_or_else(nothing)?,
            Some(create_response::Outcome::Refused(r)) => return Err(of_refusal(&r)),
            None => return Err(nothing()),
        };
        tracing::info!(volume, claim = %class.claim, "volume is there");
        let volume = Volume {
            capacity_bytes: made.size as i64,
            volume_id: volume,
            volume_context: class.context,
            content_source: None,
            accessible_topology: Vec::new(),
        };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(&self, r: Request<DeleteVolumeRequest>) -> Result<Response<DeleteVolumeResponse>, Status> {
        let volume = r.into_inner().volume_id;
        if volume.is_empty() {
            return Err(invalid("the request names no volume"));
        }
        // What was never ours is gone.
        if !Claim::is_workspace(&volume) {
            return Ok(Response::new(DeleteVolumeResponse {}));
        }
        let _one = self.locks.take(&volume, "DeleteVolume")?;
        // By its key a repeated call joins the one that still watches a silent writer.
        let request = control::DeleteRequest { request_key: volume.clone(), workspace: volume.clone() };
        match self.daemon.delete(request, STORE).await.map_err(|e| of_error(&e))?.refused {
            Some(r) => Err(of_refusal(&r)),
            None => {
                tracing::info!(volume, "volume is deleted");
                Ok(Response::new(DeleteVolumeResponse {}))
            }
        }
    }

    async fn validate_volume_capabilities(
        &self,
        r: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let r = r.into_inner();
        if r.volume_id.is_empty() {
            return Err(invalid("the request names no volume"));
        }
        if r.volume_capabilities.is_empty() {
            return Err(invalid("no volume capability is given"));
        }
        self.describe(&r.volume_id).await?;
        let refused = r.volume_capabilities.iter().find_map(|c| check_capability(c).err());
        Ok(Response::new(match refused {
            Some(why) => ValidateVolumeCapabilitiesResponse { confirmed: None, message: why.message().to_owned() },
            None => {
                let confirmed = Confirmed {
                    volume_context: r.volume_context,
                    volume_capabilities: r.volume_capabilities,
                    parameters: r.parameters,
                    mutable_parameters: r.mutable_parameters,
                };
                ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() }
            }
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let offered = [rpc::Type::CreateDeleteVolume, rpc::Type::SingleNodeMultiWriter];
        let capability = |t: rpc::Type| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: t.into() })) };
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: offered.map(capability).to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(allow_name_identity: bool) -> ControllerService {
        use clap::Parser;
        let mut options = Options::try_parse_from(["csi-node", "--node-id", "n", "--sandbox-namespace", "boxes"]).unwrap();
        options.allow_name_identity = allow_name_identity;
        let daemon = Client::new(std::path::Path::new("/nowhere/control.sock")).unwrap();
        ControllerService { options: Arc::new(options), daemon, locks: Locks::default() }
    }
    fn parameters(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }
    fn claim(ns: &str) -> Vec<(&str, &str)> {
        vec![(CLAIM_NAMESPACE, ns), (CLAIM_NAME, "t-box"), ("csi.storage.k8s.io/pv/name", "pvc-1"), (BASE, "b1")]
    }

    #[tokio::test]
    async fn the_claim_is_the_identity_and_other_namespaces_are_refused() {
        let strict = service(false);
        let class = strict.class("pvc-1", &parameters(&claim("boxes"))).unwrap();
        assert_eq!((class.claim.to_string().as_str(), class.base.as_str()), ("boxes/t-box", "b1"));
        for (pairs, word) in [
            (claim("default"), "default"),
            (vec![(BASE, "b1")], "--extra-create-metadata"),
            (vec![(CLAIM_NAME, "x"), (BASE, "b1")], "--extra-create-metadata"),
            (claim("boxes")[..3].to_vec(), "names no base"),
            ([claim("boxes"), vec![("basebuild", "x")]].concat(), "basebuild"),
            ([claim("boxes"), vec![(DURABILITY, "maybe")]].concat(), "maybe"),
        ] {
            let e = strict.class("pvc-1", &parameters(&pairs)).err().unwrap();
            assert!(e.code() == tonic::Code::InvalidArgument && e.message().contains(word), "{e}");
        }
        let lax = service(true);
        assert_eq!(lax.class("any name", &HashMap::new()).unwrap().claim.to_string(), "boxes/any name");
        assert!(lax.class("x", &parameters(&claim("default"))).is_err(), "the switch opens no namespace");
        let replicated = lax.class("x", &parameters(&[(DURABILITY, "replicated")])).unwrap();
        assert_eq!(replicated.context[DURABILITY], "replicated");
    }

    #[tokio::test]
    async fn a_daemon_that_is_down_is_unavailable() {
        let s = service(false);
        let mount = VolumeCapability {
            access_type: Some(AccessType::Mount(Default::default())),
            access_mode: Some(volume_capability::AccessMode { mode: Mode::SingleNodeWriter.into() }),
        };
        let request = CreateVolumeRequest {
            name: "pvc-1".into(),
            parameters: parameters(&claim("boxes")),
            volume_capabilities: vec![mount],
            ..CreateVolumeRequest::default()
        };
        let e = s.create_volume(Request::new(request)).await.unwrap_err();
        assert_eq!(e.code(), tonic::Code::Unavailable, "{e}");
        let gone = s.delete_volume(Request::new(DeleteVolumeRequest { volume_id: "not-ours".into(), ..Default::default() })).await;
        assert!(gone.is_ok(), "what was never ours is gone, without a daemon");
    }

    #[test]
    fn what_is_not_offered_is_refused_by_name() {
        let with = |access_type, mode: Option<Mode>| VolumeCapability {
            access_type,
            access_mode: mode.map(|m| volume_capability::AccessMode { mode: m.into() }),
        };
        let mount = |flags: &[&str]| {
            let mount_flags = flags.iter().map(|f| (*f).to_owned()).collect();
            Some(AccessType::Mount(volume_capability::MountVolume {
                fs_type: "ext4".into(),
                mount_flags,
                volume_mount_group: String::new(),
            }))
        };
        assert!(check_capability(&with(mount(&[]), Some(Mode::SingleNodeSingleWriter))).is_ok());
        for (capability, word) in [
            (with(None, Some(Mode::SingleNodeWriter)), "access type"),
            (with(Some(AccessType::Block(Default::default())), Some(Mode::SingleNodeWriter)), "block"),
            (with(mount(&["ro"]), Some(Mode::SingleNodeWriter)), "mount options"),
            (with(mount(&[]), None), "access mode"),
            (with(mount(&[]), Some(Mode::MultiNodeMultiWriter)), "MULTI_NODE_MULTI_WRITER"),
            (with(mount(&[]), Some(Mode::SingleNodeReaderOnly)), "SINGLE_NODE_READER_ONLY"),
        ] {
            let e = check_capability(&capability).unwrap_err();
            assert!(e.message().contains(word), "{e}");
        }
        assert!(range(Some(&CapacityRange { required_bytes: -1, limit_bytes: 0 })).is_err());
        assert!(range(Some(&CapacityRange { required_bytes: 2, limit_bytes: 1 })).is_err());
        assert_eq!(range(None).unwrap(), (0, 0));
    }
}
