//! `ctl doctor`: what is wrong on this node, and what helps, from the memory of its daemons and the kernel's own files. It looks into no
//! mount: one that hangs would hang it.

use std::path::Path;
use std::time::Duration;

use hiloop_control::mountinfo::{self, MountEntry};
use hiloop_control::{Client, v1};
use hiloop_types::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::args::default_cache_dir;
use super::failure::{Done, Failure};
use super::output::Output;
use super::size::show_size;
use crate::daemon::find;
use crate::daemon::protocol::Call;

/// Descriptors that a daemon must be able to have: a hundred mounts with their queues, the journal's segments and slabs, the index's files,
/// connections to the store.
const NOFILE: u64 = 4096;

/// Something that is wrong.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Finding {
    what: String,
    remedy: String,
}

fn finding(what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { what: what.into(), remedy: remedy.into() }
}

pub(super) async fn run(client: &Client, within: Duration, out: Output) -> Done {
    let mut findings = Vec::new();
    let mut daemons = Vec::new();
    match asked(client, within).await {
        Ok(status) => {
            if status["draining"] == true {
                let what = format!("daemon {} was told to drain: it takes no new mounts", status["pid"]);
                findings.push(finding(what, "restart it where the node is to stay"));
            }
            daemons.push(status);
        }
        Err(e) => findings.push(finding(
            format!("{}: no daemon answers on the control socket: {e}", client.socket().display()),
            "start it; pods keep waiting until then, and nothing that was accepted is lost",
        )),
    }
    // Those that `mount` started have no control socket.
    let mut quiet = |_| {};
    for other in find::candidates(None, &default_cache_dir()) {
        match tokio::time::timeout(within, other.try_call::<Value>(Call::Status(None), &mut quiet)).await {
            Ok(Ok(Some(status))) if daemons.iter().all(|d| d["pid"] != status["pid"]) => daemons.push(status),
            Ok(Ok(_)) => {}
            Err(_) => {
                let what = format!("{}: the daemon there does not answer", other.dir().display());
                findings.push(finding(what, "look into its log; restart it where it hangs"));
            }
            Ok(Err(e)) => findings.push(finding(format!("a daemon gives no status: {e}"), "look into its log; restart it where it hangs")),
        }
    }
    let mut mounts = Vec::new();
    for entry in mountinfo::mounts()?.iter().filter(|m| m.is_ours()) {
        let row = daemons.iter().find_map(|d| row_of(d, entry));
        findings.extend(of_mount(entry, row));
        mounts.push(shown(entry, row));
    }
    let kernel = Kernel::read();
    findings.extend(kernel.findings());
    let daemons: Vec<Value> = daemons.iter().map(|d| daemon(d, &mut findings)).collect();
    let all = json!({ "daemons": daemons, "mounts": mounts, "kernel": kernel, "findings": findings });
    out.result(&all, text)?;
    if findings.is_empty() { Ok(()) } else { Err(Failure::Shown) }
}

/// The status of the daemon behind the control socket.
async fn asked(client: &Client, within: Duration) -> Result<Value> {
    let info = client.info(v1::InfoRequest {}, within).await?;
    let status = client.status(v1::StatusRequest { target: String::new(), workspace: String::new() }, within).await?;
    let broken = |e| hiloop_types::Error::internal(format!("the daemon's status cannot be read: {e}"));
    let mut status: Value = serde_json::from_str(&status.json).map_err(broken)?;
    status["draining"] = info.draining.into();
    Ok(status)
}

/// What the daemon says about a mount; nothing where it is not this daemon's.
fn row_of<'a>(daemon: &'a Value, entry: &MountEntry) -> Option<&'a Value> {
    // A daemon of an earlier version does not name the connection.
    let same = |r: &&Value| {
        r["connection"].as_u64().is_none_or(|c| c == u64::from(entry.minor))
            && r["mountpoint"].as_str().map(Path::new) == Some(&entry.mountpoint)
    };
    daemon["workspaces"].as_array()?.iter().find(same)
}

/// Why requests of a mount wait.
fn waits(row: &Value) -> Vec<String> {
    let n = |key: &str| row["fuse"][key].as_u64().unwrap_or(0);
    let mut out = Vec::new();
    if n("parked_now") > 0 {
        out.push(format!("{} wait for something to come from the store", n("parked_now")));
    }
    if n("waiting_now") > 0 {
        let size = |key: &str| row[key].as_u64().map_or_else(|| "-".to_owned(), show_size);
        let (backlog, limit) = (size("backlog_bytes"), size("backlog_limit"));
        out.push(format!("{} changes wait at the backlog bound: {backlog} of {limit} are not in the store", n("waiting_now")));
    }
    out
}

fn of_mount(entry: &MountEntry, row: Option<&Value>) -> Vec<Finding> {
    let at = entry.mountpoint.display();
    let name = entry.workspace().unwrap_or("?");
    let Some(row) = row else {
        let what = format!("{at}: no daemon answers for the mount of {name}: it is dead, or in another container's sight");
        return vec![finding(
            what,
            format!("umount -l {at}; then mount it again, or let the kubelet publish it again: what was accepted is kept"),
        )];
    };
    let mut out = Vec::new();
    if row["alive"] == false {
        out.push(finding(format!("{at}: the daemon stopped answering for {name}"), "it is being cleared away; see the daemon's log"));
    }
    let reason = row["reason"].as_str().or(row["by"].as_str()).unwrap_or("-");
    match row["standing"].as_str() {
        Some("fenced") => out.push(finding(
            format!("{at}: {name} was taken over by {reason}: every access fails"),
            "end the mount; `sandbox-workspace recover` makes a workspace of what was not published",
        )),
        Some("read_only") => out.push(finding(
            format!("{at}: {name} takes no writes: {reason}"),
            "unmount everything of this daemon, then `sandbox-workspace recover`",
        )),
        Some("head_lost") => out.push(finding(
            format!("{at}: the head of {name} is lost: {reason}"),
            "restore the object; writes are accepted up to the backlog bound and not published until then",
        )),
        _ => {}
    }
    let error = row["replication_error"].as_str();
    let waiting = waits(row);
    if !waiting.is_empty() {
        let says = error.map(|e| format!("; the store: {e}")).unwrap_or_default();
        let what = format!("{at}: {}{says}", waiting.join("; "));
        out.push(finding(what, "they go on by themselves once the store answers; nothing is lost while the node lives"));
    } else if let Some(e) = error {
        out.push(finding(
            format!("{at}: {name} is not published: {e}"),
            "nothing is lost while the node lives; the store must take writes",
        ));
    }
    out
}

fn shown(entry: &MountEntry, row: Option<&Value>) -> Value {
    // Requests that the kernel has no answer to yet, whoever has them in hand. Only root may read it.
    let file = format!("/sys/fs/fuse/connections/{}/waiting", entry.minor);
    let kernel_waiting = std::fs::read_to_string(file).ok().and_then(|t| t.trim().parse::<u64>().ok());
    let mut out = json!({
        "target": entry.mountpoint, "workspace": entry.workspace(), "connection": entry.minor, "pid": row.map(|r| &r["pid"]),
        "kernel_waiting": kernel_waiting, "waits": row.map(waits),
    });
    for key in ["standing", "backlog_bytes", "backlog_limit", "lag_seconds", "replication_error"] {
        out[key] = row.map_or(Value::Null, |r| r[key].clone());
    }
    out
}

/// What of the kernel's settings can take a mount away, or the node.
#[derive(Debug, Default, Serialize)]
struct Kernel {
    default_request_timeout: Option<u64>,
    max_request_timeout: Option<u64>,
    hung_task_panic: Option<u64>,
    hung_task_timeout_secs: Option<u64>,
}

impl Kernel {
    fn read() -> Self {
        let number = |name: &str| std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().parse().ok();
        Self {
            default_request_timeout: number("fs/fuse/default_request_timeout"),
            max_request_timeout: number("fs/fuse/max_request_timeout"),
            hung_task_panic: number("kernel/hung_task_panic"),
            hung_task_timeout_secs: number("kernel/hung_task_timeout_secs"),
        }
    }
    fn findings(&self) -> Vec<Finding> {
        let mut out = Vec::new();
        for (name, value) in
            [("fs.fuse.default_request_timeout", self.default_request_timeout), ("fs.fuse.max_request_timeout", self.max_request_timeout)]
        {
            if let Some(seconds @ 1..) = value {
                let what = format!(
                    "{name} is {seconds} s: the kernel ends a whole mount for one request that waits longer, as writers at the backlog bound do"
                );
                out.push(finding(what, format!("sysctl -w {name}=0; it holds for mounts that are made after that")));
            }
        }
        if let Some(1..) = self.hung_task_panic {
            let after = self.hung_task_timeout_secs.unwrap_or(0);
            let what = format!("kernel.hung_task_panic is set: a writer that waits longer than {after} s for the store panics the node");
            out.push(finding(what, "sysctl -w kernel.hung_task_panic=0"));
        }
        out
    }
}

fn daemon(status: &Value, findings: &mut Vec<Finding>) -> Value {
    let mut out = Map::new();
    for key in ["pid", "program", "node", "cache_dir", "transport", "keeper_pid", "draining"] {
        out.insert(key.into(), status[key].clone());
    }
    let pid = status["pid"].as_u64().unwrap_or(0);
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok();
    let (soft, hard) = limits.as_deref().and_then(nofile).unzip();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|d| d.count() as u64);
    findings.extend(few(pid, soft, open));
    out.insert("nofile".into(), json!({ "soft": soft, "hard": hard, "open": open }));
    Value::Object(out)
}

fn few(pid: u64, soft: Option<u64>, open: Option<u64>) -> Option<Finding> {
    let (soft, open) = (soft?, open.unwrap_or(0));
    let scarce = soft < NOFILE || open > soft / 4 * 3;
    let what = || format!("daemon {pid} may have {soft} descriptors and has {open}: without one, mounts and fetches fail");
    scarce.then(|| {
        finding(
            what(),
            format!("start it with at least {NOFILE} (LimitNOFILE=, ulimit -n), or prlimit --pid {pid} --nofile={}", NOFILE * 4),
        )
    })
}

/// (soft, hard) limit of open files in `/proc/PID/limits`.
fn nofile(limits: &str) -> Option<(u64, u64)> {
    let line = limits.lines().find_map(|l| l.strip_prefix("Max open files"))?;
    let mut numbers = line.split_whitespace().map(|w| if w == "unlimited" { Some(u64::MAX) } else { w.parse().ok() });
    Some((numbers.next()??, numbers.next()??))
}

fn text(all: &Value) -> String {
    let mut lines = Vec::new();
    let rows = |key: &str| all[key].as_array().cloned().unwrap_or_default();
    let word = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    for d in rows("daemons") {
        lines.push(format!(
            "daemon {} of {}: {} of {} descriptors",
            d["pid"],
            word(&d["cache_dir"]),
            d["nofile"]["open"],
            d["nofile"]["soft"]
        ));
    }
    for m in rows("mounts") {
        let served = if m["pid"].is_null() { "by nobody".to_owned() } else { format!("by {}", m["pid"]) };
        let waits: Vec<String> = m["waits"].as_array().into_iter().flatten().map(word).collect();
        let waits = if waits.is_empty() { "nothing waits".to_owned() } else { waits.join("; ") };
        lines.push(format!("mount {} ({}), served {served}: {waits}", word(&m["target"]), word(&m["workspace"])));
    }
    let findings = rows("findings");
    lines.extend(findings.iter().map(|f| format!("WRONG {}\n      {}", word(&f["what"]), word(&f["remedy"]))));
    if findings.is_empty() {
        lines.push("nothing is wrong".into());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> MountEntry {
        MountEntry { mountpoint: "/m".into(), major: 0, minor: 7, fstype: mountinfo::FSTYPE.into(), source: "hiloop:w".into() }
    }
    fn row() -> Value {
        json!({ "connection": 7, "mountpoint": "/m", "alive": true, "standing": "live", "backlog_bytes": 1 << 20, "backlog_limit": 2 << 20,
                "fuse": { "parked_now": 0, "waiting_now": 0 }, "replication_error": null, "pid": 5 })
    }

    #[test]
    fn a_mount_is_served_by_the_daemon_that_has_its_connection() {
        let daemon = json!({ "workspaces": [row()] });
        assert!(row_of(&daemon, &entry()).is_some());
        assert!(row_of(&daemon, &MountEntry { minor: 8, ..entry() }).is_none(), "another mount at the same place");
        assert!(of_mount(&entry(), None)[0].remedy.contains("umount -l /m"));
    }

    #[test]
    fn what_is_wrong_with_a_mount_is_named_with_what_helps() {
        assert_eq!(of_mount(&entry(), Some(&row())), []);
        let with = |key: &str, value: Value| {
            let mut r = row();
            r[key] = value;
            of_mount(&entry(), Some(&r)).into_iter().map(|f| format!("{}: {}", f.what, f.remedy)).collect::<Vec<_>>().join("\n")
        };
        for (key, value, word) in [
            ("alive", json!(false), "stopped answering"),
            ("standing", json!("fenced"), "recover"),
            ("standing", json!("read_only"), "recover"),
            ("standing", json!("head_lost"), "restore the object"),
            ("replication_error", json!("503"), "not published: 503"),
            ("fuse", json!({ "parked_now": 3 }), "3 wait for something to come from the store"),
            ("fuse", json!({ "waiting_now": 2 }), "2 changes wait at the backlog bound: 1.00 MiB of 2.00 MiB"),
        ] {
            let said = with(key, value);
            assert!(said.contains(word), "{word}: {said}");
        }
    }

    #[test]
    fn settings_that_take_mounts_away_are_found() {
        assert_eq!(Kernel::default().findings(), []);
        let off = Kernel {
            default_request_timeout: Some(0),
            max_request_timeout: Some(0),
            hung_task_panic: Some(0),
            hung_task_timeout_secs: Some(120),
        };
        assert_eq!(off.findings(), []);
        let set = Kernel { default_request_timeout: Some(60), max_request_timeout: Some(90), hung_task_panic: Some(1), ..off };
        let said: Vec<String> = set.findings().into_iter().map(|f| f.what).collect();
        assert!(said.len() == 3 && said[0].contains("60 s") && said[1].contains("max_request") && said[2].contains("120 s"), "{said:?}");
    }

    #[test]
    fn descriptors_that_run_short_are_found() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 524288               files\n";
        assert_eq!(nofile(limits), Some((1024, 524_288)));
        assert_eq!(nofile("Max open files            unlimited            unlimited            files"), Some((u64::MAX, u64::MAX)));
        assert_eq!(nofile("nothing"), None);
        assert!(few(5, Some(1024), Some(10)).is_some_and(|f| f.remedy.contains("prlimit --pid 5")));
        assert!(few(5, Some(65_536), Some(60_000)).is_some());
        assert_eq!(few(5, Some(65_536), Some(100)), None);
    }
}
