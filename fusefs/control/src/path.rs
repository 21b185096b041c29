//! Unix sockets: their paths, and binding them.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use hiloop_types::{Error, ErrorKind, Result, ResultExt};
use tokio::net::{UnixListener, UnixStream};

/// Longest path that a Unix socket address holds, bytes.
pub const SOCKET_PATH_MAX: usize = 107;

/// Checks that `path` can be the address of a socket.
///
/// # Errors
/// `Invalid`: relative, too long, not UTF-8, or without a file name.
pub fn check_path(path: &Path) -> Result<&str> {
    let bad = |why: String, hint: &str| Err(Error::invalid(why).at(path.display()).hint(hint));
    let len = path.as_os_str().as_bytes().len();
    if !path.is_absolute() || path.file_name().is_none() {
        return bad("the path of the socket is not that of a file".into(), "use an absolute path");
    }
    if len > SOCKET_PATH_MAX {
        return bad(format!("the path of the socket is {len} bytes long; a socket address holds {SOCKET_PATH_MAX}"), "use a shorter path");
    }
    match path.to_str() {
        Some(text) if !text.contains('\0') => Ok(text),
        _ => bad("the path of the socket is not UTF-8".into(), "use another path"),
    }
}

/// The directory of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// Its own: made where it is missing, mode 0700, nobody else's.
    Own,
    /// Somebody else's, who made it (the kubelet's plugin directory).
    Given,
}

/// Binds a socket of mode 0600. What a dead process left there is replaced.
///
/// # Errors
/// `Conflict` where something listens there already, or something else than a socket is there; `Denied` for a directory that is open to
/// others; `Invalid` for a path that cannot be; those of the file system.
pub async fn bind(socket: &Path, directory: Directory) -> Result<UnixListener> {
    check_path(socket)?;
    if directory == Directory::Own {
        own_directory(socket.parent().unwrap_or(Path::new("/")))?;
    }
    replace(socket).await?;
    let listener = UnixListener::bind(socket).at(socket.display())?;
    fs::set_permissions(socket, Permissions::from_mode(0o600)).at(socket.display())?;
    Ok(listener)
}

fn own_directory(dir: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).at(dir.display())?;
    let meta = fs::metadata(dir).at(dir.display())?;
    let me = nix::unistd::geteuid().as_raw();
    if meta.uid() != me {
        return Err(Error::new(ErrorKind::Denied, format!("the directory of the socket belongs to user {}", meta.uid()))
            .at(dir.display())
            .hint("give the socket a directory of its own"));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(Error::new(
            ErrorKind::Denied,
            format!("the directory of the socket is open to others (mode {:o})", meta.mode() & 0o777),
        )
        .at(dir.display())
        .hint(format!("give the socket a directory of its own, or close this one: chmod 700 {}", dir.display())));
    }
    Ok(())
}

async fn replace(socket: &Path) -> Result<()> {
    match fs::symlink_metadata(socket) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::io(socket.display(), &e)),
        Ok(m) if !m.file_type().is_socket() => {
            return Err(Error::conflict("something else than a socket is there")
                .at(socket.display())
                .hint("remove it, or use another path"));
        }
        // Only whoever answers is alive.
        Ok(_) => match UnixStream::connect(socket).await {
            Ok(_) => {
                return Err(Error::conflict("another process listens on the socket")
                    .at(socket.display())
                    .hint("one per node: stop the other one, or give this one another socket"));
            }
            Err(_) => fs::remove_file(socket).at(socket.display())?,
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_address_holds_is_taken() {
        let fits = format!("/{}", "d".repeat(SOCKET_PATH_MAX - 1));
        assert!(check_path(Path::new(&fits)).is_ok());
        let e = check_path(Path::new(&format!("{fits}x"))).unwrap_err();
        assert!(e.to_string().contains("108 bytes") && e.to_string().contains("shorter"), "{e}");
        for bad in ["relative/sock", "/", "/a/..", ""] {
            assert!(check_path(Path::new(bad)).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let sock = temp.path().join("dir/s.sock");
        let first = bind(&sock, Directory::Own).await.unwrap();
        assert_eq!(fs::metadata(&sock).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(sock.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert!(bind(&sock, Directory::Own).await.unwrap_err().to_string().contains("another process listens"));
        drop(first);
        drop(bind(&sock, Directory::Own).await.expect("nobody listens any more"));
        fs::remove_file(&sock).unwrap();
        fs::write(&sock, "x").unwrap();
        assert!(bind(&sock, Directory::Own).await.unwrap_err().to_string().contains("something else"));
        fs::set_permissions(sock.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(bind(&sock, Directory::Own).await.unwrap_err().kind(), ErrorKind::Denied);
        let long = temp.path().join("x".repeat(120));
        assert!(bind(&long, Directory::Own).await.unwrap_err().to_string().contains("107"));
    }
}
