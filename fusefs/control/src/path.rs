//! Paths of Unix sockets.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hiloop_types::{Error, Result};

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
}
