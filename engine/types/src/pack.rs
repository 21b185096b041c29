//! Pack identities and their object keys (`protocols.md` 5.1).

use std::fmt;

use crate::{Name, Session, WriterEpoch};

/// Who wrote a pack: eight bytes derived from the kind and name of a workspace or base, so that references stay small.
/// The readable name stands in the pack's own header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Owner(pub u64);

impl Owner {
    /// Owner of the packs of a workspace.
    pub fn workspace(name: &Name) -> Self {
        Self(fnv1a(b"w:", name.as_str().as_bytes()))
    }
    /// Owner of the packs of a base.
    pub fn base(build_id: &Name) -> Self {
        Self(fnv1a(b"b:", build_id.as_str().as_bytes()))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:016x})", self.0)
    }
}

/// FNV-1a, 64 bit, over two parts. A collision costs only a shared key prefix: epoch, session and attempt keep keys apart.
fn fnv1a(a: &[u8], b: &[u8]) -> u64 {
    a.iter().chain(b).fold(0xcbf2_9ce4_8422_2325, |h, x| (h ^ u64::from(*x)).wrapping_mul(0x0100_0000_01b3))
}

/// Name of one pack object. Put create-only and never used twice, not even for the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct PackId {
    /// Workspace or base that wrote it.
    pub owner: Owner,
    /// Epoch of the opening that wrote it (0 for bases).
    pub epoch: WriterEpoch,
    /// Session of the opening that wrote it (random also for bases).
    pub session: Session,
    /// Highest sequence number of what is in it.
    pub sequence: u64,
    /// Random, so that a late duplicate of a failed upload can never replace a good pack.
    pub attempt: u32,
}

impl PackId {
    /// Bytes of the binary form.
    pub const LEN: usize = 36;

    /// Object key below the store's prefix: `packs/<owner>/<epoch>-<session>-<sequence>-<attempt>`, all hexadecimal.
    pub fn key(&self) -> String {
        format!("packs/{:016x}/{:016x}-{}-{:016x}-{:08x}", self.owner.0, self.epoch.0, self.session, self.sequence, self.attempt)
    }

    /// Parses what [`Self::key`] writes; `None` for anything else.
    pub fn parse_key(key: &str) -> Option<Self> {
        let rest = key.strip_prefix("packs/")?;
        let (owner, tail) = rest.split_once('/')?;
        let mut parts = tail.split('-');
        let mut hex = |want: usize| -> Option<u64> {
            let p = parts.next()?;
            (p.len() == want).then(|| u64::from_str_radix(p, 16).ok())?
        };
        let (epoch, session, sequence, attempt) = (hex(16)?, hex(16)?, hex(16)?, hex(8)?);
        let id = Self {
            owner: Owner(u64::from_str_radix(owner, 16).ok()?),
            epoch: WriterEpoch(epoch),
            session: Session(session),
            sequence,
            attempt: attempt as u32,
        };
        (id.key() == key).then_some(id)
    }

    /// Fixed-width big-endian form, ordered like the struct.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0u8; Self::LEN];
        out[..8].copy_from_slice(&self.owner.0.to_be_bytes());
        out[8..16].copy_from_slice(&self.epoch.0.to_be_bytes());
        out[16..24].copy_from_slice(&self.session.0.to_be_bytes());
        out[24..32].copy_from_slice(&self.sequence.to_be_bytes());
        out[32..].copy_from_slice(&self.attempt.to_be_bytes());
        out
    }

    /// Reads what [`Self::to_bytes`] wrote.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let u = |r: std::ops::Range<usize>| b[r].iter().fold(0u64, |a, x| (a << 8) | u64::from(*x));
        Self {
            owner: Owner(u(0..8)),
            epoch: WriterEpoch(u(8..16)),
            session: Session(u(16..24)),
            sequence: u(24..32),
            attempt: u(32..36) as u32,
        }
    }
}

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_and_bytes_round_trip() {
        let id = PackId { owner: Owner(0xfeed), epoch: WriterEpoch(7), session: Session(u64::MAX), sequence: 9, attempt: 0xdead_beef };
        assert_eq!(PackId::parse_key(&id.key()), Some(id));
        assert_eq!(PackId::from_bytes(&id.to_bytes()), id);
        assert_eq!(PackId::parse_key(&format!("{}x", id.key())), None);
        assert_eq!(PackId::parse_key("packs/1/2-3-4-5"), None);
    }
}
