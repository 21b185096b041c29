//! Messages. Each is one packet of JSON; descriptors go beside it.

use serde::{Deserialize, Serialize};

/// Version of the messages; both sides name it in the first one.
pub const VERSION: u32 = 1;
/// Longest message, bytes.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Most descriptors beside one message.
pub const DESCRIPTORS_MAX: usize = 64;

/// What is asked of the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// This connection is the daemon from now on, whoever was before: the directory lock of the engine lets only one live.
    Claim {
        /// [`VERSION`] of the caller.
        version: u32,
    },
    /// The mount with the lowest number above `after`, with its descriptors.
    Take {
        /// 0 for the first.
        after: u32,
    },
    /// Keep the descriptors that come beside this message, in place of earlier ones of the same mount.
    Hold {
        /// Number of the FUSE connection.
        connection: u32,
        /// What a successor needs to know; nobody else reads it.
        about: String,
        /// Where it is mounted, for people.
        mountpoint: String,
    },
    /// The mount is gone, or nobody shall take it over.
    Release {
        /// Its number.
        connection: u32,
    },
    /// What is kept.
    List,
    /// Cut a mount off: close what is kept of it, and have the kernel end the connection.
    Abort {
        /// Its number.
        connection: u32,
    },
}

/// One kept mount, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Number of the FUSE connection.
    pub connection: u32,
    /// Where it is mounted.
    pub mountpoint: String,
    /// Descriptors that are kept.
    pub descriptors: usize,
}

/// The keeper's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Done; also the end of what can be taken.
    Done,
    /// A mount; its descriptors come beside.
    Mount {
        /// Number of the FUSE connection.
        connection: u32,
        /// As it was given to [`Call::Hold`].
        about: String,
    },
    /// What is kept.
    List {
        /// Process of the daemon, where one has claimed the mounts.
        daemon: Option<i32>,
        /// The mounts.
        mounts: Vec<Row>,
    },
    /// Why not.
    Refused {
        /// For a person.
        why: String,
    },
}
