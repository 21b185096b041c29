//! The kubelet's target directories: what is mounted there, making one, taking one away. The mount table is asked, never the mount.

use std::fs;
use std::io::ErrorKind as K;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use hiloop_control::mountinfo::{self, MountEntry};
use hiloop_control::v1::Mount;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use tonic::Status;

use crate::codes::invalid;
use crate::sealed::Sealed;

/// Mounts that may lie on top of each other on one target; more is not of our making.
const STACKED: usize = 16;

/// Checks a target path by its text alone.
pub(crate) fn check(target: &str, kubelet_root: &Path) -> Result<PathBuf, Status> {
    let path = Path::new(target);
    let plain =
        path.is_absolute() && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_))) && !target.contains('\0');
    if !plain {
        return Err(invalid(format!("the target {target:?} is no absolute path without `.` and `..`")));
    }
    // Also without a slash at the end, and with none twice, as mountinfo writes it.
    let path: PathBuf = path.components().collect();
    if path == kubelet_root || !path.starts_with(kubelet_root) {
        return Err(invalid(format!("the target {target} is not inside the kubelet's directory {}", kubelet_root.display())));
    }
    Ok(path)
}

fn failed(what: &str, path: &Path, e: impl std::fmt::Display) -> Status {
    Status::internal(format!("{}: {what}: {e}", path.display()))
}

fn mounted(target: &Path) -> Result<Option<MountEntry>, Status> {
    mountinfo::find(target).map_err(|e| failed("the mount table cannot be read", target, e))
}

fn detach(target: &Path) -> Result<(), Status> {
    match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        // Gone meanwhile.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(e) => Err(failed("cannot be unmounted", target, e)),
    }
}

/// What is mounted at a target before a publish, once dead mounts of ours are taken away.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum There {
    /// Nothing.
    Nothing,
    /// A mount that the daemon serves, of this workspace.
    Served(String),
}

/// Clears dead mounts of ours away. `served` is what the daemon answers; a mount of ours that is not in it has nobody behind it.
///
/// # Errors
/// `FAILED_PRECONDITION` where something else is mounted.
pub(crate) fn clear(target: &Path, served: &[Mount]) -> Result<There, Status> {
    for _ in 0..STACKED {
        let Some(m) = mounted(target)? else { return Ok(There::Nothing) };
        if !m.is_ours() {
            let what = format!("{}: something else is mounted there: {} ({})", target.display(), m.source, m.fstype);
            return Err(Status::failed_precondition(what));
        }
        let by_daemon = |s: &&Mount| s.alive && (s.device_major, s.device_minor) == (m.major, m.minor) && Path::new(&s.target) == target;
        if let Some(s) = served.iter().find(by_daemon) {
            return Ok(There::Served(s.workspace.clone()));
        }
        tracing::warn!(target = %target.display(), source = m.source, "a dead mount is taken away");
        detach(target)?;
    }
    Err(Status::failed_precondition(format!("{}: more than {STACKED} mounts lie on top of each other", target.display())))
}

/// Makes the target: an empty directory that nobody can write to, root neither where the file system can keep it out, so that what is
/// written while nothing is mounted there fails. Nothing may be mounted at it.
pub(crate) fn make(target: &Path, sealed: &Sealed) -> Result<(), Status> {
    make_closed(target, sealed)?;
    sealed.seal(target).map_err(|e| failed("cannot be sealed", target, e))
}

fn make_closed(target: &Path, sealed: &Sealed) -> Result<(), Status> {
    match fs::DirBuilder::new().mode(0o000).create(target) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == K::AlreadyExists => {}
        Err(e) if e.kind() == K::NotFound => {
            return Err(Status::failed_precondition(format!("{}: the directory above does not exist", target.display())));
        }
        Err(e) => return Err(failed("cannot be made", target, e)),
    }
    let kind = fs::symlink_metadata(target).map_err(|e| failed("cannot be looked at", target, e))?.file_type();
    if !kind.is_dir() {
        let what = if kind.is_symlink() { "a symbolic link" } else { "no directory" };
        return Err(invalid(format!("the target {} is {what}", target.display())));
    }
    let mut entries = fs::read_dir(target).map_err(|e| failed("cannot be read", target, e))?;
    if let Some(Ok(e)) = entries.next() {
        return Err(Status::failed_precondition(format!(
            "{}: the target is not empty ({:?}): what is in it would be hidden; move it away",
            target.display(),
            e.file_name()
        )));
    }
    // Of a publish before this one, whose mount is gone: its mode could not be changed.
    sealed.unseal(target).map_err(|e| failed("cannot be unsealed", target, e))?;
    fs::set_permissions(target, fs::Permissions::from_mode(0o000)).map_err(|e| failed("cannot be closed", target, e))
}

/// Lets the kubelet remove a target, unless something is mounted on it.
pub(crate) fn open_up(target: &Path, sealed: &Sealed) -> Result<(), Status> {
    if mounted(target)?.is_some() {
        return Ok(());
    }
    sealed.unseal(target).map_err(|e| failed("cannot be unsealed", target, e))
}

/// Takes mounts of ours and the directory away. What is gone already is done.
pub(crate) fn remove(target: &Path, sealed: &Sealed) -> Result<(), Status> {
    for _ in 0..=STACKED {
        match mounted(target)? {
            None => break,
            Some(m) if m.is_ours() => detach(target)?,
            Some(m) => {
                let what = format!("{}: something else is mounted there: {} ({})", target.display(), m.source, m.fstype);
                return Err(Status::failed_precondition(what));
            }
        }
    }
    open_up(target, sealed)?;
    match fs::remove_dir(target) {
        Err(e) if e.kind() == K::NotFound => Ok(()),
        Err(e) if e.kind() == K::NotADirectory => {
            Err(Status::failed_precondition(format!("{}: is no directory, so not ours", target.display())))
        }
        Err(e) if e.kind() == K::DirectoryNotEmpty => Err(Status::failed_precondition(format!(
            "{}: holds files that were written while nothing was mounted there; move them away, they are in no workspace",
            target.display()
        ))),
        other => other.map_err(|e| failed("cannot be removed", target, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn targets_lie_in_the_kubelets_directory_by_their_text() {
        let root = Path::new("/var/lib/kubelet");
        assert_eq!(check("/var/lib/kubelet/pods//x/", root).unwrap(), Path::new("/var/lib/kubelet/pods/x"));
        for bad in ["", "pods/x", "/var/lib/kubelet", "/var/lib/kubelet/../x", "/var/lib/kubelet2/x", "/var/lib/kubelet/x\0"] {
            assert_eq!(check(bad, root).unwrap_err().code(), Code::InvalidArgument, "{bad:?}");
        }
    }

    #[test]
    fn a_target_is_made_closed_and_only_where_nothing_is_lost() {
        let temp = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |p: &str| temp.path().join(p);
        let sealed = Sealed::open(&at("state")).unwrap();
        let (make, remove) = (|p: &Path| make(p, &sealed), |p: &Path| remove(p, &sealed));
        make(&at("new")).unwrap();
        assert_eq!(fs::metadata(at("new")).unwrap().permissions().mode() & 0o777, 0);
        assert!(fs::write(at("new/f"), "x").is_err(), "though root asks");
        make(&at("new")).expect("again");
        remove(&at("new")).unwrap();
        remove(&at("new")).expect("gone is done");
        assert_eq!(make(&at("no/parent")).unwrap_err().code(), Code::FailedPrecondition);
        fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink("elsewhere", at("link")).unwrap();
        for odd in ["file", "link"] {
            assert_eq!(make(&at(odd)).unwrap_err().code(), Code::InvalidArgument, "{odd}");
            assert_eq!(remove(&at(odd)).unwrap_err().code(), Code::FailedPrecondition, "{odd}");
        }
        fs::create_dir(at("full")).unwrap();
        fs::write(at("full/written-locally"), "x").unwrap();
        for refused in [make(&at("full")), remove(&at("full"))] {
            assert_eq!(refused.unwrap_err().code(), Code::FailedPrecondition);
        }
        assert!(at("full/written-locally").exists());
    }

    #[test]
    fn what_others_mounted_is_left_alone() {
        let proc = Path::new("/proc");
        assert_eq!(clear(proc, &[]).unwrap_err().code(), Code::FailedPrecondition);
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(remove(proc, &Sealed::open(temp.path()).unwrap()).unwrap_err().code(), Code::FailedPrecondition);
        assert_eq!(clear(Path::new("/nothing/here"), &[]).unwrap(), There::Nothing);
    }
}
