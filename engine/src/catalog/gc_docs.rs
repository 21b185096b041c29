//! What protects roots that no name protects yet, or no longer (`protocols.md` 7).

use hiloop_manifest::tree::RootRef;
use hiloop_types::{Name, Nonce, PackId};
use serde::{Deserialize, Serialize};

use super::BaseRoot;

/// A promise to name a root soon: a root for collection until removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    /// Document format.
    pub format: u32,
    /// Its key.
    pub nonce: Nonce,
    /// Node or command that wrote it, for messages.
    pub holder: String,
    /// What it is for.
    pub kind: IntentKind,
    /// Seconds since 1970.
    pub created: u64,
}

/// What an intent protects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum IntentKind {
    /// A fork that is putting its children.
    Fork {
        /// The source's root; absent for an empty source.
        root: Option<RootRef>,
        /// Its base roots.
        bases: Vec<BaseRoot>,
    },
    /// A pack that is being rewritten.
    Repack {
        /// The new pack.
        pack: PackId,
    },
}

/// A reader that must not lose its root (`protocols.md` 7.5).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Document format.
    pub format: u32,
    /// Its key.
    pub nonce: Nonce,
    /// Node or command that holds it, for messages.
    pub holder: String,
    /// The root that is read.
    pub root: RootRef,
    /// Its base roots.
    pub bases: Vec<BaseRoot>,
    /// Seconds since 1970.
    pub created: u64,
}

/// A root whose name is being removed (`protocols.md` 7.3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deleted {
    /// Document format.
    pub format: u32,
    /// Its key.
    pub nonce: Nonce,
    /// What was deleted.
    pub kind: DeletedKind,
    /// Its name.
    pub name: Name,
    /// Nonce of the document that is being deleted: where the name's document has another one, this deletion is over.
    pub of: Nonce,
    /// Its root.
    pub root: Option<RootRef>,
    /// Its base roots.
    pub bases: Vec<BaseRoot>,
    /// True for a workspace that an opening still owned (`--force`): that opening may be about to name the root in a snapshot, and its
    /// tail stands on it, so the root is kept as long as a cut-off is.
    #[serde(default)]
    pub owned: bool,
    /// Seconds since 1970.
    pub at: u64,
}

/// What was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeletedKind {
    /// A workspace.
    Workspace,
    /// A snapshot.
    Snapshot,
    /// A base.
    Base,
}
