//! The kernel's list of mounts (proc(5), mountinfo): the only way to ask about a mount that does not block on it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use hiloop_types::{Result, ResultExt};

const FILE: &str = "/proc/self/mountinfo";
/// File system type of our mounts.
pub const FSTYPE: &str = "fuse.hiloop";

/// A mount of this mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Device number; of a FUSE mount, `minor` names its connection.
    pub major: u32,
    /// See `major`.
    pub minor: u32,
    /// `fuse.hiloop` for ours.
    pub fstype: String,
    /// `hiloop:NAME` for ours.
    pub source: String,
}

impl MountEntry {
    /// True for a mount of this program, whichever daemon serves it.
    pub fn is_ours(&self) -> bool {
        self.fstype == FSTYPE
    }

    /// The workspace of one of our mounts.
    pub fn workspace(&self) -> Option<&str> {
        self.is_ours().then(|| self.source.strip_prefix("hiloop:"))?
    }
}

/// All mounts; of several on one place the last is the visible one.
///
/// # Errors
/// Where `/proc` cannot be read.
pub fn mounts() -> Result<Vec<MountEntry>> {
    let text = std::fs::read(FILE).at(FILE)?;
    Ok(text.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// What is mounted exactly at `path`, which is compared as it stands: resolving it could block on a dead mount.
///
/// # Errors
/// As [`mounts`].
pub fn find(path: &Path) -> Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rev().find(|m| m.mountpoint == path))
}

fn parse(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    let text = |i: usize| Some(String::from_utf8_lossy(&unescape(fields.get(i)?)).into_owned());
    let device = text(2)?;
    let (major, minor) = device.split_once(':')?;
    Some(MountEntry {
        mountpoint: OsString::from_vec(unescape(fields.get(4)?)).into(),
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        fstype: text(dash + 1)?,
        source: text(dash + 2)?,
    })
}

/// Octal escapes stand for space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&b, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| b == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match octal {
            Some(d) => {
                out.push(d.iter().fold(0u8, |n, c| n.wrapping_shl(3) | (c - b'0')));
                rest = &tail[3..];
            }
            None => {
                out.push(b);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_escapes_and_optional_fields() {
        let m = parse(br"36 25 0:42 / /mnt/a\040b\134c rw,nodev shared:7 master:1 - fuse.hiloop hiloop:demo rw,user_id=0").unwrap();
        assert_eq!(m.mountpoint, Path::new("/mnt/a b\\c"));
        assert_eq!((m.major, m.minor), (0, 42));
        assert_eq!(m.workspace(), Some("demo"));
        let other = parse(b"1 0 8:1 / / rw - ext4 /dev/root rw").unwrap();
        assert!(!other.is_ours() && other.workspace().is_none());
        for bad in [&b""[..], b"1 2 3", b"a b c:d / / - x", b"36 25 0:42 / /mnt rw -"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn the_running_system_has_a_root() {
        assert!(find(Path::new("/")).unwrap().is_some());
    }
}
