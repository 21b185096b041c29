//! The small mutable and named objects of a store, and their keys.
//!
//! | key | document | written by | moved by |
//! |---|---|---|---|
//! | `heads/<workspace>` | [`Head`] | creation, fork | compare-and-swap only |
//! | `bases/<build id>` | [`BaseDoc`] | `publish-base` (first as its own intent, `protocols.md` 7.6) | compare-and-swap |
//! | `snapshots/<name>` | [`SnapshotDoc`] | the replicator, after the head stood at the cut | compare-and-swap, when it is deleted |
//! | `intents/<nonce>` | [`Intent`] | fork, repacking | removed by its writer |
//! | `leases/<nonce>` | [`Lease`] | export, diff, fsck, read-only mounts | renewed, removed by its holder |
//! | `deleted/<nonce>` | [`Deleted`] | every deletion of a root, before it (`protocols.md` 7.3) | removed by `gc` |
//! | `cutoffs/<workspace>/<epoch>` | [`CutOff`] | a take-over, before its first publish (`protocols.md` 3.4) | `recover`, or after 30 days |
//! | `lineage/<workspace>/<epoch>` | [`LineageEvent`] | every opening, snapshot, fork, deletion | never |
//! | `forwards/<old pack>` | where a rewritten pack's chunks went | `gc` | removed by `gc` |
//! | `domains/<name>` | [`DomainDoc`] | first use | never |
//! | `nodes/<node>` | [`Heartbeat`] | each daemon, every 10 s | overwritten by its node |
//!
//! Workspaces, bases and snapshots are deleted by swapping a tombstone in, since no store removes on a condition. A head's tombstone stays
//! (epochs never restart); those of bases and snapshots are removed by `gc` after 30 days.
//!
//! All are JSON with a `format` number, so that an operator can read them; a reader refuses a newer format by name.

mod base;
mod gc_docs;
mod head;
mod store;
#[cfg(test)]
mod tests;

pub use base::{BaseDoc, BaseRoot, DomainDoc, PUBLIC_DOMAIN};
pub use gc_docs::{Deleted, DeletedKind, Intent, IntentKind, Lease};
pub(crate) use head::quota_of;
pub use head::{
    Claimed, CutOff, Head, Heartbeat, LineageEvent, LineageKind, LostWindow, OwnedHead, Parent, ParentKind, Release, SnapshotDoc,
};
pub use store::{Catalog, Document, Found};
pub(crate) use store::{Mortal, REDO, Signed, decode, encode};

/// Format number of every document of this version.
pub const FORMAT: u32 = 1;
