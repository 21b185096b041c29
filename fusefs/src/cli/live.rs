//! Commands on mounted workspaces: `snapshot`, `flush`, `status`, `recover`.

use std::path::Path;

use hiloop_env::Env;
use hiloop_types::{Error, Result, ResultExt};
use serde_json::Value;

use super::args::{Live, Recover, Snapshot, Status, default_cache_dir};
use super::failure::{Done, usage};
use super::node::{self, Logging};
use super::output::Output;
use super::progress::{Progress, of_daemon};
use super::size::show_size;
use super::store;
use crate::daemon::client::Client;
use crate::daemon::find::{self, Found, Target};
use crate::daemon::protocol::{Call, Flushed, Recovery, Snapshotted};
use crate::daemon::start;
use crate::fuse;

/// Reads a TARGET.
pub(super) fn target(text: &str) -> Done<Target> {
    let here = std::env::current_dir().at("the current directory")?;
    usage(Target::parse(text, &here, &fuse::mounts()?))
}

async fn found(text: &str, cache_dir: Option<&Path>) -> Done<Found> {
    Ok(find::one(&target(text)?, cache_dir, &default_cache_dir()).await?)
}

/// `sync-mount`: returns once what was changed in the mount has reached its daemon.
pub(super) fn sync_mount(mountpoint: &Path) -> Result<()> {
    let dir = std::fs::File::open(mountpoint).at(mountpoint.display())?;
    nix::unistd::syncfs(&dir).map_err(|e| Error::io("syncfs", &e.into()).at(mountpoint.display()))
}

/// Tells what a cut may miss.
pub(super) fn note_unsynced(unsynced: Option<&str>, out: Output) {
    if let Some(why) = unsynced {
        out.note(&format!("warning: changed pages of mapped files may be missing: {why}"));
    }
}

pub(super) async fn snapshot(args: Snapshot, out: Output, env: &Env) -> Done {
    let found = found(&args.target, args.daemon.cache_dir.as_deref()).await?;
    let progress = Progress::start("snapshot", out, env);
    let call = Call::Snapshot { of: found.selector(), name: args.name, wait: args.wait };
    let cut: Snapshotted = found.client.call(call, &mut of_daemon(&progress)).await?;
    drop(progress);
    note_unsynced(cut.unsynced.as_deref(), out);
    Ok(out.result(&cut, |c| {
        let how = if c.root.is_some() { "in the store" } else { "on this node; it is being replicated" };
        format!("snapshot {} of {} is cut: {how}", c.snapshot, c.lineage.workspace)
    })?)
}

pub(super) async fn flush(args: Live, out: Output, env: &Env) -> Done {
    let found = found(&args.target, args.daemon.cache_dir.as_deref()).await?;
    let flushed = flush_found(&found, out, env).await?;
    Ok(out.result(&flushed, |f| format!("workspace {} is published up to {}", f.workspace, f.published))?)
}

/// Publishes all accepted writes of a mount, mapped pages included.
pub(super) async fn flush_found(found: &Found, out: Output, env: &Env) -> Result<Flushed> {
    let progress = Progress::start("flush", out, env);
    let flushed: Flushed = found.client.call(Call::Flush(found.selector()), &mut of_daemon(&progress)).await?;
    drop(progress);
    note_unsynced(flushed.unsynced.as_deref(), out);
    Ok(flushed)
}

pub(super) async fn status(args: Status, out: Output) -> Done {
    let dir = args.daemon.cache_dir.as_deref();
    let mut quiet = |_| {};
    if let Some(text) = &args.target {
        let found = found(text, dir).await?;
        let status: Value = found.client.call(Call::Status(Some(found.selector())), &mut quiet).await?;
        return Ok(out.result(&status, workspace_text)?);
    }
    let call = if args.prometheus { Call::Metrics } else { Call::Status(None) };
    let (mut answers, mut failed) = (Vec::new(), None);
    for client in find::candidates(dir, &default_cache_dir()) {
        match client.try_call::<Value>(call.clone(), &mut quiet).await {
            Ok(answer) => answers.extend(answer),
            Err(e) => failed = Some(e),
        }
    }
    // Daemons of other users do not answer; that matters only where no other does.
    if answers.is_empty() {
        if let Some(e) = failed {
            return Err(e.into());
        }
        let client = Client::new(dir.map_or_else(default_cache_dir, Path::to_owned));
        return Err(Error::not_found("no daemon runs").at(client.dir().display()).hint("`mount` starts one").into());
    }
    for answer in &answers {
        match answer {
            Value::String(text) => Output { json: false }.result(answer, |_| text.clone())?,
            _ => out.result(answer, node_text)?,
        }
    }
    Ok(())
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or("-")
}

fn size(v: &Value) -> String {
    v.as_u64().map_or_else(|| "-".to_owned(), show_size)
}

fn node_text(v: &Value) -> String {
    let mut lines = vec![format!("daemon {} on node {}, cache directory {}", v["pid"], text(v, "node"), text(v, "cache_dir"))];
    lines.push(shared_text(v));
    let rows = v["workspaces"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        lines.push("nothing is mounted".into());
    }
    lines.extend(rows.iter().map(ladder_text));
    lines.join("\n")
}

fn workspace_text(v: &Value) -> String {
    format!("{}\n{}\n{}", ladder_text(v), resident_text(&v["resident"]), shared_text(v))
}

fn resident_text(v: &Value) -> String {
    let far = match (v["nodes_absent"].as_u64(), v["complete"].as_bool()) {
        (_, Some(false)) => "; a large tree, counted in part so far".to_owned(),
        (Some(n), _) if n > 0 => format!("; {n} parts of the tree were never listed here"),
        _ => String::new(),
    };
    format!("  resident  {} of {} ({} of {} chunks){far}", size(&v["bytes_local"]), size(&v["bytes"]), v["chunks_local"], v["chunks"])
}

fn shared_text(v: &Value) -> String {
    let (cache, residency, journal) = (&v["cache"], &v["residency"], &v["journal"]);
    let rate = cache["hit_rate"].as_f64().map_or_else(|| "-".to_owned(), |r| format!("{:.1} %", r * 100.0));
    format!(
        "  cache     {} in {} entries, hit rate {rate}; memory {} nodes, {} chunks\n  journal   {} and {} staged; {} openings nobody attached",
        size(&residency["bytes"]),
        residency["entries"],
        size(&residency["memory_nodes_bytes"]),
        size(&residency["memory_chunks_bytes"]),
        size(&journal["bytes"]),
        size(&journal["staging_bytes"]),
        v["tails"],
    )
}

fn ladder_text(v: &Value) -> String {
    let mut out = format!(
        "workspace {} ({}) on {}\n  epoch     {}, session {}, durability {}\n  ladder    accepted {} > journaled {} > shipped {} > published {}\n  \
         backlog   {} in {} operations, {:.1} s behind; writers wait at {}\n  holds     {} inodes, {}{}",
        text(v, "workspace"),
        text(v, "standing"),
        text(v, "mountpoint"),
        v["epoch"],
        text(v, "session"),
        text(v, "durability"),
        v["accepted"],
        v["journaled"],
        v["shipped"],
        v["published"],
        size(&v["backlog_bytes"]),
        v["backlog_operations"],
        v["lag_seconds"].as_f64().unwrap_or(0.0),
        size(&v["backlog_limit"]),
        v["inodes"],
        size(&v["bytes"]),
        v["quota"].as_u64().map(|q| format!(" of {}", show_size(q))).unwrap_or_default(),
    );
    for (word, key) in [("error", "replication_error"), ("fenced by", "by"), ("reason", "reason")] {
        if let Some(why) = v[key].as_str() {
            out.push_str(&format!("\n  {word:9} {why}"));
        }
    }
    if let Some(requests) = v["fuse"]["requests"].as_object() {
        let each: Vec<String> = requests.iter().map(|(op, n)| format!("{op} {n}")).collect();
        out.push_str(&format!("\n  requests  {} ({})", v["fuse"]["total"], each.join(", ")));
    }
    out
}

pub(super) async fn recover(args: Recover, out: Output, env: &Env, logging: &Logging) -> Done {
    let url = store::url(&args.store)?;
    store::exists(&url)?;
    let (client, mut arguments) = node::client(&args.node, args.store.ca_file.as_deref(), logging)?;
    arguments.push("--keep-prefix".into());
    let progress = Progress::start("recover", out, env);
    let call = Call::Recover { store: url.to_string() };
    let recovered: Recovery = start::call(&client, &arguments, env, call, &mut of_daemon(&progress)).await?;
    drop(progress);
    Ok(out.result(&recovered, |r| {
        if r.forks.is_empty() {
            return "nothing to recover".into();
        }
        let line = |f: &Value| {
            let bytes = f["bytes"].as_u64().map_or_else(|| "-".to_owned(), show_size);
            format!("{} holds {} operations ({bytes}) of {}", text(f, "name"), f["operations"], text(f, "from"))
        };
        r.forks.iter().map(line).collect::<Vec<_>>().join("\n")
    })?)
}
