//! `ctl`: the control socket's calls from a terminal.

use std::path::Path;
use std::time::Duration;

use hiloop_control::{Client, v1};
use hiloop_types::{Claim, Error, ErrorKind, Result};
use serde_json::{Value, json};

use super::args::{Ctl, CtlCall, DurabilityArg};
use super::doctor;
use super::failure::{Done, Failure, usage};
use super::live::note_unsynced;
use super::output::Output;

pub(super) async fn run(args: Ctl, out: Output) -> Done {
    let client = usage(Client::new(&args.socket))?;
    let within = args.timeout;
    if let CtlCall::Drain { deadline } = args.call {
        return drain(&client, deadline, out).await;
    }
    if let CtlCall::Doctor = args.call {
        return doctor::run(&client, within, out).await;
    }
    if let CtlCall::Watch = args.call {
        let mut failed = Ok(());
        let each = |e: v1::Event| {
            failed = out.result(&event(&e), text);
            failed.is_ok()
        };
        client.watch(each).await?;
        return Ok(failed?);
    }
    let answer = ask(&client, args.call, within, out).await?;
    Ok(out.result(&answer, text)?)
}

async fn ask(client: &Client, call: CtlCall, within: Duration, out: Output) -> Done<Value> {
    let request_key = String::new();
    Ok(match call {
        CtlCall::Info => {
            let i = client.info(v1::InfoRequest {}, within).await?;
            json!({ "pid": i.pid, "program": i.program, "node": i.node, "store": i.store, "cache_dir": i.cache_dir, "draining": i.draining })
        }
        CtlCall::Create { claim, base, size } => {
            let claim = usage(Claim::parse(&claim))?;
            let base = base.map(|b| b.to_string()).unwrap_or_default();
            let workspace = claim.workspace()?.to_string();
            let request =
                v1::CreateRequest { request_key, workspace, claim: Some((&claim).into()), base, required_bytes: size, limit_bytes: 0 };
            match client.create(request, within).await?.outcome {
                Some(v1::create_response::Outcome::Created(c)) => {
                    let how = c.how().as_str_name().to_ascii_lowercase();
                    let mut v = workspace_json(&c.workspace.unwrap_or_default());
                    v["how"] = how.into();
                    v
                }
                Some(v1::create_response::Outcome::Refused(r)) => return refused(r),
                None => return Err(nothing().into()),
            }
        }
        CtlCall::Delete { workspace } => {
            let request = v1::DeleteRequest { request_key: workspace.to_string(), workspace: workspace.to_string() };
            match client.delete(request, within).await?.refused {
                Some(r) => return refused(r),
                None => json!({ "workspace": workspace, "deleted": true }),
            }
        }
        CtlCall::Describe { what } => describe(client, &what, within).await?,
        CtlCall::Attach { workspace, target, durability, take_over } => {
            let durability = match durability {
                DurabilityArg::Local => v1::Durability::Local,
                DurabilityArg::Replicated => v1::Durability::Replicated,
            };
            let (workspace, target) = (workspace.to_string(), path(&target)?);
            let request = v1::AttachRequest { request_key, workspace, target, durability: durability.into(), take_over };
            match client.attach(request, within).await?.outcome {
                Some(v1::attach_response::Outcome::Attached(a)) => {
                    let mut v = mount_json(&a.mount.unwrap_or_default());
                    v["epoch"] = a.epoch.into();
                    v["already"] = a.already.into();
                    v["lost_window"] = lost_window(a.lost_window.as_ref());
                    v
                }
                Some(v1::attach_response::Outcome::Refused(r)) => return refused(r),
                None => return Err(nothing().into()),
            }
        }
        CtlCall::Detach { target, flush } => {
            let flush_ms = u32::try_from(flush.as_millis()).unwrap_or(u32::MAX);
            let request = v1::DetachRequest { request_key, target: path(&target)?, workspace: String::new(), flush_ms };
            let d = client.detach(request, within.max(flush)).await?;
            json!({ "target": target, "was_attached": d.was_attached, "left_bytes": d.left_bytes, "released": d.released })
        }
        CtlCall::List => {
            let l = client.list(v1::ListRequest {}, within).await?;
            let mounts: Vec<Value> = l.mounts.iter().map(mount_json).collect();
            json!({ "mounts": mounts, "draining": left_json(&l.draining) })
        }
        CtlCall::Status { workspace } => {
            let workspace = workspace.map(|w| w.to_string()).unwrap_or_default();
            let s = client.status(v1::StatusRequest { target: String::new(), workspace }, within).await?;
            serde_json::from_str(&s.json).map_err(|e| Error::internal(format!("the daemon's status cannot be read: {e}")))?
        }
        CtlCall::Snapshot { workspace, name, wait } => {
            let name = name.map(|n| n.to_string()).unwrap_or_default();
            let request = v1::SnapshotRequest { request_key, workspace: workspace.to_string(), name, wait };
            let s = client.snapshot(request, within).await?;
            note_unsynced(Some(s.unsynced.as_str()).filter(|u| !u.is_empty()), out);
            snapshot_json(&s)
        }
        CtlCall::SnapshotStatus { name } => {
            snapshot_json(&client.snapshot_status(v1::SnapshotStatusRequest { name: name.to_string() }, within).await?)
        }
        CtlCall::Fork { source, children } => {
            let children = children.iter().map(ToString::to_string).collect();
            let made = client.fork(v1::ForkRequest { request_key, source, children }, within).await?;
            let rows: Vec<Value> = made.children.iter().map(|c| json!({ "name": c.name, "root": c.root, "error": c.error })).collect();
            if made.children.iter().any(|c| !c.error.is_empty()) {
                out.result(&json!({ "children": rows }), text)?;
                return Err(Failure::Shown);
            }
            json!({ "children": rows })
        }
        CtlCall::Flush { workspace } => {
            let f = client.flush(v1::FlushRequest { request_key, workspace: workspace.to_string() }, within).await?;
            note_unsynced(Some(f.unsynced.as_str()).filter(|u| !u.is_empty()), out);
            json!({ "workspace": workspace, "published": f.published, "root": f.root })
        }
        CtlCall::Evict => {
            let e = client.evict(v1::EvictRequest {}, within).await?;
            json!({ "bytes_before": e.bytes_before, "bytes_after": e.bytes_after })
        }
        CtlCall::Drain { .. } | CtlCall::Watch | CtlCall::Doctor => return Err(Error::internal("is answered elsewhere").into()),
    })
}

async fn drain(client: &Client, deadline: Duration, out: Output) -> Done {
    let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
    // The daemon answers when its own time is up.
    let left = client.drain(v1::DrainRequest { deadline_ms }, deadline + Duration::from_secs(5)).await?.left;
    out.result(&json!({ "left": left_json(&left) }), text)?;
    if left.is_empty() { Ok(()) } else { Err(Failure::Shown) }
}

async fn describe(client: &Client, what: &str, within: Duration) -> Done<Value> {
    use v1::describe_request::What as Asked;
    let asked = match what.strip_prefix("base:") {
        Some(base) => Asked::Base(base.to_owned()),
        None if what.contains('/') => Asked::Workspace(usage(Claim::parse(what))?.workspace()?.to_string()),
        None => Asked::Workspace(what.to_owned()),
    };
    Ok(match client.describe(v1::DescribeRequest { what: Some(asked) }, within).await?.what {
        Some(v1::describe_response::What::Workspace(w)) => workspace_json(&w),
        Some(v1::describe_response::What::Base(b)) => json!({ "base": b.name, "bytes": b.bytes, "inodes": b.inodes, "root": b.root }),
        None => return Err(nothing().into()),
    })
}

/// Absolute, as the daemon wants it: it has another current directory.
fn path(p: &Path) -> Result<String> {
    let absolute = std::path::absolute(p).map_err(|e| Error::io(p.display(), &e))?;
    let utf8 = || Error::invalid("the path is not UTF-8").at(p.display());
    absolute.into_os_string().into_string().map_err(|_| utf8())
}

fn nothing() -> Error {
    Error::internal("the daemon answered nothing").hint("is it of the same version?")
}

fn refused<T>(r: v1::Refusal) -> Done<T> {
    let reason = r.reason().as_str_name().to_ascii_lowercase();
    Err(Error::new(ErrorKind::Conflict, r.message).at(reason).into())
}

fn lost_window(w: Option<&v1::LostWindow>) -> Value {
    let Some(w) = w else { return Value::Null };
    json!({ "state": w.state().as_str_name().to_ascii_lowercase(), "accepted": w.accepted, "published": w.published })
}

fn workspace_json(w: &v1::Workspace) -> Value {
    let claim = w.claim.as_ref().map(|c| format!("{}/{}", c.namespace, c.name));
    json!({ "workspace": w.name, "claim": claim, "size": w.size, "base": w.base, "epoch": w.epoch, "open": w.open, "node": w.node,
            "root": w.root, "deleted": w.deleted, "lost_window": lost_window(w.lost_window.as_ref()) })
}

fn mount_json(m: &v1::Mount) -> Value {
    json!({ "workspace": m.workspace, "target": m.target, "device": format!("{}:{}", m.device_major, m.device_minor), "alive": m.alive,
            "read_only": m.read_only })
}

fn left_json(left: &[v1::Draining]) -> Value {
    left.iter().map(|d| json!({ "workspace": d.workspace, "left_bytes": d.left_bytes })).collect()
}

fn snapshot_json(s: &v1::SnapshotResponse) -> Value {
    let durability = if s.replicated { "replicated" } else { "local" };
    json!({ "snapshot": s.name, "workspace": s.workspace, "durability": durability, "root": s.root, "epoch": s.epoch, "sequence": s.sequence,
            "unsynced": s.unsynced })
}

fn event(e: &v1::Event) -> Value {
    json!({ "event": e.kind().as_str_name().to_ascii_lowercase(), "workspace": e.workspace, "target": e.target, "message": e.message })
}

/// One line each.
fn text(v: &Value) -> String {
    let Value::Object(map) = v else { return v.to_string() };
    let shown = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    map.iter().map(|(k, v)| format!("{k}: {}", shown(v))).collect::<Vec<_>>().join("\n")
}
