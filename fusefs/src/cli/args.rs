//! The command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use hiloop_types::{Name, NameKind};

use super::size::{parse_duration, parse_size};
use crate::telemetry::LogFormat;

const EXAMPLES: &str = "\
Examples:
  sandbox-workspace publish-base --store file:///srv/store --build-id debian-13 ./rootfs
  sandbox-workspace mount --store file:///srv/store --workspace demo --base debian-13 /mnt/demo
  sandbox-workspace snapshot --wait --name before-tests /mnt/demo
  sandbox-workspace fork --store file:///srv/store snapshot:before-tests try-1 try-2 try-3
  sandbox-workspace unmount /mnt/demo

Stores: s3://BUCKET?prefix=P&endpoint=HOST&region=R, gs://BUCKET?prefix=P, file:///DIRECTORY?prefix=P.
Credentials come from the surroundings (AWS_*, GOOGLE_*, instance metadata), never from the URL.
Names are 1 to 128 of a-z, 0-9, '.', '_', '-', starting with a letter or digit.
SOURCE is base:NAME, snapshot:NAME, workspace:NAME, or a name that only one of them has.
TARGET is a mount point, or the name of a mounted workspace.
Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Durable, branchable workspaces over an object store
#[derive(Debug, Parser)]
#[command(name = "sandbox-workspace", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// Print results as JSON, one object per line, and errors as {"error": {"code", "message"}}
    #[arg(long, global = true)]
    pub json: bool,
    /// What to log to standard error, as tracing directives: a level, or target=level, separated by commas [default: warn; daemon: info]
    #[arg(long, global = true, value_name = "FILTER", env = "HILOOP_LOG", hide_env_values = true, help_heading = "Logging")]
    pub log: Option<String>,
    /// How log lines look
    #[arg(long, global = true, value_enum, default_value_t, help_heading = "Logging")]
    pub log_format: LogFormat,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish a directory, a tar or an OCI image layout as an immutable base
    PublishBase(PublishBase),
    /// Mount a workspace, creating it where it does not exist
    Mount(Mount),
    /// Cut a consistent point of a mounted workspace
    Snapshot(Snapshot),
    /// Make new workspaces from a snapshot, base or workspace
    Fork(Fork),
    /// Wait until all accepted writes of a mounted workspace are published
    Flush(Live),
    /// Show the durability ladder, backlog, cache and requests
    Status(Status),
    /// List bases, workspaces or snapshots of a store
    List(List),
    /// Show where a workspace, snapshot or base came from, and what was lost on the way
    Lineage(OneSource),
    /// Show the paths in which two trees differ
    Diff(Diff),
    /// Show how much a tree holds, and how much of that it shares
    Du(OneSource),
    /// Write a tree into a directory, without mounting it
    Export(Export),
    /// Delete snapshots, workspaces or bases; `gc` frees their content
    Delete(Delete),
    /// Collect packs that nothing names any more
    Gc(Gc),
    /// Check that everything reachable exists; exit code 1 where it does not
    Fsck(Fsck),
    /// Unmount: drain, publish, give the head back
    Unmount(Unmount),
    /// Turn writes that a fenced or returned node still holds into new workspaces
    Recover(Recover),
    /// Start the daemon of a cache directory by hand; `mount` does it by itself
    Daemon(Daemon),
    /// Check what `daemon` would run with, and print it
    CheckConfig(Daemon),
    /// Ask the daemon of this node over its control socket
    Ctl(Ctl),
    /// Look at what a keeper holds, or cut a mount off, also where no daemon lives
    Keeper(Keeper),
    /// Have the kernel write back what was changed in a mount: the daemon's helper
    #[command(hide = true)]
    SyncMount {
        /// The mount point
        mountpoint: PathBuf,
    },
    /// Print a completion script for a shell
    Completions {
        /// For which shell
        shell: Shell,
    },
}

/// Which store.
#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// URL of the store
    #[arg(long, value_name = "URL", env = "HILOOP_STORE", hide_env_values = true)]
    pub store: Option<String>,
    /// Certificates (PEM) of a private authority to trust beside the system's
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// Which daemon.
#[derive(Clone, Debug, Args)]
pub struct DaemonDir {
    /// Cache directory of the daemon to ask [default: all daemons of this machine are asked]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
}

/// How a daemon is started; without effect where one runs already for the cache directory.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Daemon (where none runs yet for the cache directory)")]
pub struct NodeArgs {
    /// Directory of the node: journal, cache, index
    #[arg(long, value_name = "DIR", default_value_os_t = default_cache_dir())]
    pub cache_dir: PathBuf,
    /// Name of this node in heartbeats and heads [default: the host name]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub node_name: Option<Name>,
    /// Entries of the disk cache leave this long after their last use
    #[arg(long, value_name = "DURATION", default_value = "25h", value_parser = parse_duration)]
    pub cache_ttl: Duration,
    /// Percent of the cache file system in use above which the oldest entries leave
    #[arg(long, value_name = "PERCENT", default_value_t = 85, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub cache_high: u8,
    /// Percent down to which they leave
    #[arg(long, value_name = "PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub cache_low: u8,
    /// Time between the decision to evict an entry and its deletion
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub cache_delete_delay: Duration,
    /// Bytes below which others that fill the disk cannot shrink the cache
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub cache_floor: u64,
    /// Bytes that the cache takes for a file system of its own, beside the real one [default: none]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_cap: Option<u64>,
    /// Memory for chunks
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    pub memory_chunks: u64,
    /// Memory for directory and attribute nodes
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_size)]
    pub memory_nodes: u64,
    /// Time that SIGTERM leaves the daemon for publishing
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub grace: Duration,
    /// Send traces and metrics of the daemon to this OTLP endpoint (gRPC), http://HOST:4317 or https://HOST:4317 [default: off]
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Pace of heartbeats
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, hide = true)]
    pub heartbeat_interval: Option<Duration>,
    /// How long a newcomer watches a writer elsewhere
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, hide = true)]
    pub heartbeat_watch: Option<Duration>,
}

/// `publish-base`
#[derive(Debug, Args)]
pub struct PublishBase {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Name of the base; the same name with the same content is no error and uploads nothing
    #[arg(long, value_name = "ID", value_parser = base_name)]
    pub build_id: Name,
    /// Dedup domain; chunks are shared only within one
    #[arg(long, value_name = "NAME", default_value = "public", value_parser = domain_name)]
    pub domain: Name,
    /// Take over an unfinished publish of the same build id without watching whether its publisher lives
    #[arg(long)]
    pub take_over: bool,
    /// Directory, tar file (also gzip, zstd; `-`: from standard input), or OCI image layout directory
    #[arg(value_name = "SOURCE")]
    pub source: String,
}

/// What `fsync` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArg {
    /// The node's disk
    Local,
    /// The store
    Replicated,
}

/// `mount`
#[derive(Debug, Args)]
pub struct Mount {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The workspace; with --read-only its published state, or leave it out and name --base or --from
    #[arg(long, value_name = "NAME", value_parser = workspace_name, required_unless_present = "read_only")]
    pub workspace: Option<Name>,
    /// Base that the workspace starts from if it does not exist
    #[arg(long, value_name = "ID", value_parser = base_name, conflicts_with = "from")]
    pub base: Option<Name>,
    /// Snapshot (or other SOURCE) that the workspace starts from if it does not exist
    #[arg(long, value_name = "SNAPSHOT")]
    pub from: Option<String>,
    /// What `fsync` waits for
    #[arg(long, value_enum, default_value = "local")]
    pub durability: DurabilityArg,
    /// Unpublished bytes at which writers wait [default: 1GiB, under --durability=replicated 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub backlog_limit: Option<u64>,
    /// Bytes that the workspace may hold, 0 for no limit; kept with it and inherited by forks [default: as before]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub quota: Option<u64>,
    /// Fence a writer on another node at once; what it has not published stays there for `recover`
    #[arg(long)]
    pub take_over: bool,
    /// Mount a tree as it stands now, without opening anything for write; any number of such mounts may exist
    #[arg(long, conflicts_with_all = ["take_over", "quota", "backlog_limit", "domain"])]
    pub read_only: bool,
    /// Dedup domain of a new, empty workspace; one with a source stays in the source's
    #[arg(long, value_name = "NAME", value_parser = domain_name)]
    pub domain: Option<Name>,
    /// Stay until it is unmounted; SIGINT and SIGTERM unmount it
    #[arg(long)]
    pub foreground: bool,
    #[command(flatten)]
    pub node: NodeArgs,
    /// An empty directory
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: PathBuf,
}

/// `snapshot`
#[derive(Debug, Args)]
pub struct Snapshot {
    /// Name of the snapshot [default: workspace, time, a random tail]
    #[arg(long, value_name = "NAME", value_parser = snapshot_name)]
    pub name: Option<Name>,
    /// Return only once the snapshot is in the store
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub daemon: DaemonDir,
    /// Mount point or workspace
    pub target: String,
}

/// `fork`
#[derive(Debug, Args)]
pub struct Fork {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Publish a workspace that is mounted on this machine first; else its last published state is forked
    #[arg(long)]
    pub flush: bool,
    /// Dedup domain of children of a public base; all others inherit theirs
    #[arg(long, value_name = "NAME", value_parser = domain_name)]
    pub domain: Option<Name>,
    /// Bytes that each child may hold, 0 for no limit [default: inherited]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub quota: Option<u64>,
    #[command(flatten)]
    pub daemon: DaemonDir,
    /// What to fork
    pub source: String,
    /// Names of the children
    #[arg(value_name = "NEW", required = true, value_parser = workspace_name)]
    pub children: Vec<Name>,
}

/// A mounted workspace.
#[derive(Debug, Args)]
pub struct Live {
    #[command(flatten)]
    pub daemon: DaemonDir,
    /// Mount point or workspace
    pub target: String,
}

/// `status`
#[derive(Debug, Args)]
pub struct Status {
    /// Print the daemon's metrics as Prometheus text
    #[arg(long, conflicts_with = "target")]
    pub prometheus: bool,
    #[command(flatten)]
    pub daemon: DaemonDir,
    /// Mount point or workspace [default: whole daemons]
    pub target: Option<String>,
}

/// What `list` lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Listed {
    /// Published bases, and those being published
    Bases,
    /// Workspaces
    Workspaces,
    /// Snapshots
    Snapshots,
}

/// `list`
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    pub store: StoreArgs,
    /// What to list
    #[arg(value_enum)]
    pub what: Listed,
}

/// A command over one source.
#[derive(Debug, Args)]
pub struct OneSource {
    #[command(flatten)]
    pub store: StoreArgs,
    /// base:NAME, snapshot:NAME, workspace:NAME, or a name that only one of them has
    pub source: String,
}

/// `diff`
#[derive(Debug, Args)]
pub struct Diff {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The older tree, as a SOURCE
    pub a: String,
    /// The newer tree, as a SOURCE
    pub b: String,
}

/// `export`
#[derive(Debug, Args)]
pub struct Export {
    #[command(flatten)]
    pub store: StoreArgs,
    /// What to export: base:NAME, snapshot:NAME, workspace:NAME, or a name that only one of them has
    pub source: String,
    /// Where to: a directory that is absent or empty; nothing is written outside of it
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// `fsck`
#[derive(Debug, Args)]
pub struct Fsck {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Read every pack and verify every digest
    #[arg(long)]
    pub deep: bool,
    /// Check only this tree [default: all bases, snapshots and workspaces]
    pub source: Option<String>,
}

/// What `delete` deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeletedArg {
    /// A snapshot
    Snapshot,
    /// A workspace
    Workspace,
    /// A base
    Base,
}

/// `delete`
#[derive(Debug, Args)]
pub struct Delete {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Also a workspace that is open for write: what its writer has not published is then lost
    #[arg(long)]
    pub force: bool,
    /// What the names name
    #[arg(value_enum)]
    pub kind: DeletedArg,
    /// Names
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}

/// `gc`
#[derive(Debug, Args)]
pub struct Gc {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Say what would be deleted and delete nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Leave packs that are younger; 0s is safe beside live writers
    #[arg(long, value_name = "DURATION", default_value = "72h", value_parser = parse_duration)]
    pub grace: Duration,
    /// Remove the lease or intent of a holder that is gone; one that still lives fails by name
    #[arg(long, value_name = "NONCE")]
    pub drop: Option<String>,
}

/// `unmount`
#[derive(Debug, Args)]
pub struct Unmount {
    /// Time for publishing; after it the rest stays in the node's journal and goes on being published
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub daemon: DaemonDir,
    /// Mount point or workspace
    pub target: String,
}

/// `recover`
#[derive(Debug, Args)]
pub struct Recover {
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub node: NodeArgs,
}

/// `daemon`, `check-config`. Every flag is also an environment variable: `HILOOP_` and its name in upper case with underscores.
#[derive(Debug, Args)]
pub struct Daemon {
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Configuration (TOML): the names of these flags as keys. Flags win over the environment, the environment over the file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen for privileged agents of the node here, about the workspaces of --store
    /// [default with --config: /run/hiloop/sandbox-workspace-control/control.sock]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
    /// State directory of the kubelet: neither the cache nor the control socket may lie in it
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,
    /// Socket of the keeper (`hiloop-keeper`), which holds the mounts while no daemon does: they outlive this one, and one that is started
    /// again takes them over
    #[arg(long, value_name = "PATH")]
    pub keeper: Option<PathBuf>,
    /// Stay in the foreground and log to standard error; else it goes on by itself once it is ready
    #[arg(long)]
    pub foreground: bool,
    /// End this long after the last workspace is gone [default: stay until SIGTERM]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub linger: Option<Duration>,
    /// Started by a client: a session of its own, the outcome of the start on standard output
    #[arg(long, hide = true, requires = "foreground")]
    pub detached: bool,
    /// Started by `recover`: goes on with the whole prefix of a damaged journal
    #[arg(long, hide = true)]
    pub keep_prefix: bool,
}

/// `keeper`
#[derive(Debug, Args)]
pub struct Keeper {
    /// Socket of the keeper
    #[arg(long, value_name = "PATH", env = "HILOOP_KEEPER")]
    pub keeper: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub call: KeeperCall,
}

/// What a keeper is asked for.
#[derive(Debug, Subcommand)]
pub enum KeeperCall {
    /// Show the mounts that it holds
    List,
    /// End a mount that nobody serves any more: its users get errors instead of waiting
    Abort {
        /// Mount point, or number of its connection
        target: String,
    },
}

/// `ctl`
#[derive(Debug, Args)]
pub struct Ctl {
    /// Control socket of the daemon
    #[arg(long, value_name = "PATH", env = "HILOOP_CONTROL_SOCKET", default_value = hiloop_control::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Time that the call may take; what it asked for goes on after that
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// What to ask
    #[command(subcommand)]
    pub call: CtlCall,
}

/// The calls of `ctl`.
#[derive(Debug, Subcommand)]
pub enum CtlCall {
    /// Who answers
    Info,
    /// Make the workspace of a Kubernetes claim, or adopt a prepared one
    Create {
        /// NAMESPACE/NAME
        claim: String,
        /// Base that a new workspace starts from [default: nothing]
        #[arg(long, value_name = "ID", value_parser = base_name)]
        base: Option<Name>,
        /// Bytes that it must be able to hold [default: any]
        #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
        size: u64,
    },
    /// Delete a workspace for good; it must not be open
    Delete {
        /// Its name
        #[arg(value_parser = workspace_name)]
        workspace: Name,
    },
    /// What the store knows about a workspace, or a base
    Describe {
        /// NAME of a workspace, NAMESPACE/NAME of a claim, or base:NAME
        what: String,
    },
    /// Open a workspace that exists for write, and mount it
    Attach {
        /// Its name
        #[arg(value_parser = workspace_name)]
        workspace: Name,
        /// An empty directory
        target: PathBuf,
        /// What `fsync` waits for
        #[arg(long, value_enum, default_value = "local")]
        durability: DurabilityArg,
        /// Fence a writer on another node at once
        #[arg(long)]
        take_over: bool,
    },
    /// End a mount; what is not published in time goes on being published
    Detach {
        /// The mount point
        target: PathBuf,
        /// Time for publishing before the answer
        #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
        flush: Duration,
    },
    /// The mounts of the daemon
    List,
    /// State of the daemon, or of one workspace
    Status {
        /// Its name
        #[arg(value_parser = workspace_name)]
        workspace: Option<Name>,
    },
    /// Cut a consistent point of a mounted workspace
    Snapshot {
        /// The workspace
        #[arg(value_parser = workspace_name)]
        workspace: Name,
        /// Name of the snapshot [default: made up]
        #[arg(long, value_name = "NAME", value_parser = snapshot_name)]
        name: Option<Name>,
        /// Return only once it is in the store
        #[arg(long)]
        wait: bool,
    },
    /// Whether a snapshot is in the store
    SnapshotStatus {
        /// Its name
        #[arg(value_parser = snapshot_name)]
        name: Name,
    },
    /// Make new workspaces from a SOURCE
    Fork {
        /// base:NAME, snapshot:NAME or workspace:NAME
        source: String,
        /// Names of the children
        #[arg(value_name = "NEW", required = true, value_parser = workspace_name)]
        children: Vec<Name>,
    },
    /// Publish all accepted writes of a mounted workspace
    Flush {
        /// Its name
        #[arg(value_parser = workspace_name)]
        workspace: Name,
    },
    /// Empty the disk cache of what nobody uses
    Evict,
    /// Refuse new mounts from now on and publish everything; exit code 0 only when all is replicated
    Drain {
        /// Time for publishing
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
        deadline: Duration,
    },
    /// Print what happens to mounts, until it is interrupted
    Watch,
    /// Say what is wrong on this node and what helps; exit code 1 where something is. Works without a daemon
    Doctor,
}

fn named(kind: NameKind, text: &str) -> Result<Name, String> {
    Name::new(kind, text).map_err(|e| e.to_string())
}
fn workspace_name(text: &str) -> Result<Name, String> {
    named(NameKind::Workspace, text)
}
fn base_name(text: &str) -> Result<Name, String> {
    named(NameKind::Base, text)
}
fn snapshot_name(text: &str) -> Result<Name, String> {
    named(NameKind::Snapshot, text)
}
fn domain_name(text: &str) -> Result<Name, String> {
    named(NameKind::Domain, text)
}
fn node_name(text: &str) -> Result<Name, String> {
    named(NameKind::Node, text)
}

/// The cache directory where none is named: of the system for root, of the user for others.
pub(super) fn default_cache_dir() -> PathBuf {
    if nix::unistd::geteuid().is_root() {
        return PathBuf::from("/var/lib/hiloop/sandbox-workspace/cache");
    }
    user_cache_dir(std::env::var_os("XDG_CACHE_HOME").as_deref().map(Path::new), std::env::home_dir().as_deref())
}

fn user_cache_dir(xdg: Option<&Path>, home: Option<&Path>) -> PathBuf {
    let own = xdg.filter(|p| p.is_absolute()).map(Path::to_owned).or_else(|| home.map(|h| h.join(".cache")));
    own.unwrap_or_else(std::env::temp_dir).join("hiloop/workspace")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_a_help_text() {
        fn check(c: &clap::Command) {
            assert!(c.get_about().is_some(), "{} has no help", c.get_name());
            for a in c.get_arguments().filter(|a| !a.is_hide_set()) {
                assert!(a.get_help().is_some(), "{} of {} has no help", a.get_id(), c.get_name());
            }
            c.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn users_have_a_cache_directory_of_their_own() {
        let dir = |x: Option<&str>, h: Option<&str>| user_cache_dir(x.map(Path::new), h.map(Path::new));
        assert_eq!(dir(Some("/x"), Some("/h")), Path::new("/x/hiloop/workspace"));
        assert_eq!(dir(Some("rel"), Some("/h")), Path::new("/h/.cache/hiloop/workspace"));
        assert_eq!(dir(None, Some("/h")), Path::new("/h/.cache/hiloop/workspace"));
    }

    #[test]
    fn the_contracts_spellings_are_read() {
        for line in [
            "publish-base --store file:///s --build-id b1 /tree",
            "mount --store file:///s --workspace w --base b --cache-dir /c --durability replicated --backlog-limit 64MiB --quota 1GiB --take-over --foreground /mnt",
            "mount --store file:///s --workspace w --from snap /mnt",
            "snapshot --name n --wait /mnt",
            "fork --store file:///s --flush workspace:w a b c",
            "flush /mnt",
            "status",
            "status --json w",
            "list bases --store file:///s",
            "lineage w --store file:///s",
            "mount --store file:///s --read-only --from snapshot:s /mnt",
            "diff base:a workspace:b",
            "du snapshot:a",
            "export snapshot:a /dir",
            "fsck --deep",
            "delete snapshot a b --force",
            "gc --dry-run --grace 0s",
            "unmount --timeout 5s /mnt",
            "recover --store file:///s --cache-dir /c",
            "daemon --cache-dir /c --foreground",
            "keeper --keeper /run/k list",
            "keeper --keeper /run/k abort /mnt",
            "completions bash",
        ] {
            Cli::try_parse_from(std::iter::once("sandbox-workspace").chain(line.split(' '))).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        for bad in [
            "mount --workspace Bad /mnt",
            "mount --workspace w --base b --from s /mnt",
            "mount /mnt",
            "unmount --timeout 5 /mnt",
            "gc --grace soon",
            "fork x",
            "list packs",
        ] {
            assert!(Cli::try_parse_from(std::iter::once("sandbox-workspace").chain(bad.split(' '))).is_err(), "{bad}");
        }
    }
}
