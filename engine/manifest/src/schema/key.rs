//! Keys of the manifest.

use std::fmt;

use hiloop_types::{Error, Ino, Result};

const ATTR: u8 = 0x00;
const BLOCK: u8 = 0x10;
const ENTRY: u8 = 0x20;
const INDEX: u8 = 0x30;
const BACKREF: u8 = 0x40;
const XATTR: u8 = 0x50;
const ORPHAN: u8 = 0x60;

/// Set in the number that a directory's names stand under: they stand behind all inodes. Inode numbers are below it.
const NAMES: u64 = 1 << 63;

/// An encoded key. Short keys (all but long names) stay inline in the allocation they share with nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<[u8]>);

/// A key taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind<'a> {
    /// The superblock.
    Super,
    /// An inode in the orphan list.
    Orphan(Ino),
    /// Attributes of an inode.
    Attr(Ino),
    /// One block of a file.
    Block(Ino, u64),
    /// A directory entry by name.
    Entry {
        /// The directory.
        dir: Ino,
        /// Keyed hash of the name.
        hash: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A directory entry by index.
    Index(Ino, u64),
    /// A name of an inode, seen from the inode.
    BackRef {
        /// The inode.
        ino: Ino,
        /// The directory that names it.
        dir: Ino,
        /// The entry's index there.
        index: u64,
    },
    /// An extended attribute.
    Xattr(Ino, &'a [u8]),
}

/// A range of keys that share a prefix.
#[derive(Clone, PartialEq, Eq)]
pub struct Prefix(Vec<u8>);

impl Prefix {
    /// The shared bytes; also the smallest key of the range.
    pub fn start(&self) -> &[u8] {
        &self.0
    }
    /// The first key behind the range.
    pub fn end(&self) -> Vec<u8> {
        let mut e = self.0.clone();
        while let Some(last) = e.pop() {
            if last < 0xff {
                e.push(last + 1);
                return e;
            }
        }
        vec![0xff; 9]
    }
    fn of(under: u64, tag: u8) -> Self {
        let mut v = under.to_be_bytes().to_vec();
        v.push(tag);
        Self(v)
    }
    /// Everything of one inode but the names in it, if it is a directory.
    pub fn inode(ino: Ino) -> Self {
        Self(ino.0.to_be_bytes().to_vec())
    }
    /// All blocks of a file.
    pub fn blocks(ino: Ino) -> Self {
        Self::of(ino.0, BLOCK)
    }
    /// All entries of a directory by name hash.
    pub fn entries(dir: Ino) -> Self {
        Self::of(dir.0 | NAMES, ENTRY)
    }
    /// All entries of a directory by index.
    pub fn index(dir: Ino) -> Self {
        Self::of(dir.0 | NAMES, INDEX)
    }
    /// All names of an inode.
    pub fn backrefs(ino: Ino) -> Self {
        Self::of(ino.0, BACKREF)
    }
    /// All extended attributes of an inode.
    pub fn xattrs(ino: Ino) -> Self {
        Self::of(ino.0, XATTR)
    }
    /// The orphan list.
    pub fn orphans() -> Self {
        Self::of(0, ORPHAN)
    }
}

impl Key {
    /// Longest key, bytes: an entry with a name of 255 bytes.
    pub const MAX: usize = 8 + 1 + 8 + 255;

    /// A key among those of inodes. A number that no inode can have is cut: it leads to no inode that has it.
    fn build(ino: Ino, tag: u8, parts: &[&[u8]]) -> Self {
        Self::under(ino.0 & !NAMES, tag, parts)
    }
    /// A key among the names of a directory.
    fn name(dir: Ino, tag: u8, parts: &[&[u8]]) -> Self {
        Self::under(dir.0 | NAMES, tag, parts)
    }
    fn under(number: u64, tag: u8, parts: &[&[u8]]) -> Self {
        let mut v = Vec::with_capacity(9 + parts.iter().map(|p| p.len()).sum::<usize>());
        v.extend_from_slice(&number.to_be_bytes());
        v.push(tag);
        for p in parts {
            v.extend_from_slice(p);
        }
        Self(v.into_boxed_slice())
    }
    /// The superblock.
    pub fn superblock() -> Self {
        Self::build(Ino(0), ATTR, &[])
    }
    /// Orphan list entry.
    pub fn orphan(ino: Ino) -> Self {
        Self::build(Ino(0), ORPHAN, &[&ino.0.to_be_bytes()])
    }
    /// Attributes.
    pub fn attr(ino: Ino) -> Self {
        Self::build(ino, ATTR, &[])
    }
    /// Block number `block` of a file.
    pub fn block(ino: Ino, block: u64) -> Self {
        Self::build(ino, BLOCK, &[&block.to_be_bytes()])
    }
    /// Entry by name.
    pub fn entry(dir: Ino, hash: u64, name: &[u8]) -> Self {
        Self::name(dir, ENTRY, &[&hash.to_be_bytes(), name])
    }
    /// Entry by index.
    pub fn index(dir: Ino, index: u64) -> Self {
        Self::name(dir, INDEX, &[&index.to_be_bytes()])
    }
    /// Back-reference.
    pub fn backref(ino: Ino, dir: Ino, index: u64) -> Self {
        Self::build(ino, BACKREF, &[&dir.0.to_be_bytes(), &index.to_be_bytes()])
    }
    /// Extended attribute.
    pub fn xattr(ino: Ino, name: &[u8]) -> Self {
        Self::build(ino, XATTR, &[name])
    }
    /// The encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
    /// Takes bytes read from a manifest or journal; fails where they are no key.
    pub fn from_bytes(b: &[u8]) -> Result<Self> {
        KeyKind::parse(b)?;
        Ok(Self(b.into()))
    }
    /// The inode that the records from these bytes on belong to: of a key, its inode, and of a name, its directory; 0 for what belongs
    /// to none.
    pub fn owner(bytes: &[u8]) -> Ino {
        bytes.first_chunk::<8>().map_or(Ino(0), |b| Ino(u64::from_be_bytes(*b) & !NAMES))
    }
    /// Takes the key apart.
    pub fn kind(&self) -> KeyKind<'_> {
        KeyKind::parse(&self.0).expect("a Key is only built from parts or parsed bytes")
    }
}

impl<'a> KeyKind<'a> {
    /// Takes encoded bytes apart.
    pub fn parse(b: &'a [u8]) -> Result<Self> {
        let bad = || Error::corrupt(format!("manifest key {b:02x?} has no known form"));
        let (ino, rest) = b.split_first_chunk::<8>().ok_or_else(bad)?;
        let number = u64::from_be_bytes(*ino);
        let (ino, name) = (Ino(number & !NAMES), number & NAMES != 0);
        let (tag, rest) = rest.split_first().ok_or_else(bad)?;
        let one = |r: &[u8]| <[u8; 8]>::try_from(r).map(u64::from_be_bytes).map_err(|_| bad());
        Ok(match (*tag, rest.len()) {
            (ENTRY, 9..=263) if name => Self::Entry { dir: ino, hash: one(&rest[..8])?, name: &rest[8..] },
            (INDEX, 8) if name => Self::Index(ino, one(rest)?),
            _ if name => return Err(bad()),
            (ATTR, 0) if ino.0 == 0 => Self::Super,
            (ATTR, 0) => Self::Attr(ino),
            (ORPHAN, 8) if ino.0 == 0 => Self::Orphan(Ino(one(rest)?)),
            (BLOCK, 8) => Self::Block(ino, one(rest)?),
            (BACKREF, 16) => Self::BackRef { ino, dir: Ino(one(&rest[..8])?), index: one(&rest[8..])? },
            (XATTR, 1..=255) => Self::Xattr(ino, rest),
            _ => return Err(bad()),
        })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

impl std::borrow::Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Hashes entry names under a key, so that nobody can build a directory whose names collide.
#[derive(Clone, Copy)]
pub struct NameHasher([u8; 32]);

impl NameHasher {
    /// A hasher under the key that stands in the superblock.
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }
    /// The hash of `name`.
    pub fn hash(&self, name: &[u8]) -> u64 {
        let h = blake3::keyed_hash(&self.0, name);
        let (first, _) = h.as_bytes().split_first_chunk::<8>().expect("a BLAKE3 hash has 32 bytes");
        u64::from_be_bytes(*first)
    }
    /// Key of the entry `name` of `dir`.
    pub fn entry(&self, dir: Ino, name: &[u8]) -> Key {
        Key::entry(dir, self.hash(name), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip_and_sort_by_inode_then_kind_names_behind_all_inodes() {
        let keys = [
            Key::superblock(),
            Key::orphan(Ino(9)),
            Key::attr(Ino(1)),
            Key::block(Ino(1), 3),
            Key::backref(Ino(1), Ino(2), 6),
            Key::xattr(Ino(1), b"user.a"),
            Key::attr(Ino(2)),
            Key::xattr(Ino(u64::MAX >> 1), b"user.a"),
            Key::entry(Ino(1), 77, b"name"),
            Key::index(Ino(1), 5),
            Key::entry(Ino(2), 7, b"name"),
        ];
        for k in &keys {
            assert_eq!(&Key::from_bytes(k.as_bytes()).unwrap(), k);
        }
        assert!(keys.windows(2).all(|w| w[0] < w[1]), "{keys:?}");
        assert_eq!(Key::block(Ino(7), 8).kind(), KeyKind::Block(Ino(7), 8));
    }

    #[test]
    fn a_prefix_covers_its_keys_and_no_others() {
        let p = Prefix::blocks(Ino(1));
        let inside = |k: &Key| k.as_bytes() >= p.start() && k.as_bytes() < p.end().as_slice();
        assert!(inside(&Key::block(Ino(1), 0)) && inside(&Key::block(Ino(1), u64::MAX)));
        assert!(!inside(&Key::attr(Ino(1))) && !inside(&Key::entry(Ino(1), 0, b"x")) && !inside(&Key::block(Ino(2), 0)));
        let p = Prefix::index(Ino(1));
        let inside = |k: &Key| k.as_bytes() >= p.start() && k.as_bytes() < p.end().as_slice();
        assert!(inside(&Key::index(Ino(1), 0)) && inside(&Key::index(Ino(1), u64::MAX)));
        assert!(!inside(&Key::index(Ino(2), 0)) && !inside(&Key::entry(Ino(1), 0, b"x")) && !inside(&Key::attr(Ino(1))));
        assert_eq!(Prefix::inode(Ino(u64::MAX)).end(), vec![0xff; 9]);
    }

    #[test]
    fn arbitrary_bytes_are_refused_not_panicked_on() {
        let wrong_half = |k: Key| {
            let mut b = k.as_bytes().to_vec();
            b[0] ^= 0x80;
            b
        };
        let (name, attr) = (wrong_half(Key::index(Ino(1), 5)), wrong_half(Key::attr(Ino(1))));
        for b in [&[][..], &[0; 8], &[0; 10], &[1, 2, 3], &[0xff; 300], &name, &attr] {
            assert!(Key::from_bytes(b).is_err(), "{b:?}");
        }
        assert_eq!(Key::attr(Ino(u64::MAX)).kind(), KeyKind::Attr(Ino(u64::MAX >> 1)));
    }
}
