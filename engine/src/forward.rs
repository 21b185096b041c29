//! Forwards: where the chunks of a rewritten pack went (`protocols.md` 5.3).

use hiloop_store::{Settled, Store};
use hiloop_types::{Error, PackId, Result, ResultExt};
use serde::{Deserialize, Serialize};

use crate::catalog::FORMAT;

/// Names the packs that hold what a rewritten pack held. Stands at `forwards/` plus the old pack's key; lives while a root still
/// names the old pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// Document format.
    pub format: u32,
    /// The pack that was rewritten.
    pub from: PackId,
    /// Where its live frames are now.
    pub to: Vec<PackId>,
}

impl Forward {
    /// Prefix of all forwards.
    pub const PREFIX: &'static str = "forwards/";

    /// A forward of this version.
    pub fn new(from: PackId, to: Vec<PackId>) -> Self {
        Self { format: FORMAT, from, to }
    }
    /// Object key of the forward of `pack`.
    pub fn key(pack: &PackId) -> String {
        format!("{}{}", Self::PREFIX, pack.key())
    }
    /// Reads the forward of a pack, where there is one.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` where the object is no forward.
    pub async fn read(store: &Store, pack: &PackId) -> Result<Option<Self>> {
        let key = Self::key(pack);
        let Some(found) = store.get(&key).await? else { return Ok(None) };
        Self::decode(&found.bytes).at(&key).map(Some)
    }
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let doc: Self = serde_json::from_slice(bytes).map_err(|e| Error::corrupt(format!("is not a forward: {e}")))?;
        if doc.format > FORMAT {
            return Err(Error::corrupt(format!("has format {}, this hiloop reads up to {FORMAT}", doc.format)).hint("upgrade hiloop"));
        }
        Ok(doc)
    }
    /// Writes the forward; false where another collector's is there, which stays.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn create(&self, store: &Store) -> Result<bool> {
        let bytes = serde_json::to_vec_pretty(self).map_err(|e| Error::internal(format!("cannot encode a forward: {e}")))?;
        let mine = bytes::Bytes::from(bytes);
        // New packs have random names, so equal bytes are this very forward.
        Ok(matches!(store.create_settled(&Self::key(&self.from), mine.clone(), |there| *there == mine).await?, Settled::Won(_)))
    }
}
