//! The daemon's socket: `<cache directory>/daemon.sock`, mode 0600 in a directory of mode 0700.
//!
//! A Unix socket address holds 107 bytes; cache directories may be deeper, so the directory is opened and the socket reached through
//! `/proc/self/fd`.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hiloop_types::{Error, Result, ResultExt};
use tokio::net::{UnixListener, UnixStream};

const NAME: &str = "daemon.sock";

/// Makes the cache directory where it is missing, closes it to others, and returns it absolute and without symbolic links.
///
/// # Errors
/// Those of the file system; `Denied` where it belongs to somebody else.
pub fn prepare(dir: &Path) -> Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).at(dir.display())?;
    let dir = dir.canonicalize().at(dir.display())?;
    let meta = fs::metadata(&dir).at(dir.display())?;
    let me = nix::unistd::geteuid().as_raw();
    if meta.uid() != me {
        return Err(Error::new(hiloop_types::ErrorKind::Denied, format!("the cache directory belongs to user {}", meta.uid()))
            .at(dir.display())
            .hint("use a cache directory of your own: --cache-dir"));
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).at(dir.display())?;
    }
    Ok(dir)
}

/// Keeps the directory open while the path is in use.
struct Address {
    _dir: File,
    path: PathBuf,
}

fn address(dir: &Path) -> std::io::Result<Address> {
    let handle = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_PATH).open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{NAME}", handle.as_raw_fd()));
    Ok(Address { _dir: handle, path })
}

/// Listens; the caller holds the directory's lock, so that a socket that is there is a dead daemon's.
///
/// # Errors
/// Those of the file system.
pub(super) fn listen(dir: &Path) -> Result<UnixListener> {
    remove(dir)?;
    let at = address(dir).at(dir.display())?;
    let listener = UnixListener::bind(&at.path).at(dir.join(NAME).display())?;
    fs::set_permissions(&at.path, Permissions::from_mode(0o600)).at(dir.join(NAME).display())?;
    Ok(listener)
}

/// Takes the socket away.
///
/// # Errors
/// Those of the file system.
pub(super) fn remove(dir: &Path) -> Result<()> {
    match fs::remove_file(dir.join(NAME)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(dir.join(NAME).display(), &e)),
        _ => Ok(()),
    }
}

/// Connects; `None` where no daemon listens.
///
/// # Errors
/// `Denied` where the directory or the daemon is another user's, and what else the system says.
pub(super) async fn connect(dir: &Path) -> Result<Option<UnixStream>> {
    use std::io::ErrorKind as K;
    let none = |e: &std::io::Error| matches!(e.kind(), K::NotFound | K::ConnectionRefused | K::NotADirectory);
    let at = match address(dir) {
        Err(e) if none(&e) => return Ok(None),
        other => other.at(dir.display())?,
    };
    let stream = match UnixStream::connect(&at.path).await {
        Err(e) if none(&e) => return Ok(None),
        other => other.at(dir.join(NAME).display())?,
    };
    check_peer(&stream).at(dir.join(NAME).display())?;
    Ok(Some(stream))
}

/// Both ends talk only to root and to their own user.
///
/// # Errors
/// `Denied` for anybody else.
pub(super) fn check_peer(stream: &UnixStream) -> Result<()> {
    let peer = stream.peer_cred().at("the peer's credentials")?.uid();
    if may_talk(peer, nix::unistd::geteuid().as_raw()) {
        return Ok(());
    }
    Err(Error::new(hiloop_types::ErrorKind::Denied, format!("user {peer} is neither root nor the user of this process")))
}

fn may_talk(peer: u32, me: u32) -> bool {
    peer == 0 || peer == me
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_same_user_may_talk() {
        assert!(may_talk(0, 1000) && may_talk(1000, 1000) && may_talk(0, 0));
        assert!(!may_talk(1000, 0) && !may_talk(1001, 1000));
    }

    #[tokio::test]
    async fn the_socket_is_closed_to_others_and_reached_from_any_depth() {
        let temp = tempfile::tempdir().unwrap();
        let deep = temp.path().join("d".repeat(100)).join("e".repeat(100));
        let dir = prepare(&deep).unwrap();
        assert!(connect(&dir).await.unwrap().is_none());
        let listener = listen(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(dir.join(NAME)).unwrap().mode() & 0o777, 0o600);
        assert!(connect(&dir).await.unwrap().is_some());
        drop(listener);
        assert!(connect(&dir).await.unwrap().is_none(), "a socket nobody listens on is no daemon");
        assert!(connect(&temp.path().join("nothing")).await.unwrap().is_none());
        listen(&dir).expect("a dead daemon's socket is replaced");
    }
}
