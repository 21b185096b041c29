//! Who writes: epoch and session (`protocols.md` 3.2).

use std::fmt;

use crate::text::serde_as_text;

/// Counter of openings for write of one workspace; part of every key that the opening writes. Never restarts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct WriterEpoch(pub u64);

impl fmt::Display for WriterEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! random64 {
    ($(#[$m:meta])* $name:ident) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// Parses up to sixteen hexadecimal digits.
            pub fn from_hex(s: &str) -> Option<Self> {
                u64::from_str_radix(s, 16).ok().map(Self)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
        serde_as_text!($name, "sixteen hexadecimal digits", Self::from_hex);
    };
}

random64!(
    /// Random identity of one opening of a workspace for write.
    Session
);
random64!(
    /// Random identity of one attempt at a conditional write: an ambiguous answer is settled by reading it back.
    Nonce
);
