//! Where the socket may lie, and binding it.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hiloop_control::check_path;
use hiloop_types::{Error, ErrorKind, Result, ResultExt};
use tokio::net::{UnixListener, UnixStream};

/// Refuses a cache directory or socket inside the kubelet's state directory, and the other way round, with symbolic links resolved:
/// pods reach what lies in there.
///
/// # Errors
/// `Invalid`, naming both.
pub fn check(kubelet_root: &Path, cache_dir: &Path, socket: &Path) -> Result<()> {
    check_path(socket)?;
    let root = resolved(kubelet_root)?;
    let socket_dir = socket.parent().unwrap_or(socket);
    for (what, path) in [("cache directory", cache_dir), ("directory of the control socket", socket_dir)] {
        let real = resolved(path)?;
        let inside = if real.starts_with(&root) {
            format!("the {what} is inside the kubelet's directory {}", kubelet_root.display())
        } else if root.starts_with(&real) {
            format!("the {what} holds the kubelet's directory {}", kubelet_root.display())
        } else {
            continue;
        };
        return Err(Error::invalid(inside).at(path.display()).hint("choose a path outside of it: pods could reach it there"));
    }
    Ok(())
}

/// The path without symbolic links, as far as it exists.
fn resolved(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).at(path.display())?;
    if path.components().any(|c| c == std::path::Component::ParentDir) {
        return Err(Error::invalid("the path has `..` in it").at(path.display()).hint("write it without"));
    }
    for there in path.ancestors() {
        match there.canonicalize() {
            Ok(real) => {
                let rest = path.strip_prefix(there).unwrap_or(Path::new(""));
                return Ok(if rest.as_os_str().is_empty() { real } else { real.join(rest) });
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io(there.display(), &e)),
        }
    }
    Ok(path)
}

/// Binds, mode 0600 in a directory of mode 0700 that belongs to this user.
pub(super) async fn bind(socket: &Path) -> Result<UnixListener> {
    check_path(socket)?;
    let dir = socket.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(dir).at(dir.display())?;
    let meta = fs::metadata(dir).at(dir.display())?;
    let me = nix::unistd::geteuid().as_raw();
    if meta.uid() != me {
        return Err(Error::new(ErrorKind::Denied, format!("the directory of the control socket belongs to user {}", meta.uid()))
            .at(dir.display())
            .hint("give the socket a directory of its own"));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(Error::new(
            ErrorKind::Denied,
            format!("the directory of the control socket is open to others (mode {:o})", meta.mode() & 0o777),
        )
        .at(dir.display())
        .hint(format!("give the socket a directory of its own, or close this one: chmod 700 {}", dir.display())));
    }
    match fs::symlink_metadata(socket) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::io(socket.display(), &e)),
        Ok(m) if !m.file_type().is_socket() => {
            return Err(Error::conflict("something else than a socket is there")
                .at(socket.display())
                .hint("remove it, or use another path"));
        }
        // Whoever has the cache directory's lock is the daemon; but another directory's daemon may listen here.
        Ok(_) => match UnixStream::connect(socket).await {
            Ok(_) => {
                return Err(Error::conflict("another daemon listens on the control socket")
                    .at(socket.display())
                    .hint("one daemon per node: stop the other one, or give this one another socket"));
            }
            Err(_) => fs::remove_file(socket).at(socket.display())?,
        },
    }
    let listener = UnixListener::bind(socket).at(socket.display())?;
    fs::set_permissions(socket, Permissions::from_mode(0o600)).at(socket.display())?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nesting_is_refused_in_both_directions_and_through_links() {
        let temp = tempfile::tempdir().unwrap();
        let at = |p: &str| temp.path().join(p);
        fs::create_dir_all(at("kubelet/pods")).unwrap();
        fs::create_dir_all(at("run")).unwrap();
        symlink(at("kubelet"), at("link")).unwrap();
        let sock = at("run/c/s.sock");
        check(&at("kubelet"), &at("kubelet2"), &sock).expect("a longer name is another directory");
        for (root, cache, socket, word) in [
            ("kubelet", "kubelet/cache", "run/c/s", "cache directory is inside"),
            ("kubelet", "link/not/there", "run/c/s", "cache directory is inside"),
            ("link", "kubelet/cache", "run/c/s", "cache directory is inside"),
            ("kubelet/pods", "kubelet", "run/c/s", "cache directory holds"),
            ("kubelet", "cache", "kubelet/s", "control socket is inside"),
            ("run/c/kubelet", "cache", "run/c/s", "control socket holds"),
        ] {
            let e = check(&at(root), &at(cache), &at(socket)).expect_err(word);
            assert!(e.to_string().contains(word), "{e}");
        }
        assert!(check(&at("kubelet"), &at("x/../kubelet"), &sock).is_err());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let sock = temp.path().join("dir/s.sock");
        let first = bind(&sock).await.unwrap();
        assert_eq!(fs::metadata(&sock).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(sock.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert!(bind(&sock).await.unwrap_err().to_string().contains("another daemon listens"));
        drop(first);
        drop(bind(&sock).await.expect("nobody listens any more"));
        fs::remove_file(&sock).unwrap();
        fs::write(&sock, "x").unwrap();
        assert!(bind(&sock).await.unwrap_err().to_string().contains("something else"));
        fs::set_permissions(sock.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(bind(&sock).await.unwrap_err().kind(), ErrorKind::Denied);
        let long = temp.path().join("x".repeat(120));
        assert!(bind(&long).await.unwrap_err().to_string().contains("107"));
    }
}
