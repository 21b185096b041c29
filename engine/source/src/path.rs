//! Names inside a source: checked, split, and shown in messages.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hiloop_types::limits::NAME_MAX;
use hiloop_types::{Error, Result};

use crate::limits::{SourceLimits, beyond};

/// Longest name that is shown whole in a message, bytes.
const SHOWN_MAX: usize = 400;

/// A name fit for a message: hostile bytes escaped, hostile lengths cut, the root as `.`.
pub(crate) fn shown(path: &[u8]) -> String {
    let cut = &path[..path.len().min(SHOWN_MAX)];
    let text = match std::str::from_utf8(cut) {
        _ if path.is_empty() => ".".to_owned(),
        Ok(text) => text.escape_debug().to_string(),
        Err(_) => cut.escape_ascii().to_string(),
    };
    if cut.len() < path.len() { format!("{text}... ({} bytes)", path.len()) } else { text }
}

pub(crate) fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// The components of a name found in an archive, `.` and doubled slashes dropped; none for the root itself.
pub(crate) fn components<'a>(name: &'a [u8], limits: &SourceLimits) -> Result<Vec<&'a [u8]>> {
    let refuse = |why: &str| Err(Error::invalid(why).at(shown(name)).hint("make the archive with relative names inside its tree"));
    match name.first() {
        None => return refuse("the entry has no name"),
        Some(b'/') => return refuse("the name is absolute"),
        Some(_) => {}
    }
    let mut parts = Vec::new();
    for part in name.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".") {
        if part == b".." {
            return refuse("the name holds `..`");
        }
        check_name(part).map_err(|e| e.at(shown(name)))?;
        if parts.len() == limits.depth {
            return Err(beyond("depth", limits.depth as u64, "components").at(shown(name)));
        }
        parts.push(part);
    }
    Ok(parts)
}

/// One component, as a file system would take it.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::invalid(format!("a component of {} bytes is longer than a name may be ({NAME_MAX})", name.len())));
    }
    if name.contains(&0) {
        return Err(Error::invalid("the name holds a zero byte"));
    }
    Ok(())
}

pub(crate) fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.join(&b'/')
}

/// An error that came through `Read`: one of ours unwrapped, the operating system's as it is, anything else is what a decoder says
/// about broken bytes.
pub(crate) fn lift(e: &io::Error) -> Error {
    if let Some(ours) = e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return ours.clone();
    }
    match e.kind() {
        _ if e.raw_os_error().is_some() => Error::io("read", e),
        io::ErrorKind::UnexpectedEof => truncated(),
        _ => Error::corrupt(format!("the packed data are damaged: {e}")),
    }
}

pub(crate) fn truncated() -> Error {
    Error::corrupt("the archive ends in the middle").hint("it was cut short; copy or make it again")
}
