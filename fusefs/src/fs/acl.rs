//! POSIX access control lists.
//!
//! Stored as the kernel's extended attributes `system.posix_acl_access` and `system.posix_acl_default`: version (u32, 2), then per
//! entry tag (u16), permissions (u16) and id (u32), little endian. The kernel enforces them; here they are kept in step with the
//! mode (acl(5)): the owner, mask and other entries *are* the mode's three groups of bits, so an ACL that says no more than the
//! mode is not stored.

use hiloop_engine::workspace::{Read, Txn};
use hiloop_manifest::schema::{Attr, FileKind};
use hiloop_types::Ino;

use super::{FsError, FsResult};

/// Name of the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the default ACL, which directories hand down.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ace {
    tag: u16,
    perm: u32,
    id: u32,
}

/// A well-formed list: owner, named users, group, named groups, mask, other, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Ace>);

impl Acl {
    /// Reads the kernel's form; `None` where it is malformed or incomplete (a list with named entries needs a mask).
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || !rest.len().is_multiple_of(8) {
            return None;
        }
        let mut list = Vec::with_capacity(rest.len() / 8);
        let mut named = false;
        let mut last = 0;
        for e in rest.chunks_exact(8) {
            let tag = u16::from_le_bytes([e[0], e[1]]);
            let perm = u32::from(u16::from_le_bytes([e[2], e[3]]));
            let id = u32::from_le_bytes([e[4], e[5], e[6], e[7]]);
            let repeatable = tag == USER || tag == GROUP;
            if perm > 7 || !tag.is_power_of_two() || tag > OTHER || tag < last || (tag == last && !repeatable) {
                return None;
            }
            named |= repeatable;
            last = tag;
            list.push(Ace { tag, perm, id });
        }
        let acl = Self(list);
        let has = |t| acl.0.iter().any(|e| e.tag == t);
        (has(USER_OBJ) && has(GROUP_OBJ) && has(OTHER) && (!named || has(MASK))).then_some(acl)
    }

    /// The kernel's form.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.0.len() * 8);
        out.extend(VERSION.to_le_bytes());
        for e in &self.0 {
            out.extend(e.tag.to_le_bytes());
            out.extend((e.perm as u16).to_le_bytes());
            out.extend(e.id.to_le_bytes());
        }
        out
    }

    /// True where the mode says it all.
    fn is_minimal(&self) -> bool {
        self.0.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// Permissions that the mode's group bits stand for: the mask, or the group where there is none.
    fn group_class(&mut self) -> Option<&mut Ace> {
        let tag = if self.0.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ };
        self.entry(tag)
    }

    fn entry(&mut self, tag: u16) -> Option<&mut Ace> {
        self.0.iter_mut().find(|e| e.tag == tag)
    }

    /// The nine permission bits as the list defines them.
    fn mode(&mut self) -> u32 {
        let perm = |e: Option<&mut Ace>| e.map_or(0, |e| e.perm);
        perm(self.entry(USER_OBJ)) << 6 | perm(self.group_class()) << 3 | perm(self.entry(OTHER))
    }

    /// Takes over the nine bits of `mode` (chmod).
    fn set_mode(&mut self, mode: u32) {
        let set = |e: Option<&mut Ace>, perm: u32| {
            if let Some(e) = e {
                e.perm = perm & 7;
            }
        };
        set(self.entry(USER_OBJ), mode >> 6);
        set(self.group_class(), mode >> 3);
        set(self.entry(OTHER), mode);
    }
}

/// Mode and lists of a new inode.
#[derive(Debug)]
pub(super) struct Inherited {
    pub(super) mode: u32,
    access: Option<Acl>,
    default: Option<Vec<u8>>,
}

impl Inherited {
    /// Stores the lists under the inode, once it exists.
    pub(super) fn store(self, tx: &mut Txn<'_>, ino: Ino) {
        if let Some(acl) = self.access {
            tx.set_xattr(ino, ACCESS, &acl.encode());
        }
        if let Some(acl) = self.default {
            tx.set_xattr(ino, DEFAULT, &acl);
        }
    }
}

/// What a new inode gets from its directory: with a default ACL the list limited by the mode, without one the mode less the umask.
pub(super) fn inherit(r: &impl Read, dir: Ino, kind: FileKind, mode: u32, umask: u32) -> FsResult<Inherited> {
    let mode = mode & 0o7777;
    if kind == FileKind::Symlink {
        return Ok(Inherited { mode: 0o777, access: None, default: None });
    }
    let Some(stored) = r.xattr(dir, DEFAULT)? else {
        return Ok(Inherited { mode: mode & !(umask & 0o777), access: None, default: None });
    };
    let mut acl = Acl::parse(&stored).ok_or_else(|| malformed(dir))?;
    let limited = acl.mode() & mode & 0o777;
    acl.set_mode(limited);
    Ok(Inherited {
        mode: (mode & !0o777) | limited,
        access: (!acl.is_minimal()).then_some(acl),
        default: (kind == FileKind::Directory).then(|| stored.to_vec()),
    })
}

/// Brings the access ACL in step with the mode just set.
pub(super) fn follow_chmod(tx: &mut Txn<'_>, ino: Ino, attr: &Attr) -> FsResult<()> {
    if attr.kind == FileKind::Symlink {
        return Ok(());
    }
    if let Some(stored) = tx.xattr(ino, ACCESS)? {
        let mut acl = Acl::parse(&stored).ok_or_else(|| malformed(ino))?;
        acl.set_mode(attr.mode);
        tx.set_xattr(ino, ACCESS, &acl.encode());
    }
    Ok(())
}

/// Stores an access ACL and takes its bits into the mode; an ACL that the mode can express is not kept.
pub(super) fn set_access(tx: &mut Txn<'_>, ino: Ino, attr: &mut Attr, value: &[u8]) -> FsResult<()> {
    let mut acl = Acl::parse(value).ok_or(FsError::Errno(libc::EINVAL))?;
    attr.mode = (attr.mode & !0o777) | acl.mode();
    if !acl.is_minimal() {
        tx.set_xattr(ino, ACCESS, &acl.encode());
    } else if tx.xattr(ino, ACCESS)?.is_some() {
        tx.remove_xattr(ino, ACCESS);
    }
    Ok(())
}

fn malformed(ino: Ino) -> FsError {
    hiloop_types::Error::corrupt(format!("the stored access control list of inode {ino} is malformed")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u32, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, perm, id)| Ace { tag, perm, id }).collect())
    }

    const NOBODY: u32 = u32::MAX;

    #[test]
    fn the_kernels_form_round_trips() {
        let a =
            acl(&[(USER_OBJ, 7, NOBODY), (USER, 6, 1000), (USER, 4, 1001), (GROUP_OBJ, 5, NOBODY), (MASK, 7, NOBODY), (OTHER, 0, NOBODY)]);
        let bytes = a.encode();
        assert_eq!(&bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(Acl::parse(&bytes), Some(a));
    }

    #[test]
    fn malformed_lists_are_refused() {
        let missing_mask = acl(&[(USER_OBJ, 7, NOBODY), (USER, 6, 1), (GROUP_OBJ, 5, NOBODY), (OTHER, 0, NOBODY)]);
        let unordered = acl(&[(GROUP_OBJ, 7, NOBODY), (USER_OBJ, 6, NOBODY), (OTHER, 0, NOBODY)]);
        let twice = acl(&[(USER_OBJ, 7, NOBODY), (USER_OBJ, 6, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHER, 0, NOBODY)]);
        let wide = acl(&[(USER_OBJ, 8, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHER, 0, NOBODY)]);
        for bad in [missing_mask, unordered, twice, wide] {
            assert_eq!(Acl::parse(&bad.encode()), None, "{bad:?}");
        }
        for bad in [&[][..], &[2, 0, 0, 0], &[1, 0, 0, 0], &[2, 0, 0, 0, 1]] {
            assert_eq!(Acl::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn group_bits_are_the_mask() {
        let mut a = acl(&[(USER_OBJ, 7, NOBODY), (USER, 7, 1), (GROUP_OBJ, 5, NOBODY), (MASK, 6, NOBODY), (OTHER, 4, NOBODY)]);
        assert_eq!(a.mode(), 0o764);
        a.set_mode(0o610);
        assert_eq!(a.mode(), 0o610);
        assert_eq!(a.entry(GROUP_OBJ).map(|e| e.perm), Some(5), "chmod changes the mask, not the owning group");
        let mut minimal = acl(&[(USER_OBJ, 6, NOBODY), (GROUP_OBJ, 4, NOBODY), (OTHER, 4, NOBODY)]);
        assert!(minimal.is_minimal());
        assert_eq!(minimal.mode(), 0o644);
    }
}
