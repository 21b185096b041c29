//! The Identity service.

use std::time::Duration;

use hiloop_control::Client;
use hiloop_control::v1::InfoRequest;
use tonic::{Request, Response, Status};

use crate::v1::identity_server::Identity;
use crate::v1::plugin_capability::{Service, Type, service};
use crate::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse, PluginCapability,
    ProbeRequest, ProbeResponse,
};

/// A daemon that does not say who it is within this time is not ready.
const READY: Duration = Duration::from_secs(2);

pub(crate) struct IdentityService {
    pub name: String,
    pub daemon: Client,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(&self, _: Request<GetPluginInfoRequest>) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let controller = Type::Service(Service { r#type: service::Type::ControllerService.into() });
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: vec![PluginCapability { r#type: Some(controller) }] }))
    }

    /// Whether the daemon answers. The store has no part in it: a driver that is restarted because a bucket is away helps nobody.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let ready = self.daemon.info(InfoRequest {}, READY).await.is_ok();
        Ok(Response::new(ProbeResponse { ready: Some(ready) }))
    }
}
