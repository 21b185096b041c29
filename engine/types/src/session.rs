//! Who writes: epoch and session (`protocols.md` 3.2).

use std::fmt;

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
        // Sixteen hexadecimal digits: a JSON number would lose the low bits in many readers.
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let s = String::deserialize(d)?;
                u64::from_str_radix(&s, 16).map(Self).map_err(|_| serde::de::Error::custom(format!("not a {}: {s:?}", stringify!($name))))
            }
        }
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
