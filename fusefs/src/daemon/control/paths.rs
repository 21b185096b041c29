//! Where the socket may lie.

use std::path::{Path, PathBuf};

use hiloop_control::check_path;
use hiloop_types::{Error, Result, ResultExt};

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
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
}
