//! The calls of the control socket.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hiloop_control::v1::{self, refusal::Reason};
use hiloop_control::{from_error, v1::control_server::Control};
use hiloop_engine::workspace::Durability;
use hiloop_types::{Error, ErrorKind, Name, NameKind, Result};
use tokio::sync::broadcast;
use tonic::{Request, Response, Status};

use super::operations::{After, Operations};
use super::volumes::{self, refusal};
use super::{ControlOptions, Daemon};
use crate::daemon::events::{Happened, What};
use crate::daemon::mounts::{blocking, is_there};
use crate::daemon::protocol::{MountCall, Opening, Selector, Wanted};
use crate::daemon::server::Talk;
use crate::fuse;

/// Time for the store to say whether a workspace is gone, once the deadline of a drain is over.
const STORE_ANSWERS: Duration = Duration::from_secs(3);

/// The service.
pub(super) struct Service {
    daemon: Arc<Daemon>,
    store: String,
    operations: Operations,
}

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(result: Result<T>) -> Answer<T> {
    result.map(Response::new).map_err(|e| from_error(&e))
}

/// A path as requests carry it.
fn absolute(text: &str) -> Result<PathBuf> {
    let path = PathBuf::from(text);
    let plain = path.is_absolute() && path.components().all(|c| !matches!(c, std::path::Component::ParentDir)) && !text.contains('\0');
    if plain { Ok(path) } else { Err(Error::invalid(format!("the target {text:?} is no absolute path without `..`"))) }
}

fn optional(text: &str) -> Result<Option<Name>> {
    (!text.is_empty()).then(|| Name::new(NameKind::Workspace, text)).transpose()
}

impl Service {
    pub(super) fn new(daemon: Arc<Daemon>, options: ControlOptions) -> Self {
        Self { daemon, store: options.store, operations: Operations::default() }
    }

    fn selector(&self, target: Option<PathBuf>, workspace: Option<Name>) -> Selector {
        Selector { mountpoint: target, workspace, store: Some(self.store.clone()) }
    }
    fn of(&self, workspace: &str) -> Result<Selector> {
        Ok(self.selector(None, Some(Name::new(NameKind::Workspace, workspace)?)))
    }

    async fn attach_it(&self, r: v1::AttachRequest) -> Result<v1::AttachResponse> {
        use v1::attach_response::Outcome as O;
        let (name, target) = (Name::new(NameKind::Workspace, r.workspace.as_str())?, absolute(&r.target)?);
        let outcome = |o| Ok(v1::AttachResponse { outcome: Some(o) });
        let no = |reason, message: String| Ok(v1::AttachResponse { outcome: Some(O::Refused(refusal(reason, message))) });
        if self.daemon.is_drained() {
            return no(Reason::Draining, "the daemon is being drained and takes no new mounts".into());
        }
        for (mount, workspace, store) in self.daemon.rows().0 {
            let same = workspace.name() == &name && store == self.store && !workspace.is_read_only();
            match (mount.mountpoint() == target, same) {
                (true, true) if is_there(&mount)? => {
                    return outcome(O::Attached(v1::Attached {
                        mount: Some(row(&mount, workspace.name(), false)),
                        epoch: workspace.epoch().0,
                        lost_window: None,
                        already: true,
                    }));
                }
                // Taken away from outside, and about to be noticed.
                (true, true) => {
                    return Err(
                        Error::unavailable(format!("the mount of {name} just ended and is being cleared away")).at(target.display())
                    );
                }
                (true, false) => return no(Reason::TargetTaken, format!("{} is mounted on {}", workspace.name(), target.display())),
                (false, true) => {
                    return no(
                        Reason::MountedElsewhere,
                        format!("workspace {name} is mounted on {} already", mount.mountpoint().display()),
                    );
                }
                (false, false) => {}
            }
        }
        let at = target.clone();
        let checked = blocking(move || fuse::check_mountpoint(&at)).await?;
        if checked != target {
            return Err(Error::invalid(format!("the target leads to {} through a symbolic link", checked.display())).at(target.display()));
        }
        let call = MountCall {
            store: self.store.clone(),
            what: Wanted::Workspace(Opening {
                name,
                origin: None,
                existing: true,
                durability: match r.durability() {
                    v1::Durability::Local => Durability::Local,
                    v1::Durability::Replicated => Durability::Replicated,
                },
                backlog_limit: None,
                quota: None,
                take_over: r.take_over,
                domain: None,
            }),
            mountpoint: target.clone(),
            nosuid: true,
        };
        let daemon = self.daemon.clone();
        let work = async move {
            let mounted = match daemon.mount(call, &mut Talk::quiet()).await {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Ok(v1::AttachResponse { outcome: Some(O::Refused(refusal(Reason::UnknownWorkspace, e.to_string()))) });
                }
                other => other?,
            };
            let of = Selector { mountpoint: Some(mounted.mountpoint.clone()), ..Selector::default() };
            let (mount, workspace) = daemon.workspace_of(&of)?;
            let attached = v1::Attached {
                mount: Some(row(&mount, workspace.name(), false)),
                epoch: mounted.epoch,
                lost_window: Some(volumes::lost_window(mounted.lost_window)),
                already: false,
            };
            Ok(v1::AttachResponse { outcome: Some(O::Attached(attached)) })
        };
        // The same attach may be asked for again while it runs: a caller's patience is shorter than a watch over a silent writer.
        let key = format!("{} {}", r.workspace, r.target);
        let attached = self.operations.once(&self.daemon, ("attach", &key), &r, After::Forget, work);
        tokio::select! {
            done = attached => done,
            () = self.daemon.called_off(&target) => {
                Err(Error::closed("the mount was called off by an unmount").at(target.display()))
            }
        }
    }

    async fn detach_it(&self, r: v1::DetachRequest) -> Result<v1::DetachResponse> {
        let target = absolute(&r.target)?;
        let workspace = optional(&r.workspace)?;
        let called_off = self.daemon.call_off(&target, workspace.as_ref()).await;
        let of = self.selector(Some(target.clone()), workspace);
        let gone = |was_attached| v1::DetachResponse { was_attached, left_bytes: 0, released: false };
        if called_off {
            return Ok(gone(true));
        }
        let (daemon, flush) = (self.daemon.clone(), Duration::from_millis(r.flush_ms.into()));
        let work = async move {
            match daemon.unmount(of, flush, &mut Talk::quiet()).await {
                Ok(u) => Ok(v1::DetachResponse { was_attached: true, left_bytes: u.left_bytes, released: u.released }),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(gone(false)),
                Err(e) if e.kind() == ErrorKind::Conflict => {
                    daemon.left_from(&target).await;
                    Ok(gone(true))
                }
                Err(e) => Err(e),
            }
        };
        self.operations.once(&self.daemon, ("detach", &r.request_key), &r, After::Forget, work).await
    }

    fn list_all(&self) -> v1::ListResponse {
        let (live, draining) = self.daemon.rows();
        let ours = live.iter().filter(|(_, _, store)| *store == self.store);
        let mounts = ours.map(|(mount, workspace, _)| row(mount, workspace.name(), workspace.is_read_only())).collect();
        let draining = draining.into_iter().filter(|(store, _)| *store == self.store).map(|(_, name)| self.draining(&name)).collect();
        v1::ListResponse { mounts, draining }
    }

    fn draining(&self, name: &Name) -> v1::Draining {
        let open = self.daemon.engine.workspaces().into_iter().find(|w| w.name() == name);
        v1::Draining { workspace: name.to_string(), left_bytes: open.map_or(0, |w| w.status().backlog_bytes) }
    }

    fn status_of(&self, r: v1::StatusRequest) -> Result<v1::StatusResponse> {
        if r.target.is_empty() && r.workspace.is_empty() {
            return Ok(v1::StatusResponse { json: self.daemon.status()?.to_string(), usage: None });
        }
        let target = (!r.target.is_empty()).then(|| absolute(&r.target)).transpose()?;
        let of = self.selector(target, optional(&r.workspace)?);
        let status = self.daemon.workspace_of(&of)?.1.status();
        let usage = v1::Usage {
            used_bytes: status.bytes,
            size: status.quota.unwrap_or(0),
            used_inodes: status.inodes,
            backlog_bytes: status.backlog_bytes,
        };
        Ok(v1::StatusResponse { json: self.daemon.workspace_status(&of)?.to_string(), usage: Some(usage) })
    }

    async fn snapshot_it(&self, r: v1::SnapshotRequest) -> Result<v1::SnapshotResponse> {
        let (of, name) =
            (self.of(&r.workspace)?, (!r.name.is_empty()).then(|| Name::new(NameKind::Snapshot, r.name.as_str())).transpose()?);
        let (daemon, wait) = (self.daemon.clone(), r.wait);
        let work = async move {
            let cut = daemon.snapshot(of, name, wait, &mut Talk::quiet()).await?;
            Ok(v1::SnapshotResponse {
                name: cut.snapshot.to_string(),
                workspace: cut.lineage.workspace.to_string(),
                replicated: cut.root.is_some(),
                root: cut.root.unwrap_or_default(),
                epoch: cut.lineage.epoch,
                sequence: cut.lineage.sequence,
                unsynced: cut.unsynced.unwrap_or_default(),
            })
        };
        self.operations.once(&self.daemon, ("snapshot", &r.request_key), &r, After::Remember, work).await
    }

    async fn snapshot_state(&self, r: v1::SnapshotStatusRequest) -> Result<v1::SnapshotResponse> {
        let name = Name::new(NameKind::Snapshot, r.name)?;
        let replicated = || volumes::replicated(&self.daemon, &self.store, &name);
        if let Some(there) = replicated().await? {
            return Ok(there);
        }
        let cuts = self.daemon.engine.waiting_cuts();
        if let Some(cut) = cuts.into_iter().find(|c| c.snapshot == name && c.store == self.store) {
            return Ok(v1::SnapshotResponse {
                name: name.to_string(),
                workspace: cut.workspace.to_string(),
                epoch: cut.epoch.0,
                sequence: cut.sequence.0,
                ..v1::SnapshotResponse::default()
            });
        }
        // It may have got there between the two looks.
        replicated().await?.ok_or_else(|| {
            Error::not_found(format!("there is no snapshot {name}"))
                .hint("it is not in the store, and none of that name was cut on this node")
        })
    }

    async fn drain_all(&self, within: Duration) -> v1::DrainResponse {
        self.daemon.drained.store(true, Ordering::SeqCst);
        let engine = &self.daemon.engine;
        let published = async {
            futures::future::join(self.flush_all(), self.daemon.resumed()).await;
            // What was taken up meanwhile.
            self.flush_all().await;
        };
        // What is not through is listed.
        let _ = tokio::time::timeout(within, published).await;
        let open = engine.workspaces().into_iter().map(|w| w.status()).filter(|s| s.published < s.accepted);
        let open = open.map(|s| v1::Draining { workspace: s.name.to_string(), left_bytes: s.backlog_bytes.max(1) });
        let tails = engine.unattached().into_iter().map(|(store, name)| async move {
            // Of a workspace that was deleted nothing has to be kept; a store that does not answer says no such thing.
            let gone = tokio::time::timeout(STORE_ANSWERS, self.daemon.is_gone(&store, &name)).await.unwrap_or(false);
            // Nobody knows how much it is before it is opened.
            (!gone).then(|| v1::Draining { workspace: name.to_string(), left_bytes: 1 })
        });
        let tails = futures::future::join_all(tails).await;
        v1::DrainResponse { left: open.chain(tails.into_iter().flatten()).collect() }
    }

    /// Oldest first: what waits longest is sent for first. What fails shows in the status.
    async fn flush_all(&self) {
        let mut all = self.daemon.engine.workspaces();
        all.sort_by(|a, b| b.status().lag_seconds.total_cmp(&a.status().lag_seconds));
        futures::future::join_all(all.iter().map(|w| w.flush())).await;
    }

    async fn evict_all(&self) -> Result<v1::EvictResponse> {
        let cache = self.daemon.engine.cache().clone();
        blocking(move || {
            let bytes_before = cache.stats().bytes;
            cache.evict_all()?;
            Ok(v1::EvictResponse { bytes_before, bytes_after: cache.stats().bytes })
        })
        .await
    }
}

fn row(mount: &fuse::Mount, workspace: &Name, read_only: bool) -> v1::Mount {
    v1::Mount {
        workspace: workspace.to_string(),
        target: mount.mountpoint().display().to_string(),
        device_major: 0,
        device_minor: mount.connection().unwrap_or(0),
        alive: mount.is_alive(),
        read_only,
    }
}

fn event(h: &Happened) -> v1::Event {
    use v1::event::Kind;
    let kind = match h.what {
        What::Attached => Kind::Attached,
        What::Detached => Kind::Detached,
        What::Drained => Kind::Drained,
        What::Ended => Kind::Ended,
    };
    v1::Event { kind: kind.into(), workspace: h.workspace.to_string(), target: shown(&h.at), message: h.note.clone() }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[tonic::async_trait]
impl Control for Service {
    async fn info(&self, _: Request<v1::InfoRequest>) -> Answer<v1::InfoResponse> {
        answer(Ok(v1::InfoResponse {
            program: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            node: self.daemon.options.node.to_string(),
            store: self.store.clone(),
            cache_dir: shown(&self.daemon.options.cache_dir),
            draining: self.daemon.is_drained(),
        }))
    }

    async fn create(&self, r: Request<v1::CreateRequest>) -> Answer<v1::CreateResponse> {
        let r = r.into_inner();
        let work = volumes::create(self.daemon.clone(), self.store.clone(), r.clone());
        answer(self.operations.once(&self.daemon, ("create", &r.request_key), &r, After::Forget, work).await)
    }
    async fn delete(&self, r: Request<v1::DeleteRequest>) -> Answer<v1::DeleteResponse> {
        let r = r.into_inner();
        let work = volumes::delete(self.daemon.clone(), self.store.clone(), r.clone());
        answer(self.operations.once(&self.daemon, ("delete", &r.request_key), &r, After::Forget, work).await)
    }
    async fn describe(&self, r: Request<v1::DescribeRequest>) -> Answer<v1::DescribeResponse> {
        answer(volumes::describe(self.daemon.clone(), self.store.clone(), r.into_inner()).await)
    }
    async fn attach(&self, r: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        answer(Box::pin(self.attach_it(r.into_inner())).await)
    }
    async fn detach(&self, r: Request<v1::DetachRequest>) -> Answer<v1::DetachResponse> {
        answer(Box::pin(self.detach_it(r.into_inner())).await)
    }
    async fn list(&self, _: Request<v1::ListRequest>) -> Answer<v1::ListResponse> {
        answer(Ok(self.list_all()))
    }
    async fn status(&self, r: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        answer(self.status_of(r.into_inner()))
    }
    async fn snapshot(&self, r: Request<v1::SnapshotRequest>) -> Answer<v1::SnapshotResponse> {
        answer(Box::pin(self.snapshot_it(r.into_inner())).await)
    }
    async fn snapshot_status(&self, r: Request<v1::SnapshotStatusRequest>) -> Answer<v1::SnapshotResponse> {
        answer(self.snapshot_state(r.into_inner()).await)
    }
    async fn fork(&self, r: Request<v1::ForkRequest>) -> Answer<v1::ForkResponse> {
        let r = r.into_inner();
        let work = volumes::fork_into(self.daemon.clone(), self.store.clone(), r.clone());
        answer(self.operations.once(&self.daemon, ("fork", &r.request_key), &r, After::Remember, work).await)
    }
    async fn flush(&self, r: Request<v1::FlushRequest>) -> Answer<v1::FlushResponse> {
        let r = r.into_inner();
        let of = match self.of(&r.workspace) {
            Ok(of) => of,
            Err(e) => return answer(Err(e)),
        };
        let daemon = self.daemon.clone();
        let work = async move {
            let f = daemon.flush(of, &mut Talk::quiet()).await?;
            Ok(v1::FlushResponse { published: f.published, root: f.root.unwrap_or_default(), unsynced: f.unsynced.unwrap_or_default() })
        };
        answer(self.operations.once(&self.daemon, ("flush", &r.request_key), &r, After::Forget, work).await)
    }
    async fn evict(&self, _: Request<v1::EvictRequest>) -> Answer<v1::EvictResponse> {
        answer(self.evict_all().await)
    }
    async fn drain(&self, r: Request<v1::DrainRequest>) -> Answer<v1::DrainResponse> {
        answer(Ok(self.drain_all(Duration::from_millis(r.into_inner().deadline_ms.into())).await))
    }

    type WatchStream = Pin<Box<dyn futures::Stream<Item = Result<v1::Event, Status>> + Send>>;
    async fn watch(&self, _: Request<v1::WatchRequest>) -> Answer<Self::WatchStream> {
        let events = self.daemon.events.subscribe();
        let next = |mut events: broadcast::Receiver<Happened>| async move {
            let e = match events.recv().await {
                Ok(h) => event(&h),
                Err(broadcast::error::RecvError::Lagged(n)) => {
                    let kind = v1::event::Kind::Missed.into();
                    v1::Event { kind, message: format!("{n} events were missed"), ..v1::Event::default() }
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            };
            Some((Ok(e), events))
        };
        answer(Ok(Box::pin(futures::stream::unfold(events, next))))
    }
}
