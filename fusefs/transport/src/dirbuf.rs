//! Buffers for the entries of a directory. They are laid out as the kernel wants them, so that they are sent as they are; a
//! transport that wants single entries reads them back.

use std::time::Duration;

use crate::answer::{Attr, Entry};
use crate::encode::{ENTRY, entry};
use crate::request::Time;

/// Inode number, cookie, length of the name, type.
const DIRENT: usize = 24;

/// One entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// Inode number.
    pub ino: u64,
    /// Where to go on after this entry.
    pub cookie: u64,
    /// Type: the bits of `st_mode` shifted right by 12 (DT_DIR and so on).
    pub kind: u32,
    /// Name.
    pub name: &'a [u8],
}

/// The answer to READDIR: at most as many bytes as the request asks for.
#[derive(Debug)]
pub struct Listing {
    bytes: Vec<u8>,
    size: usize,
}

/// The answer to READDIRPLUS.
#[derive(Debug)]
pub struct ListingPlus {
    bytes: Vec<u8>,
    size: usize,
}

fn put_dirent(out: &mut Vec<u8>, d: &Dirent<'_>) {
    out.extend(d.ino.to_ne_bytes());
    out.extend(d.cookie.to_ne_bytes());
    out.extend((d.name.len() as u32).to_ne_bytes());
    out.extend(d.kind.to_ne_bytes());
    out.extend(d.name);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// Reads what [`put_dirent`] wrote; the entry and what follows it.
fn get_dirent(bytes: &[u8]) -> Option<(Dirent<'_>, &[u8])> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b));
    let half = |at: usize| bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b));
    let len = half(16)? as usize;
    let name = bytes.get(DIRENT..DIRENT + len)?;
    let rest = bytes.get((DIRENT + len).next_multiple_of(8)..)?;
    Some((Dirent { ino: word(0)?, cookie: word(8)?, kind: half(20)?, name }, rest))
}

impl Listing {
    /// For a request of `size` bytes.
    pub fn new(size: u32) -> Self {
        Self { bytes: Vec::with_capacity(size as usize), size: size as usize }
    }

    /// Adds an entry; false where it does not fit, and nothing is added.
    pub fn add(&mut self, d: &Dirent<'_>) -> bool {
        let fits = self.bytes.len() + (DIRENT + d.name.len()).next_multiple_of(8) <= self.size;
        if fits {
            put_dirent(&mut self.bytes, d);
        }
        fits
    }

    /// The entries.
    pub fn iter(&self) -> impl Iterator<Item = Dirent<'_>> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (d, after) = get_dirent(rest)?;
            rest = after;
            Some(d)
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl ListingPlus {
    /// For a request of `size` bytes.
    pub fn new(size: u32) -> Self {
        Self { bytes: Vec::with_capacity(size as usize), size: size as usize }
    }

    /// Adds an entry; false where it does not fit, and nothing is added. Without `node` (or with node 0) the kernel learns the name
    /// only, as from READDIR, and counts no reference.
    pub fn add(&mut self, d: &Dirent<'_>, node: Option<&Entry>) -> bool {
        let fits = self.bytes.len() + (ENTRY + DIRENT + d.name.len()).next_multiple_of(8) <= self.size;
        if fits {
            self.bytes.extend(node.map_or([0; ENTRY], entry));
            put_dirent(&mut self.bytes, d);
        }
        fits
    }

    /// The entries, with what was given for them (times of creation are not in the protocol).
    pub fn iter(&self) -> impl Iterator<Item = (Dirent<'_>, Option<Entry>)> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (node, after) = rest.split_first_chunk::<ENTRY>()?;
            let (d, after) = get_dirent(after)?;
            rest = after;
            Some((d, read_entry(node)))
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn read_entry(bytes: &[u8; ENTRY]) -> Option<Entry> {
    let words = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect::<Vec<_>>();
    let halves = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_ne_bytes(*b)).collect::<Vec<_>>();
    let time = |n: usize| Time { secs: words[8 + n] as i64, nanos: halves[22 + n] };
    let attr = Attr {
        ino: words[5],
        size: words[6],
        blocks: words[7],
        atime: time(0),
        mtime: time(1),
        ctime: time(2),
        btime: Time::default(),
        mode: halves[25],
        nlink: halves[26],
        uid: halves[27],
        gid: halves[28],
        rdev: halves[29],
        blksize: halves[30],
    };
    (words[0] != 0).then_some(Entry {
        nodeid: words[0],
        generation: words[1],
        entry_valid: Duration::new(words[2], halves[8]),
        attr_valid: Duration::new(words[3], halves[9]),
        attr,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_bounded_and_read_back() {
        let d = |n: u64, name| Dirent { ino: n, cookie: n + 1, kind: 8, name };
        let mut l = Listing::new(64);
        assert!(l.add(&d(1, b"a")) && l.add(&d(2, b"12345678")));
        assert!(!l.add(&d(3, b"")), "64 bytes are full");
        assert_eq!(l.bytes().len(), 64);
        assert_eq!(l.iter().collect::<Vec<_>>(), [d(1, b"a"), d(2, b"12345678")]);
    }

    #[test]
    fn entries_with_and_without_a_node_read_back() {
        let attr = Attr { ino: 5, size: 6, blocks: 7, mode: 0o100644, nlink: 1, uid: 2, gid: 3, rdev: 4, blksize: 4096, ..Attr::default() };
        let attr =
            Attr { atime: Time { secs: -1, nanos: 8 }, mtime: Time { secs: 9, nanos: 10 }, ctime: Time { secs: 11, nanos: 12 }, ..attr };
        let e = Entry { nodeid: 5, generation: 1, entry_valid: Duration::new(2, 3), attr_valid: Duration::new(4, 5), attr };
        let d = |name| Dirent { ino: 5, cookie: 6, kind: 8, name };
        let mut l = ListingPlus::new(1000);
        assert!(l.add(&d(&[b'x'; 255]), Some(&e)) && l.add(&d(b".."), None));
        assert_eq!(l.iter().collect::<Vec<_>>(), [(d(&[b'x'; 255]), Some(e)), (d(b".."), None)]);
        assert!(!l.add(&d(&[b'y'; 255]), Some(&e)) || l.bytes().len() <= 1000);
    }
}
