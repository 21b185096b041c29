//! The Kubernetes claim that a workspace belongs to, and the name that follows from it.

use std::fmt;

use crate::{Error, Name, NameKind, Result};

/// A claim: namespace and name. Written as `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    namespace: String,
    name: String,
}

/// Bytes of the hash in a volume's name: 160 bits.
const HASH: usize = 20;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl Claim {
    /// Longest namespace and name that Kubernetes has, bytes.
    pub const MAX: (usize, usize) = (63, 253);
    /// What the name of a claim's workspace starts with: the first version of the derivation.
    pub const PREFIX: &'static str = "w1.";

    /// A claim.
    ///
    /// # Errors
    /// `Invalid` for an empty or too long part, and for a slash or a NUL in one.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Result<Self> {
        let (namespace, name) = (namespace.into(), name.into());
        for (what, text, max) in [("namespace", &namespace, Self::MAX.0), ("name", &name, Self::MAX.1)] {
            if text.is_empty() || text.len() > max || text.contains(['/', '\0']) {
                return Err(Error::invalid(format!("the {what} of the claim, {text:?}, is not 1 to {max} bytes without slash and NUL")));
            }
        }
        Ok(Self { namespace, name })
    }
    /// Reads `namespace/name`.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let (namespace, name) = text.split_once('/').ok_or_else(|| Error::invalid(format!("{text:?} is no claim: use NAMESPACE/NAME")))?;
        Self::new(namespace, name)
    }
    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The workspace of the claim, which is also its CSI volume id: `w1.` and the base32 of a 160-bit BLAKE3 of namespace, NUL, name.
    /// CSI ids end at 128 bytes while names of claims go to 253, and an id is all that a deletion gets to see.
    ///
    /// # Errors
    /// Never in practice: the result is a name.
    pub fn workspace(&self) -> Result<Name> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.namespace.as_bytes()).update(&[0]).update(self.name.as_bytes());
        let hash = hasher.finalize();
        Name::new(NameKind::Workspace, format!("{}{}", Self::PREFIX, base32(&hash.as_bytes()[..HASH])))
    }
    /// True for a name that [`Self::workspace`] could have made.
    pub fn is_workspace(name: &str) -> bool {
        name.strip_prefix(Self::PREFIX).is_some_and(|h| h.len() == HASH * 8 / 5 && h.bytes().all(|b| ALPHABET.contains(&b)))
    }
}

/// RFC 4648 in lower case; the length is a multiple of five, so nothing is padded.
fn base32(bytes: &[u8]) -> String {
    let mut out = String::new();
    for five in bytes.chunks_exact(5) {
        let bits = five.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        out.extend((0..8).map(|i| char::from(ALPHABET[(bits >> (35 - 5 * i) & 31) as usize])));
    }
    out
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl serde::Serialize for Claim {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Claim {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Volumes of running clusters are named by it: it may never change.
    #[test]
    fn the_derivation_is_pinned() {
        let of = |ns: &str, n: &str| Claim::new(ns, n).unwrap().workspace().unwrap().to_string();
        assert_eq!(base32(b"\0\x44\x32\x14\xc7\x42\x54\xb6\x35\xcf"), "abcdefghijklmnop");
        assert_eq!(of("hiloop-sandboxes", "durable-demo"), "w1.bymi43ekubaxjwshuczmc4cqfdayfvdp");
        assert_ne!(of("a", "bc"), of("ab", "c"), "the parts do not run together");
        let long = of(&"n".repeat(63), &"c".repeat(253));
        assert!(long.len() == 35 && Claim::is_workspace(&long));
    }

    #[test]
    fn only_whole_claims_are_taken() {
        for bad in [("", "x"), ("x", ""), ("a/b", "x"), ("a", "x/y"), ("a", "x\0"), (&"n".repeat(64), "x")] {
            assert!(Claim::new(bad.0, bad.1).is_err(), "{bad:?}");
        }
        let claim = Claim::parse("ns/name").unwrap();
        assert_eq!((claim.namespace(), claim.name(), claim.to_string().as_str()), ("ns", "name", "ns/name"));
        assert_eq!(serde_json::from_str::<Claim>("\"ns/name\"").unwrap(), claim);
        assert!(serde_json::from_str::<Claim>("\"name\"").is_err());
        for no in
            ["", "w1.", "demo", &format!("w1.{}", "1".repeat(32)), &format!("w2.{}", "a".repeat(32)), &format!("w1.{}", "a".repeat(31))]
        {
            assert!(!Claim::is_workspace(no), "{no}");
        }
    }
}
