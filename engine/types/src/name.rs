//! Names that people give: workspaces, bases, snapshots, domains.

use std::fmt;

use crate::{Error, Result};

/// What a [`Name`] names; used in messages only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A workspace.
    Workspace,
    /// A base (its build id).
    Base,
    /// A snapshot.
    Snapshot,
    /// A dedup domain.
    Domain,
    /// A node.
    Node,
}

impl NameKind {
    /// The word used in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Base => "base",
            Self::Snapshot => "snapshot",
            Self::Domain => "domain",
            Self::Node => "node",
        }
    }
}

/// A checked name: `[a-z0-9][a-z0-9._-]{0,127}`. Safe as a path segment and as an object key segment.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    /// Longest name, in bytes.
    pub const MAX: usize = 128;

    /// Checks `s`; the error names the kind, the offending character and the rule.
    pub fn new(kind: NameKind, s: impl Into<String>) -> Result<Self> {
        let s = s.into();
        let rule = "use 1 to 128 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit";
        let bad = |why: String| Err(Error::invalid(format!("{} name {s:?} {why}", kind.as_str())).hint(rule));
        if s.is_empty() {
            return bad("is empty".into());
        }
        if s.len() > Self::MAX {
            return bad(format!("is {} bytes long", s.len()));
        }
        let first_ok = s.as_bytes()[0].is_ascii_lowercase() || s.as_bytes()[0].is_ascii_digit();
        if !first_ok {
            return bad(format!("starts with {:?}", s.chars().next().unwrap_or_default()));
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
        if let Some(c) = s.chars().find(|c| !allowed(*c)) {
            return bad(format!("contains {c:?}"));
        }
        Ok(Self(s))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = String::deserialize(d)?;
        Self::new(NameKind::Workspace, s).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_rule_and_nothing_else() {
        for ok in ["a", "0", "a.b_c-d", &"x".repeat(128)] {
            assert!(Name::new(NameKind::Workspace, ok).is_ok(), "{ok}");
        }
        for bad in ["", ".", "-a", "A", "a/b", "a b", "ä", "..", &"x".repeat(129)] {
            let e = Name::new(NameKind::Base, bad).expect_err(bad);
            assert!(e.to_string().contains("base name"), "{e}");
        }
    }
}
