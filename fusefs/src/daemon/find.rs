//! Finding the daemon that is meant: by cache directory, or by asking all daemons of this machine.
//!
//! A daemon's command line holds its cache directory, so `/proc` is the registry: it is never stale, and nothing has to be written.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hiloop_types::{Error, Name, NameKind, Result};

use super::client::Client;
use super::protocol::{Call, MountInfo, Selector};
use crate::fuse;

/// A daemon that does not answer a question from memory within this time is not asked further.
const ANSWERS: Duration = Duration::from_secs(10);

/// The name of the program in a daemon's command line.
const PROGRAM: &str = "sandbox-workspace";
/// As much of a program's name as the kernel keeps for a process.
const COMM: usize = 15;

/// What a TARGET means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A mount point, absolute; not resolved, which could block on a dead mount.
    Mountpoint(PathBuf),
    /// A workspace.
    Workspace(Name),
}

impl Target {
    /// Reads a TARGET: what holds a slash, or is `.` or `..`, is a path; `workspace:NAME` is a name; any other word is a mount point where
    /// one of ours is mounted there in the current directory, and else the name of a workspace.
    ///
    /// # Errors
    /// `Invalid` for what is neither.
    pub fn parse(text: &str, current_dir: &Path, mounts: &[fuse::MountEntry]) -> Result<Self> {
        if let Some(name) = text.strip_prefix("workspace:") {
            return Name::new(NameKind::Workspace, name).map(Self::Workspace);
        }
        let path = lexical(&current_dir.join(text));
        let is_path = text.contains('/') || text == "." || text == "..";
        if is_path || mounts.iter().any(|m| m.is_ours() && m.mountpoint == path) {
            return Ok(Self::Mountpoint(path));
        }
        Name::new(NameKind::Workspace, text).map(Self::Workspace)
    }

    fn selector(&self) -> Selector {
        match self {
            Self::Mountpoint(m) => Selector { mountpoint: Some(m.clone()), ..Selector::default() },
            Self::Workspace(w) => Selector { workspace: Some(w.clone()), ..Selector::default() },
        }
    }
}

/// Takes `.` and `..` out of an absolute path without asking the file system.
fn lexical(path: &Path) -> PathBuf {
    use std::path::Component as C;
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            C::CurDir => {}
            C::ParentDir => drop(out.pop()),
            other => out.push(other),
        }
    }
    out
}

/// A mount and the daemon that serves it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The daemon.
    pub client: Client,
    /// The mount.
    pub mount: MountInfo,
}

impl Found {
    /// Selects exactly this mount.
    pub fn selector(&self) -> Selector {
        Selector {
            mountpoint: Some(self.mount.mountpoint.clone()),
            workspace: Some(self.mount.workspace.clone()),
            store: Some(self.mount.store.clone()),
        }
    }
}

/// The daemons that may be meant: that of `cache_dir`, or where none is named that of `default` and all that run.
pub fn candidates(cache_dir: Option<&Path>, default: &Path) -> Vec<Client> {
    if let Some(dir) = cache_dir {
        return vec![Client::new(resolved(dir))];
    }
    let mut dirs = vec![resolved(default)];
    dirs.extend(running());
    dirs.sort();
    dirs.dedup();
    dirs.into_iter().map(Client::new).collect()
}

fn resolved(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.to_owned())
}

/// Cache directories of the daemons that run in sight of this process.
fn running() -> Vec<PathBuf> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let process = |entry: fs::DirEntry| {
        let path = entry.path();
        // The command line lies in the process's memory: to read it waits for whoever is in a page fault there, of a mount that hangs
        // perhaps. The name does not.
        if fs::read(path.join("comm")).ok()?.trim_ascii_end() != &PROGRAM.as_bytes()[..COMM] {
            return None;
        }
        let command = fs::read(path.join("cmdline")).ok()?;
        let dir = cache_dir_of(&command)?;
        if dir.is_absolute() {
            return Some(dir);
        }
        Some(resolved(&fs::read_link(path.join("cwd")).ok()?.join(dir)))
    };
    processes.flatten().filter(|e| e.file_name().as_bytes().iter().all(u8::is_ascii_digit)).filter_map(process).collect()
}

/// The cache directory in a daemon's command line.
fn cache_dir_of(command: &[u8]) -> Option<PathBuf> {
    let words: Vec<&[u8]> = command.split(|b| *b == 0).collect();
    let program = Path::new(OsStr::from_bytes(words.first()?)).file_name()?;
    if program != PROGRAM || !words.contains(&&b"daemon"[..]) {
        return None;
    }
    let at = words.iter().position(|w| w.starts_with(b"--cache-dir"))?;
    let dir = match words[at].strip_prefix(b"--cache-dir=") {
        Some(dir) => dir,
        None => words.get(at + 1)?,
    };
    (!dir.is_empty()).then(|| Path::new(OsStr::from_bytes(dir)).to_owned())
}

/// All mounts that fit `of`, over `daemons`. A daemon that does not answer is passed over with a warning.
///
/// # Errors
/// Those of a daemon's answer, where there is only one to ask.
pub async fn mounts(daemons: &[Client], of: &Selector) -> Result<Vec<Found>> {
    let mut all = Vec::new();
    for client in daemons {
        let mut quiet = |_| {};
        let asked = tokio::time::timeout(ANSWERS, client.try_call::<Vec<MountInfo>>(Call::Find(of.clone()), &mut quiet)).await;
        let answer = asked.unwrap_or_else(|_| Err(Error::unavailable("the daemon does not answer").at(client.dir().display())));
        match answer {
            Ok(found) => all.extend(found.into_iter().flatten().map(|mount| Found { client: client.clone(), mount })),
            Err(e) if daemons.len() == 1 => return Err(e),
            Err(e) => tracing::debug!(error = %e, "a daemon is passed over"),
        }
    }
    Ok(all)
}

/// Finds the one mount that TARGET means.
///
/// # Errors
/// `NotFound`, `Invalid` where several fit, `Closed` for a mount whose daemon is gone.
pub async fn one(target: &Target, cache_dir: Option<&Path>, default: &Path) -> Result<Found> {
    let daemons = candidates(cache_dir, default);
    let mut found = mounts(&daemons, &target.selector()).await?;
    if let Target::Mountpoint(path) = target {
        for real in other_spellings(path) {
            if found.is_empty() {
                found = mounts(&daemons, &Target::Mountpoint(real).selector()).await?;
            }
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(last), false) => {
            let all: Vec<_> = found.iter().chain([&last]).map(|f| f.mount.mountpoint.display().to_string()).collect();
            Err(Error::invalid(format!("several mounts are meant: {}", all.join(", "))).hint("name the mount point"))
        }
        (None, _) => Err(absent(target, &daemons)?),
    }
}

/// The same place with symbolic links resolved: those on the way, and the last part where it is one itself. What the last part leads to
/// may be a dead mount and is not asked.
pub fn other_spellings(path: &Path) -> Vec<PathBuf> {
    let on_the_way = |p: &Path| Some(p.parent()?.canonicalize().ok()?.join(p.file_name()?));
    let link = std::fs::read_link(path).ok().map(|to| lexical(&path.parent().unwrap_or(path).join(to)));
    let all = [on_the_way(path), link.as_deref().and_then(on_the_way)];
    all.into_iter().flatten().filter(|p| p != path).collect()
}

fn absent(target: &Target, daemons: &[Client]) -> Result<Error> {
    let dirs: Vec<_> = daemons.iter().map(|d| d.dir().display().to_string()).collect();
    Ok(match target {
        Target::Workspace(name) => Error::not_found(format!("workspace {name} is not mounted by a daemon of this machine"))
            .at(format!("asked: {}", dirs.join(", ")))
            .hint("`status` shows what is mounted; name another cache directory with --cache-dir"),
        Target::Mountpoint(path) => match fuse::find_mount(path)? {
            Some(m) if m.is_ours() => {
                Error::new(hiloop_types::ErrorKind::Closed, format!("{} is mounted here, and no daemon serves it", m.source))
                    .at(path.display())
                    .hint("mount it again with the same --cache-dir: every accepted byte is there; `unmount` clears the place")
            }
            _ => Error::not_found("no workspace is mounted here").at(path.display()).hint("`status` shows what is mounted"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(mountpoint: &str, fstype: &str) -> fuse::MountEntry {
        fuse::MountEntry { mountpoint: mountpoint.into(), major: 0, minor: 42, fstype: fstype.into(), source: "hiloop:demo".into() }
    }

    #[test]
    fn a_target_is_a_path_or_a_name() {
        let mounts = [entry("/srv/here", fuse::FSTYPE), entry("/srv/other", "ext4")];
        let parse = |t: &str| Target::parse(t, Path::new("/srv"), &mounts).unwrap();
        let path = |p: &str| Target::Mountpoint(p.into());
        let name = |n: &str| Target::Workspace(Name::new(NameKind::Workspace, n).unwrap());
        assert_eq!(parse("/mnt/a/../b/"), path("/mnt/b"));
        assert_eq!(parse("./x"), path("/srv/x"));
        assert_eq!(parse(".."), path("/"));
        assert_eq!(parse("here"), path("/srv/here"));
        assert_eq!(parse("other"), name("other"));
        assert_eq!(parse("workspace:here"), name("here"));
        assert!(Target::parse("Not A Name", Path::new("/"), &[]).is_err());
    }

    #[test]
    fn a_daemon_is_known_by_its_command_line() {
        let line = |words: &[&str]| words.join("\0").into_bytes();
        let dir = Some(PathBuf::from("/c"));
        assert_eq!(cache_dir_of(&line(&["/usr/bin/sandbox-workspace", "daemon", "--cache-dir", "/c", "--foreground"])), dir);
        assert_eq!(cache_dir_of(&line(&["sandbox-workspace", "--json", "daemon", "--cache-dir=/c"])), dir);
        assert_eq!(cache_dir_of(&line(&["sandbox-workspace", "mount", "--cache-dir", "/c"])), None);
        assert_eq!(cache_dir_of(&line(&["vi", "daemon", "--cache-dir", "/c"])), None);
        assert_eq!(cache_dir_of(&line(&["sandbox-workspace", "daemon", "--cache-dir"])), None);
        assert_eq!(cache_dir_of(b""), None);
    }

    #[test]
    fn symbolic_links_lead_to_the_mount_point() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        fs::create_dir_all(dir.join("real/m")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("way")).unwrap();
        std::os::unix::fs::symlink("way/m", dir.join("last")).unwrap();
        assert_eq!(other_spellings(&dir.join("way/m")), [dir.join("real/m")]);
        assert_eq!(other_spellings(&dir.join("last")), [dir.join("real/m")]);
        assert!(other_spellings(&dir.join("real/m")).is_empty());
    }

    #[test]
    fn a_named_directory_is_the_only_candidate() {
        let named = candidates(Some(Path::new("/nowhere/c")), Path::new("/default"));
        assert_eq!(named, [Client::new("/nowhere/c")]);
        assert!(candidates(None, Path::new("/nowhere/default")).contains(&Client::new("/nowhere/default")));
    }
}
