//! The daemon's side of the command line: its options, starting it by hand, running it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use hiloop_cache::CacheOptions;
use hiloop_engine::node::HeartbeatPace;
use hiloop_env::Env;
use hiloop_store::StoreUrl;
use hiloop_types::{Error, Name, NameKind, Result, ResultExt};

use super::args::{Daemon, NodeArgs};
use super::failure::{Done, usage};
use super::output::Output;
use crate::daemon::client::Client;
use crate::daemon::control::ControlOptions;
use crate::daemon::{self, Options, socket, start};
use crate::telemetry::{self, LogFormat, Telemetry};

/// Filter and format of log lines, handed on to a daemon that is started.
pub(super) type Logging = (String, LogFormat);

/// Ends a daemon that `mount` started, this long after the last workspace is gone.
const LINGER: &str = "5s";
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// The node's name: as given, or the host's name made a valid one.
pub(super) fn name(args: &NodeArgs) -> Result<Name> {
    if let Some(name) = &args.node_name {
        return Ok(name.clone());
    }
    let host = std::fs::read_to_string(HOSTNAME).at(HOSTNAME)?;
    Name::new(NameKind::Node, valid(host.trim())).map_err(|e| e.hint("name the node with --node-name"))
}

/// The nearest valid name.
fn valid(host: &str) -> String {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    let mapped: String = host.to_ascii_lowercase().chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    let start = mapped.trim_start_matches(['.', '_', '-']);
    let text: String = start.chars().take(Name::MAX).collect();
    if text.is_empty() { "node".to_owned() } else { text }
}

fn options(args: &Daemon, cache_dir: PathBuf) -> Result<Options> {
    let n = &args.node;
    let default = HeartbeatPace::default();
    let cache = CacheOptions {
        ttl: n.cache_ttl,
        high_percent: n.cache_high,
        low_percent: n.cache_low,
        delete_delay: n.cache_delete_delay,
        // A cap below the usual floor means a small cache, not a contradiction.
        floor: n.cache_cap.map_or(n.cache_floor, |cap| n.cache_floor.min(cap)),
        cap: n.cache_cap,
        full_percent: CacheOptions::default().full_percent.max(n.cache_high.saturating_add(1)),
        ..CacheOptions::default()
    };
    cache.check()?;
    Ok(Options {
        cache_dir,
        node: name(n)?,
        ca_file: args.store.ca_file.clone(),
        cache,
        memory_nodes: n.memory_nodes,
        memory_chunks: n.memory_chunks,
        pace: HeartbeatPace { every: n.heartbeat_interval.unwrap_or(default.every), watch: n.heartbeat_watch.unwrap_or(default.watch) },
        linger: args.linger,
        grace: n.grace,
        control: control(args)?,
        keeper: args.keeper.clone(),
        keep_prefix: args.keep_prefix,
    })
}

/// How the control socket is served: where one is named, and by default where the daemon has a configuration.
fn control(args: &Daemon) -> Result<Option<ControlOptions>> {
    let default = args.config.as_ref().map(|_| PathBuf::from(hiloop_control::DEFAULT_SOCKET));
    let Some(socket) = args.control_socket.clone().or(default) else { return Ok(None) };
    let url = args.store.store.as_deref().filter(|s| !s.is_empty()).ok_or_else(|| {
        Error::invalid("the control socket is about the workspaces of one store, and none is named")
            .hint("give --store URL, or `store` in the configuration")
    })?;
    let store = StoreUrl::parse(url)?.to_string();
    daemon::control::check_paths(&args.kubelet_root, &args.node.cache_dir, &socket)?;
    Ok(Some(ControlOptions { socket, kubelet_root: args.kubelet_root.clone(), store }))
}

/// `check-config`: prints what a daemon would run with, and makes nothing.
pub(super) fn check_config(args: &Daemon, out: Output) -> Done {
    let o = usage(options(args, args.node.cache_dir.clone()))?;
    let shown = serde_json::json!({
        "cache_dir": o.cache_dir,
        "node": o.node,
        "store": o.control.as_ref().map(|c| &c.store),
        "control_socket": o.control.as_ref().map(|c| &c.socket),
        "kubelet_root": o.control.as_ref().map(|c| &c.kubelet_root),
        "keeper": o.keeper,
        "grace_seconds": o.grace.as_secs_f64(),
        "cache": { "ttl_seconds": o.cache.ttl.as_secs_f64(), "high_percent": o.cache.high_percent, "low_percent": o.cache.low_percent,
                   "floor": o.cache.floor, "cap": o.cache.cap },
        "memory": { "chunks": o.memory_chunks, "nodes": o.memory_nodes },
    });
    Ok(out.result(&shown, |v| serde_json::to_string_pretty(v).unwrap_or_default())?)
}

/// The same options as arguments of a daemon that is started, paths made absolute.
pub(super) fn arguments(n: &NodeArgs, ca_file: Option<&Path>, linger: Option<&str>, logging: &Logging) -> Result<Vec<OsString>> {
    let mut out: Vec<OsString> = Vec::new();
    let mut put = |flag: &str, value: OsString| out.extend([flag.into(), value]);
    let time = |d: std::time::Duration| OsString::from(humantime::format_duration(d).to_string());
    if let Some(name) = &n.node_name {
        put("--node-name", name.as_str().into());
    }
    put("--cache-ttl", time(n.cache_ttl));
    put("--cache-high", n.cache_high.to_string().into());
    put("--cache-low", n.cache_low.to_string().into());
    put("--cache-delete-delay", time(n.cache_delete_delay));
    put("--cache-floor", n.cache_floor.to_string().into());
    if let Some(cap) = n.cache_cap {
        put("--cache-cap", cap.to_string().into());
    }
    put("--memory-chunks", n.memory_chunks.to_string().into());
    put("--memory-nodes", n.memory_nodes.to_string().into());
    put("--grace", time(n.grace));
    if let Some(endpoint) = &n.otlp_endpoint {
        put("--otlp-endpoint", endpoint.into());
    }
    if let Some(every) = n.heartbeat_interval {
        put("--heartbeat-interval", time(every));
    }
    if let Some(watch) = n.heartbeat_watch {
        put("--heartbeat-watch", time(watch));
    }
    if let Some(file) = ca_file {
        put("--ca-file", file.canonicalize().at(file.display())?.into());
    }
    if let Some(linger) = linger {
        put("--linger", linger.into());
    }
    let (filter, format) = logging;
    // A client warns about little; its daemon's log should say what went on.
    put("--log", if filter == "warn" { "info".into() } else { filter.into() });
    put("--log-format", format.as_str().into());
    Ok(out)
}

/// A client of the daemon that `n` describes, and what to start it with.
pub(super) fn client(n: &NodeArgs, ca_file: Option<&Path>, logging: &Logging) -> Result<(Client, Vec<OsString>)> {
    Ok((Client::new(socket::prepare(&n.cache_dir)?), arguments(n, ca_file, Some(LINGER), logging)?))
}

/// `daemon` without `--foreground`.
pub(super) async fn start_daemon(args: Daemon, out: Output, env: &Env, logging: &Logging) -> Done {
    let linger = args.linger.map(|d| humantime::format_duration(d).to_string());
    let mut arguments = arguments(&args.node, args.store.ca_file.as_deref(), linger.as_deref(), logging)?;
    if let Some(c) = usage(control(&args))? {
        let socket: [(&str, OsString); 3] =
            [("--control-socket", c.socket.into()), ("--kubelet-root", c.kubelet_root.into()), ("--store", c.store.into())];
        arguments.extend(socket.into_iter().flat_map(|(flag, value)| [flag.into(), value]));
    }
    if let Some(keeper) = &args.keeper {
        arguments.extend(["--keeper".into(), std::path::absolute(keeper).at(keeper.display())?.into()]);
    }
    usage(options(&args, args.node.cache_dir.clone()))?;
    let client = Client::new(socket::prepare(&args.node.cache_dir)?);
    let hello = start::ensure(&client, &arguments, env).await?;
    Ok(out.result(&hello, |h| format!("daemon {} serves {}", h.pid, h.cache_dir.display()))?)
}

/// `daemon --foreground`: this process is the daemon.
pub(super) fn run_daemon(args: &Daemon, telemetry: &Telemetry, env: &Env) -> Done {
    if args.detached
        && let Err(e) = nix::unistd::setsid()
    {
        return Err(Error::io("a session of its own", &e.into()).into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().at("the runtime")?;
    let started = prepare(args, telemetry, &runtime);
    let (options, exporting) = match started {
        Ok(started) => started,
        Err(e) => return Err(fail_start(args, e).into()),
    };
    abort_on_panic();
    let mut is_ready = false;
    let ran = runtime.block_on(daemon::run(options, env.clone(), exporting.metrics(), || {
        is_ready = true;
        if args.detached { start::report(&Ok(())) } else { Ok(()) }
    }));
    exporting.finish();
    if matches!(ran, Ok(daemon::Ended::HandedOver)) {
        std::process::exit(0);
    }
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    match ran {
        Err(e) if !is_ready => Err(fail_start(args, e).into()),
        other => Ok(other.map(drop)?),
    }
}

fn prepare(args: &Daemon, telemetry: &Telemetry, runtime: &tokio::runtime::Runtime) -> Result<(Options, telemetry::Exporting)> {
    let _on = runtime.enter();
    let exporting = telemetry::start(telemetry)?;
    // Before the directory is made: it may be where none may be.
    control(args)?;
    let options = options(args, socket::prepare(&args.node.cache_dir)?)?;
    Ok((options, exporting))
}

/// Tells the client that waits, where there is one.
fn fail_start(args: &Daemon, e: Error) -> Error {
    let failed = Err(e.clone());
    if args.detached
        && let Err(lost) = start::report(&failed)
    {
        tracing::warn!(error = %lost, "the outcome of the start could not be told");
    }
    e
}

/// A daemon whose state may be half changed must not go on: its journal is whole, the next one recovers from it.
fn abort_on_panic() {
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!(panic = %info, "the daemon aborts");
        shown(info);
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn any_host_name_becomes_a_valid_one() {
        for (host, name) in [("Node-1.Example", "node-1.example"), ("_x", "x"), ("ä", "node"), ("", "node"), ("a b", "a-b")] {
            assert_eq!(valid(host), name);
            assert!(Name::new(NameKind::Node, valid(host)).is_ok());
        }
        assert!(Name::new(NameKind::Node, valid(&"H".repeat(300))).is_ok());
    }

    #[test]
    fn a_started_daemon_gets_the_options_of_its_client() {
        let words = "sandbox-workspace mount --workspace w --node-name n1 --cache-ttl 90s --cache-cap 64MiB --memory-chunks 1MiB \
                     --grace 1500ms --otlp-endpoint http://h:4317 --heartbeat-interval 50ms --heartbeat-watch 200ms /mnt";
        let Command::Mount(m) = Cli::try_parse_from(words.split_whitespace()).unwrap().command else { panic!("not a mount") };
        let handed = arguments(&m.node, None, Some(LINGER), &("debug".into(), LogFormat::Json)).unwrap();
        let line = ["sandbox-workspace", "daemon", "--foreground"].map(OsString::from).into_iter().chain(handed);
        let cli = Cli::try_parse_from(line).unwrap();
        assert_eq!((cli.log.as_deref(), cli.log_format), (Some("debug"), LogFormat::Json));
        let Command::Daemon(d) = cli.command else { panic!("not a daemon") };
        assert_eq!(format!("{:?}", d.node), format!("{:?}", m.node));
        let o = options(&d, "/c".into()).unwrap();
        assert_eq!((o.cache.cap, o.cache.floor), (Some(64 << 20), 64 << 20));
        assert_eq!(o.linger, Some(std::time::Duration::from_secs(5)));
    }

    #[test]
    fn contradicting_cache_options_are_named() {
        let line = "sandbox-workspace daemon --foreground --cache-low 90 --cache-high 85";
        let Command::Daemon(d) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!("not a daemon") };
        assert!(options(&d, "/c".into()).unwrap_err().to_string().contains("watermarks"));
    }
}
