//! Identities that are written as text wherever they are read by others: a JSON number would lose the low bits in many readers.

/// Serialization in the form that `Display` prints; `$parse` reads it back.
macro_rules! serde_as_text {
    ($name:ident, $what:literal, $parse:expr) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let s = <String as serde::Deserialize>::deserialize(d)?;
                $parse(&s).ok_or_else(|| serde::de::Error::custom(format!(concat!("not ", $what, ": {:?}"), s)))
            }
        }
    };
}

pub(crate) use serde_as_text;
