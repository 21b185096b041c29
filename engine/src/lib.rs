//! The chunk engine of hiloop: durable, branchable workspaces over an object store.
//!
//! A *workspace* is an ordered map (the manifest, [`hiloop_manifest::schema`]) whose published state is an immutable tree in the
//! store and whose unpublished changes stand in *layers* over it, journalled on the node's disk. This crate knows no FUSE, web or
//! Kubernetes.
//!
//! - [`catalog`]: heads, bases, snapshots and the other documents of a store.
//! - [`base`], [`fork`], [`delete`], [`gc`], [`fsck`], [`diff`], [`du`], [`export`], [`look`]: the commands over a store that need no
//!   node state, each taking a [`context::StoreContext`].
//! - [`hydrate`]: nodes and chunks from memory, disk cache or store.
//! - [`front`]: the nodes that a cold open needs first.
//! - [`ship`]: frames into packs, packs into the store.

pub mod base;
pub mod catalog;
pub mod context;
pub mod delete;
pub mod diff;
pub mod du;
pub mod export;
pub mod fork;
pub mod forward;
pub mod front;
pub mod fsck;
#[doc(hidden)]
pub mod fuzzing;
pub mod gc;
pub mod hydrate;
mod layer;
pub mod lease;
pub mod look;
pub mod node;
mod record;
pub mod ship;
pub mod stop;
mod traverse;
mod view;
pub mod volume;
pub mod workspace;
