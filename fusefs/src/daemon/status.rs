//! What `status` shows and what the metrics count.

use hiloop_engine::node::NodeStatus;
use hiloop_engine::workspace::WorkspaceStatus;
use hiloop_types::{Error, Result};
use serde_json::{Map, Value, json};

use super::Daemon;
use super::protocol::Selector;
use crate::fuse::{FuseStats, Mount};
use crate::telemetry::names as metric;
use crate::telemetry::samples::Samples;

/// How requests reach the daemon: readers of its own on `/dev/fuse`.
const TRANSPORT: &str = "device";

impl Daemon {
    /// The whole daemon.
    pub(super) fn status(&self) -> Result<Value> {
        let node = self.engine.status();
        let mounts = self.mounts.lock().all();
        let mut object = self.head();
        object.extend(self.shared(&node));
        let rows: Vec<Value> = node
            .workspaces
            .iter()
            .map(|w| {
                let mount = mounts.iter().find(|(_, ws)| ws.session() == w.session).map(|(m, _)| m);
                self.row(w, mount).map(Value::Object)
            })
            .collect::<Result<_>>()?;
        // Fenced workspaces and read-only trees are mounted and not among the engine's.
        let fenced = mounts.iter().filter(|(_, ws)| !node.workspaces.iter().any(|w| w.session == ws.session()));
        let fenced: Vec<Value> = fenced.map(|(m, ws)| self.row(&ws.status(), Some(m)).map(Value::Object)).collect::<Result<_>>()?;
        object.insert("workspaces".into(), rows.into_iter().chain(fenced).collect());
        Ok(Value::Object(object))
    }

    /// One workspace, with what it shares with the others. Not for a thread that may not wait for the disk.
    pub(super) fn workspace_status(&self, of: &Selector) -> Result<Value> {
        let (mount, workspace) = self.workspace_of(of)?;
        let mut object = self.row(&workspace.status(), Some(&mount))?;
        object.insert("resident".into(), json!(workspace.residency()));
        object.extend(self.shared(&self.engine.status()));
        Ok(Value::Object(object))
    }

    fn head(&self) -> Map<String, Value> {
        let head = json!({
            "pid": std::process::id(),
            // Without a keeper a daemon's mounts die with it.
            "keeper_pid": self.keeper.as_ref().map(|k| k.pid()),
            "transport": TRANSPORT,
            "program": env!("CARGO_PKG_VERSION"),
            "node": self.options.node,
            "cache_dir": self.options.cache_dir,
        });
        object(head)
    }

    fn shared(&self, node: &NodeStatus) -> Map<String, Value> {
        let c = &node.cache;
        let shared = json!({
            "cache": {
                "hits": c.hits, "misses": c.misses, "hit_rate": rate(c.hits, c.misses), "fills": c.fills, "fill_drops": c.fill_drops,
                "evicted_ttl": c.evicted_ttl, "evicted_pressure": c.evicted_pressure, "rescued": c.rescued,
                "corrupt": c.corrupt, "vanished": c.vanished, "pinned": c.pinned,
            },
            "residency": {
                "entries": c.entries, "bytes": c.bytes, "pending_delete_bytes": c.pending_delete_bytes,
                "memory_nodes_bytes": node.memory.0, "memory_chunks_bytes": node.memory.1,
            },
            "hydration": node.hydration,
            "journal": {
                "bytes": node.journal.journal_bytes, "segments": node.journal.segments, "staging_bytes": node.journal.staging_bytes,
                "staging_dirty": node.journal.staging_dirty, "unflushed": node.journal.unflushed,
            },
            "tails": node.tails,
        });
        object(shared)
    }

    fn row(&self, status: &WorkspaceStatus, mount: Option<&Mount>) -> Result<Map<String, Value>> {
        let status = serde_json::to_value(Shown { root: status.root.map(|r| r.node.id.to_string()), status })
            .map_err(|e| Error::internal(format!("a status cannot be encoded: {e}")))?;
        let mut row = self.head();
        row.extend(object(status));
        if let Some(name) = row.remove("name") {
            row.insert("workspace".into(), name);
        }
        row.insert("mountpoint".into(), mount.map_or(Value::Null, |m| json!(m.mountpoint())));
        row.insert("connection".into(), json!(mount.and_then(Mount::connection)));
        row.insert("alive".into(), json!(mount.map(Mount::is_alive)));
        let fuse = mount.map(|m| fuse_status(&m.stats()));
        row.insert("fuse".into(), fuse.unwrap_or(Value::Null));
        Ok(row)
    }

    /// All metrics now. Sums over workspaces: none is a label.
    pub(crate) fn samples(&self) -> Samples {
        let node = self.engine.status();
        let mounts = self.mounts.lock().all();
        let mut s = Samples::default();
        let sum = |f: fn(&WorkspaceStatus) -> u64| node.workspaces.iter().map(f).sum::<u64>() as f64;
        s.add(metric::WORKSPACES, node.workspaces.len() as f64);
        s.add(metric::MOUNTS, mounts.len() as f64);
        s.add(metric::TAILS, node.tails as f64);
        s.add(metric::BACKLOG_BYTES, sum(|w| w.backlog_bytes));
        s.add(metric::BACKLOG_OPERATIONS, sum(|w| w.backlog_operations));
        s.add(metric::UNJOURNALED_RECORDS, sum(|w| w.accepted - w.journaled.min(w.accepted)));
        s.add(metric::LAG_SECONDS, node.workspaces.iter().map(|w| w.lag_seconds).fold(0.0, f64::max));
        s.add(metric::STORE_THROUGHPUT, node.workspaces.iter().map(|w| w.throughput).max().unwrap_or(0) as f64);
        s.add(metric::REPLICATION_FAILING, node.workspaces.iter().filter(|w| w.replication_error.is_some()).count() as f64);
        let live = hiloop_engine::workspace::Standing::Live;
        s.add(metric::NOT_LIVE, node.workspaces.iter().filter(|w| w.standing != live).count() as f64);
        s.add(metric::CACHE_BYTES, node.cache.bytes as f64);
        s.add(metric::CACHE_PENDING_DELETE_BYTES, node.cache.pending_delete_bytes as f64);
        s.add(metric::CACHE_ENTRIES, node.cache.entries as f64);
        s.add(metric::CACHE_HITS, node.cache.hits as f64);
        s.add(metric::CACHE_MISSES, node.cache.misses as f64);
        s.add(metric::CACHE_FILLS, node.cache.fills as f64);
        s.add(metric::CACHE_FILL_DROPS, node.cache.fill_drops as f64);
        s.add_with(metric::CACHE_EVICTED, "reason", "ttl", node.cache.evicted_ttl as f64);
        s.add_with(metric::CACHE_EVICTED, "reason", "pressure", node.cache.evicted_pressure as f64);
        s.add(metric::CACHE_CORRUPT, (node.cache.corrupt + node.cache.vanished) as f64);
        s.add_with(metric::MEMORY_BYTES, "kind", "nodes", node.memory.0 as f64);
        s.add_with(metric::MEMORY_BYTES, "kind", "chunks", node.memory.1 as f64);
        s.add(metric::JOURNAL_BYTES, node.journal.journal_bytes as f64);
        s.add(metric::STAGING_BYTES, node.journal.staging_bytes as f64);
        let mut all = FuseStats::default();
        for (m, _) in &mounts {
            let f = m.stats();
            f.requests.iter().for_each(|(op, n)| *all.requests.entry(op).or_default() += n);
            all.errors += f.errors;
            all.io_errors += f.io_errors;
            all.parked_now += f.parked_now;
            all.waiting_now += f.waiting_now;
            all.inodes += f.inodes;
        }
        for (op, n) in &all.requests {
            s.add_with(metric::FUSE_REQUESTS, "opcode", op, *n as f64);
        }
        s.add(metric::FUSE_ERRORS, all.errors as f64);
        s.add(metric::FUSE_IO_ERRORS, all.io_errors as f64);
        s.add_with(metric::FUSE_WAITING, "for", "fetch", all.parked_now as f64);
        s.add_with(metric::FUSE_WAITING, "for", "backlog", all.waiting_now as f64);
        s.add(metric::FUSE_INODES, all.inodes as f64);
        s
    }
}

/// A status as it is printed: the tree by its identity.
#[derive(serde::Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    status: &'a WorkspaceStatus,
    root: Option<String>,
}

fn fuse_status(stats: &FuseStats) -> Value {
    let mut value = object(serde_json::to_value(stats).unwrap_or_default());
    value.insert("total".into(), stats.total().into());
    Value::Object(value)
}

/// Part of lookups that were answered; `null` before the first.
fn rate(hits: u64, misses: u64) -> Option<f64> {
    let all = hits + misses;
    (all > 0).then(|| hits as f64 / all as f64)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
