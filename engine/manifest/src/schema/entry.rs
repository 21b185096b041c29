//! Directory entries, by name and by index.

use hiloop_types::{Ino, Result, limits};

use super::{FileKind, Reader, Writer};

/// What a name in a directory points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The inode.
    pub ino: Ino,
    /// Its type, so that readdir needs no attributes.
    pub kind: FileKind,
    /// Index of the entry in its directory.
    pub index: u64,
}

/// An entry found by index, with its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexEntry {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// The name.
    pub name: Vec<u8>,
}

impl Entry {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(24);
        w.u8(self.kind as u8);
        w.uint(self.ino.0);
        w.uint(self.index);
        w.0
    }
    /// Reads the stored form.
    pub fn decode(b: &[u8]) -> Result<Self> {
        let mut r = Reader::new(b, "directory entry");
        let kind = r.u8("kind")?;
        let kind = FileKind::from_u8(kind).ok_or_else(|| r.bad("kind", kind))?;
        let e = Self { kind, ino: Ino(r.uint("inode")?), index: r.uint("index")? };
        r.end()?;
        Ok(e)
    }
}

impl IndexEntry {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(16 + self.name.len());
        w.u8(self.kind as u8);
        w.uint(self.ino.0);
        w.bytes(&self.name);
        w.0
    }
    /// Reads the stored form.
    pub fn decode(b: &[u8]) -> Result<Self> {
        let mut r = Reader::new(b, "directory index entry");
        let kind = r.u8("kind")?;
        let kind = FileKind::from_u8(kind).ok_or_else(|| r.bad("kind", kind))?;
        let e = Self { kind, ino: Ino(r.uint("inode")?), name: r.bytes(limits::NAME_MAX, "name")?.to_vec() };
        r.end()?;
        Ok(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixtures_and_round_trips() {
        let e = Entry { ino: Ino(300), kind: FileKind::Directory, index: 2 };
        assert_eq!(e.encode(), [2, 0xac, 2, 2]);
        assert_eq!(Entry::decode(&e.encode()).unwrap(), e);
        let i = IndexEntry { ino: Ino(1), kind: FileKind::File, name: b"a\xff".to_vec() };
        assert_eq!(i.encode(), [1, 1, 2, b'a', 0xff]);
        assert_eq!(IndexEntry::decode(&i.encode()).unwrap(), i);
        assert!(Entry::decode(&[9, 1, 1]).is_err() && IndexEntry::decode(&[1, 1, 9]).is_err());
    }
}
