//! Workspaces in the store: made for claims, described, deleted, forked. Mounting is not involved.

use std::sync::Arc;

use hiloop_control::v1;
use hiloop_engine::catalog::{BaseDoc, Head, LostWindow, SnapshotDoc};
use hiloop_engine::fork::{ForkOptions, fork};
use hiloop_engine::volume::{self, How, Outcome, VolumeRequest, Why};
use hiloop_types::{Error, Name, NameKind, Result};

use crate::daemon::Daemon;
use crate::daemon::mounts::on_thread;

pub(super) async fn create(daemon: Arc<Daemon>, store: String, r: v1::CreateRequest) -> Result<v1::CreateResponse> {
    let claim = r.claim.as_ref().ok_or_else(|| Error::invalid("the request names no claim"))?.checked()?;
    let base = (!r.base.is_empty()).then(|| Name::new(NameKind::Base, r.base)).transpose()?;
    let name = Name::new(NameKind::Workspace, r.workspace)?;
    let request = VolumeRequest { name, claim, base, required: r.required_bytes, limit: r.limit_bytes };
    let made = on_thread(move || async move { volume::create(&daemon.engine.context(&store).await?, &request).await }).await?;
    use v1::create_response::Outcome as O;
    let outcome = match made {
        Outcome::Refused(why, message) => O::Refused(refusal(reason(why), message)),
        Outcome::Ready(head, how) => {
            let how = match how {
                How::Created => v1::created::How::Created,
                How::Adopted => v1::created::How::Adopted,
                How::Found => v1::created::How::Found,
            };
            tracing::info!(workspace = %head.name, claim = ?head.claim, ?how, "volume");
            O::Created(v1::Created { workspace: Some(workspace(&head)), how: how.into() })
        }
    };
    Ok(v1::CreateResponse { outcome: Some(outcome) })
}

pub(super) async fn delete(daemon: Arc<Daemon>, store: String, r: v1::DeleteRequest) -> Result<v1::DeleteResponse> {
    let name = Name::new(NameKind::Workspace, r.workspace)?;
    let here = daemon.rows().0.into_iter().find(|(_, w, s)| !w.is_read_only() && w.name() == &name && *s == store);
    if let Some((mount, ..)) = here {
        let message = format!("workspace {name} is mounted on {}", mount.mountpoint().display());
        return Ok(v1::DeleteResponse { refused: Some(refusal(v1::refusal::Reason::Open, message)) });
    }
    let refused = on_thread(move || async move {
        let context = daemon.engine.context(&store).await?;
        let refused = volume::retire(&context, &name, false).await?;
        // An opening whose writer is gone for ever must not keep a volume from being deleted.
        if refused.is_none() || !daemon.engine.is_silent(&store, &name).await? {
            return Ok(refused);
        }
        tracing::warn!(workspace = %name, "deleting a workspace whose writer was not released and shows no sign of life");
        volume::retire(&context, &name, true).await
    })
    .await?;
    Ok(v1::DeleteResponse { refused: refused.map(|(why, message)| refusal(reason(why), message)) })
}

pub(super) async fn describe(daemon: Arc<Daemon>, store: String, r: v1::DescribeRequest) -> Result<v1::DescribeResponse> {
    use v1::describe_request::What as Asked;
    use v1::describe_response::What;
    let what = match r.what.ok_or_else(|| Error::invalid("the request names neither a workspace nor a base"))? {
        Asked::Workspace(name) => {
            let name = Name::new(NameKind::Workspace, name)?;
            let found = daemon.engine.context(&store).await?.catalog.require::<Head>(name.as_str()).await?;
            What::Workspace(workspace(&found.doc))
        }
        Asked::Base(name) => {
            let name = Name::new(NameKind::Base, name)?;
            let base = daemon.engine.context(&store).await?.catalog.require::<BaseDoc>(name.as_str()).await?.doc;
            let root = base.root.ok_or_else(|| Error::not_found(format!("base {name} is still being published")))?;
            What::Base(v1::Base {
                name: base.name.to_string(),
                bytes: base.bytes_logical,
                inodes: base.files,
                root: root.node.id.to_string(),
            })
        }
    };
    Ok(v1::DescribeResponse { what: Some(what) })
}

pub(super) async fn fork_into(daemon: Arc<Daemon>, store: String, r: v1::ForkRequest) -> Result<v1::ForkResponse> {
    let made =
        on_thread(
            move || async move { fork(&daemon.engine.context(&store).await?, &r.source, &r.children, &ForkOptions::default()).await },
        )
        .await?;
    let child = |c: hiloop_engine::fork::ForkResult| v1::Child {
        name: c.name,
        root: c.root.unwrap_or_default(),
        error: c.error.map(|e| e.to_string()).unwrap_or_default(),
    };
    Ok(v1::ForkResponse { children: made.into_iter().map(child).collect() })
}

/// A snapshot that is in the store.
pub(super) async fn replicated(daemon: &Daemon, store: &str, name: &Name) -> Result<Option<v1::SnapshotResponse>> {
    let found = daemon.engine.context(store).await?.catalog.get::<SnapshotDoc>(name.as_str()).await?;
    Ok(found.map(|f| v1::SnapshotResponse {
        name: f.doc.name.to_string(),
        workspace: f.doc.workspace.to_string(),
        replicated: true,
        root: f.doc.root.node.id.to_string(),
        epoch: f.doc.epoch.0,
        sequence: f.doc.sequence,
        // Whoever cut it was told.
        unsynced: String::new(),
    }))
}

pub(super) fn refusal(reason: v1::refusal::Reason, message: impl Into<String>) -> v1::Refusal {
    v1::Refusal { reason: reason.into(), message: message.into() }
}

fn reason(why: Why) -> v1::refusal::Reason {
    use v1::refusal::Reason as R;
    match why {
        Why::Deleted => R::Deleted,
        Why::OtherClaim => R::OtherClaim,
        Why::OtherSize => R::OtherSize,
        Why::OtherBase => R::OtherBase,
        Why::TooSmall => R::TooSmall,
        Why::UnknownBase => R::UnknownBase,
        Why::Open => R::Open,
    }
}

pub(super) fn lost_window(w: LostWindow) -> v1::LostWindow {
    use v1::lost_window::State as S;
    let (state, accepted, published) = match w {
        LostWindow::None => (S::None, 0, 0),
        LostWindow::Possible => (S::Possible, 0, 0),
        LostWindow::Known { accepted, published } => (S::Known, accepted, published),
    };
    v1::LostWindow { state: state.into(), accepted, published }
}

fn workspace(head: &Head) -> v1::Workspace {
    let claimed = head.claimed.clone().unwrap_or_default();
    v1::Workspace {
        name: head.name.to_string(),
        claim: head.claim.as_ref().map(Into::into),
        size: claimed.size.or(head.quota).unwrap_or(0),
        base: claimed.base.map(|b| b.to_string()).unwrap_or_default(),
        epoch: head.epoch.0,
        open: head.is_open(),
        node: head.node.as_ref().map(ToString::to_string).unwrap_or_default(),
        root: head.root.map(|r| r.node.id.to_string()).unwrap_or_default(),
        deleted: head.tombstone,
        lost_window: head.lost_window.map(lost_window),
    }
}
