//! What a store must be able to do: the seam between [`crate::Store`] and S3, GCS, a directory, memory, or a fault injector.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use hiloop_types::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Which content of a key this is. Opaque: only good for [`Condition::Version`] and for comparing.
///
/// S3 decides by entity tag, GCS by generation, so both are kept. Where a store derives the tag from the content (S3, `file://`), equal
/// bytes have equal versions: whoever needs to tell two writes apart puts a nonce into the bytes (`protocols.md` 3.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    /// The entity tag as the store spells it, quotes included.
    pub(crate) e_tag: Option<String>,
    /// The generation, where the store has one.
    pub(crate) generation: Option<String>,
}

impl Version {
    /// A version that is only a tag: for backends written outside this crate (simulator).
    pub fn from_tag(tag: impl Into<String>) -> Self {
        Self { e_tag: Some(tag.into()), generation: None }
    }
}

/// An object's bytes and the version they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// All bytes of the object.
    pub bytes: Bytes,
    /// The version these bytes are.
    pub version: Version,
}

/// What a listing or a head request says about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Key relative to the store's prefix.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Wall time of the last change since 1970 by the store's clock. Shown, never decided upon (`protocols.md` 7).
    pub modified: Duration,
    /// The version, where the store tells it without reading the object (`file://` does not).
    pub version: Option<Version>,
}

/// Under which condition a put takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    Always,
    /// Only while there is no such object.
    Absent,
    /// Only while the object is exactly this version.
    Version(Version),
}

/// How a put ended.
#[derive(Clone, Debug)]
pub enum PutOutcome {
    /// The store confirmed it; this is the new version.
    Done(Version),
    /// The condition did not hold **as far as the store says**. The writer may still be the one whose object is there (an answer was
    /// lost and the client's repetition met the first attempt), or nobody's may be (409): read back and decide.
    Lost,
    /// No answer, or one that does not say whether the put took effect; it may even take effect later: read back and decide.
    Ambiguous(Error),
}

/// An object store without prefix, statistics or deadlines. Keys are checked by [`crate::Store`] before they come here.
///
/// Every error is final for this call: a backend does its own small retries. "No such object" is never an error.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The whole object, or `None` where there is none.
    async fn get(&self, key: &str) -> Result<Option<Versioned>>;
    /// `len` bytes (at least one) from `offset`. A shorter object is an error of kind `Corrupt`.
    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Option<Bytes>>;
    /// Size and version of the object.
    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>>;
    /// Writes the whole object if `condition` holds. `Err` means that nothing was written and nothing will be, except that an
    /// unconditional put (which may be repeated) reports every failure as `Err`.
    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<PutOutcome>;
    /// Removes the object. `false` only where the store says that there was none.
    async fn delete(&self, key: &str) -> Result<bool>;
    /// All objects whose key starts with the segments of `prefix` (empty: all), in no promised order. After an error the stream ends.
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Journals keep versions (`protocols.md` 3.2): today's form must stay readable.
    #[test]
    fn the_stored_form_of_a_version_is_pinned() {
        let version = Version { e_tag: Some("\"e\"".into()), generation: Some("7".into()) };
        let stored = r#"{"e_tag":"\"e\"","generation":"7"}"#;
        assert_eq!(serde_json::to_string(&version).unwrap(), stored);
        assert_eq!(serde_json::from_str::<Version>(stored).unwrap(), version);
        assert_eq!(serde_json::from_str::<Version>(r#"{"e_tag":"x","generation":null}"#).unwrap(), Version::from_tag("x"));
    }
}
