//! `mount` and `unmount`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hiloop_engine::catalog::LostWindow;
use hiloop_engine::workspace::Durability;
use hiloop_env::Env;
use hiloop_types::{Error, Result, ResultExt};
use tokio::signal::unix::{SignalKind, signal};

use super::args::{DurabilityArg, Mount, Unmount, default_cache_dir};
use super::failure::{Done, Failure, usage};
use super::live::target;
use super::node::{self, Logging};
use super::output::Output;
use super::progress::{Progress, of_daemon};
use super::size::show_size;
use super::store;
use crate::daemon::client::Client;
use crate::daemon::find::{self, Target};
use crate::daemon::protocol::{Call, MountCall, Mounted, Opening, Selector, Unmounted, Wanted};
use crate::daemon::start;
use crate::fuse;

/// A mount that answers `statfs` within this time is alive; one without a daemon answers at once that it is not connected.
const ANSWERS: Duration = Duration::from_secs(5);
/// Dead mounts that may lie on top of each other on one mount point.
const STACKED: usize = 16;
/// Time that the unmount at the end of `mount --foreground` may take.
const FOREGROUND_END: Duration = Duration::from_secs(60);

pub(super) async fn mount(args: Mount, out: Output, env: &Env, logging: &Logging) -> Done {
    let url = store::url(&args.store)?;
    let what = usage(wanted(&args))?;
    if !matches!(&what, Wanted::Workspace(Opening { origin: None, .. })) {
        // What it starts from cannot be in a store that is not there, and a typing error must not make one.
        store::exists(&url)?;
    }
    clear_dead(&args.mountpoint).await?;
    let mountpoint = fuse::check_mountpoint(&args.mountpoint)?;
    if mountpoint.to_str().is_none() {
        return Err(Error::invalid("the path of the mount point is not UTF-8")
            .at(mountpoint.display())
            .hint("mount on another path")
            .into());
    }
    refuse_inside_ours(&std::path::absolute(&args.node.cache_dir).at(args.node.cache_dir.display())?, "cache directory")?;
    let (client, arguments) = node::client(&args.node, args.store.ca_file.as_deref(), logging)?;
    if let Some(dir) = url.directory() {
        refuse_inside_ours(dir, "store")?;
    }
    if mountpoint.starts_with(client.dir()) {
        return Err(Error::invalid("the mount point is inside the cache directory").at(mountpoint.display()).into());
    }
    let call = MountCall { store: url.to_string(), what, mountpoint, nosuid: false };
    let progress = Progress::start("mount", out, env);
    let mounted: Mounted = start::call(&client, &arguments, env, Call::Mount(call), &mut of_daemon(&progress)).await?;
    drop(progress);
    warn_of_loss(&mounted, out);
    out.result(&mounted, |m| {
        if m.read_only {
            return format!("{} is mounted read-only on {}", m.workspace, m.mountpoint.display());
        }
        let new = if m.created { "new workspace" } else { "workspace" };
        let kept = match m.recovered_operations {
            0 => String::new(),
            n => format!("; {n} operations that were not published yet are there"),
        };
        format!("{new} {} is mounted on {} (epoch {}{kept})", m.workspace, m.mountpoint.display(), m.epoch)
    })?;
    if args.foreground { stay(&client, &mounted, out).await } else { Ok(()) }
}

/// What the options ask for.
fn wanted(args: &Mount) -> Result<Wanted> {
    let origin = match (&args.base, &args.from) {
        (Some(base), _) => Some(format!("base:{base}")),
        (None, Some(from)) if from.contains(':') => Some(from.clone()),
        (None, Some(from)) => Some(format!("snapshot:{from}")),
        (None, None) => None,
    };
    let what = || Error::invalid("--read-only mounts one tree").hint("name it by one of --workspace, --base and --from");
    match (args.read_only, &args.workspace, origin) {
        (true, Some(w), None) => Ok(Wanted::ReadOnly(format!("workspace:{w}"))),
        (true, None, Some(origin)) => Ok(Wanted::ReadOnly(origin)),
        (true, ..) => Err(what()),
        (false, None, _) => Err(Error::invalid("no workspace is named").hint("give --workspace NAME")),
        (false, Some(w), origin) => Ok(Wanted::Workspace(Opening {
            name: w.clone(),
            origin,
            durability: match args.durability {
                DurabilityArg::Local => Durability::Local,
                DurabilityArg::Replicated => Durability::Replicated,
            },
            backlog_limit: args.backlog_limit,
            quota: args.quota,
            take_over: args.take_over,
            domain: args.domain.clone(),
            existing: false,
        })),
    }
}

fn warn_of_loss(mounted: &Mounted, out: Output) {
    match mounted.lost_window {
        LostWindow::None => {}
        LostWindow::Possible => out.note(&format!(
            "warning: the writer before did not give workspace {} back; what it accepted and did not publish is not here (its node may `recover` it)",
            mounted.workspace
        )),
        LostWindow::Known { accepted, published } => out.note(&format!(
            "warning: the writer before accepted up to {accepted} and published up to {published}; the rest of workspace {} is not here (its node may `recover` it)",
            mounted.workspace
        )),
    }
}

/// Until the mount is gone, or a signal asks for that.
async fn stay(client: &Client, mounted: &Mounted, out: Output) -> Done {
    let of = Selector { mountpoint: Some(mounted.mountpoint.clone()), workspace: Some(mounted.workspace.clone()), store: None };
    let (mut term, mut int) = (signal(SignalKind::terminate()).at("SIGTERM")?, signal(SignalKind::interrupt()).at("SIGINT")?);
    let mut quiet = |_| {};
    tokio::select! {
        gone = client.call::<()>(Call::Wait(of.clone()), &mut quiet) => return Ok(gone?),
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    let call = Call::Unmount { of, timeout_ms: FOREGROUND_END.as_millis() as u64 };
    let unmounted: Unmounted = client.call(call, &mut |_| {}).await?;
    report(&unmounted, out)
}

pub(super) async fn unmount(args: Unmount, out: Output, env: &Env) -> Done {
    let target = target(&args.target)?;
    let found = match find::one(&target, args.daemon.cache_dir.as_deref(), &default_cache_dir()).await {
        Ok(found) => found,
        Err(e) => return Err(clear_unserved(&target, e).await.into()),
    };
    let progress = Progress::start("unmount", out, env);
    let call = Call::Unmount { of: found.selector(), timeout_ms: args.timeout.as_millis() as u64 };
    let unmounted: Unmounted = found.client.call(call, &mut of_daemon(&progress)).await?;
    drop(progress);
    report(&unmounted, out)
}

fn report(unmounted: &Unmounted, out: Output) -> Done {
    out.result(unmounted, |u| match u.left_bytes {
        0 => format!("workspace {} is unmounted; published up to {}", u.workspace, u.published),
        left => {
            format!("workspace {} is unmounted; published up to {}, {} are only on this node", u.workspace, u.published, show_size(left))
        }
    })?;
    if unmounted.busy {
        out.note("note: files were still open in it; their next use fails");
    }
    if unmounted.left_bytes == 0 {
        return Ok(());
    }
    out.note("hint: what is left is in this node's journal: mount the workspace here again, or, where it was taken over, `recover` it");
    Err(Failure::Shown)
}

/// A mount point whose daemon is gone is cleared all the same; the command fails nevertheless, since nothing was published.
async fn clear_unserved(target: &Target, e: Error) -> Error {
    let Target::Mountpoint(path) = target else { return e };
    match clear_dead(path).await {
        Ok(true) => Error::new(hiloop_types::ErrorKind::Closed, "the mount is cleared away; its daemon is gone, so nothing was published")
            .at(path.display())
            .hint("mount the workspace again with the same --cache-dir: every accepted byte is there"),
        Ok(false) => e,
        Err(other) => other,
    }
}

/// Detaches mounts of ours at `path` whose daemon is dead. True where there was one.
///
/// # Errors
/// Those of the system; that a live mount is there is left to the caller.
async fn clear_dead(path: &Path) -> Result<bool> {
    let path = std::path::absolute(path).at(path.display())?;
    let mut cleared = false;
    for _ in 0..STACKED {
        let place = match here(&path)? {
            Some(place) => place,
            None => return Ok(cleared),
        };
        if !is_dead(place.clone()).await {
            return Ok(cleared);
        }
        fuse::detach(&place)?;
        tracing::info!(mountpoint = %place.display(), "a mount without a daemon was cleared away");
        cleared = true;
    }
    Ok(cleared)
}

/// The mount of ours at `path`, also where the way to it has symbolic links.
fn here(path: &Path) -> Result<Option<PathBuf>> {
    for place in std::iter::once(path.to_owned()).chain(find::other_spellings(path)) {
        if fuse::find_mount(&place)?.is_some_and(|m| m.is_ours()) {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// A daemon whose directory or store is served by a daemon, maybe itself, would wait for itself.
fn refuse_inside_ours(path: &Path, what: &str) -> Result<()> {
    let mounts = fuse::mounts()?;
    match mounts.iter().find(|m| m.is_ours() && path.starts_with(&m.mountpoint)) {
        Some(m) => Err(Error::invalid(format!("the {what} is inside a mounted workspace, {}", m.mountpoint.display()))
            .at(path.display())
            .hint("put it on a local file system")),
        None => Ok(()),
    }
}

/// `statfs` is always a request; without a daemon it fails at once. A mount that does not answer at all is alive.
async fn is_dead(path: PathBuf) -> bool {
    let asked = tokio::task::spawn_blocking(move || nix::sys::statfs::statfs(&path).err());
    matches!(tokio::time::timeout(ANSWERS, asked).await, Ok(Ok(Some(nix::errno::Errno::ENOTCONN | nix::errno::Errno::ECONNABORTED))))
}
