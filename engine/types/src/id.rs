//! Content ids, inode numbers and journal sequence numbers.

use std::fmt;

use crate::text::serde_as_text;

macro_rules! digest {
    ($(#[$m:meta])* $name:ident) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = 32;
            /// The raw digest.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
            /// 64 lower-case hexadecimal digits.
            pub fn to_hex(&self) -> String {
                self.0.iter().map(|b| format!("{b:02x}")).collect()
            }
            /// Parses 64 hexadecimal digits, with or without the `blake3:` prefix.
            pub fn from_hex(s: &str) -> Option<Self> {
                let s = s.strip_prefix("blake3:").unwrap_or(s).as_bytes();
                if s.len() != 64 {
                    return None;
                }
                let mut out = [0u8; 32];
                for (o, pair) in out.iter_mut().zip(s.chunks_exact(2)) {
                    let hi = (pair[0] as char).to_digit(16)?;
                    let lo = (pair[1] as char).to_digit(16)?;
                    *o = (hi * 16 + lo) as u8;
                }
                Some(Self(out))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "blake3:{}", self.to_hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({}…)", stringify!($name), &self.to_hex()[..12])
            }
        }

        serde_as_text!($name, "a blake3 digest", Self::from_hex);
    };
}

digest!(
    /// Identity of a chunk: keyed BLAKE3 of its plain bytes, the key being that of its dedup domain.
    ChunkId
);
digest!(
    /// Identity of a manifest node: BLAKE3 of its plain encoding.
    NodeId
);

/// Inode number, 64-bit, never reused within a workspace, kept over remount, fork and a move to another node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Ino(pub u64);

/// The root directory of every workspace (FUSE demands 1).
pub const ROOT_INO: Ino = Ino(1);

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Position of a record in a node's journal. Compared only within one (epoch, session) (`protocols.md` 3.6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Seqno(pub u64);

impl Seqno {
    /// The following number.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seqno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
