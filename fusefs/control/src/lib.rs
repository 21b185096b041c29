//! The control socket of the node's workspace daemon: its messages, its client, how errors travel; and what the programs of a node
//! that serve a socket or look at mounts have in common.
//!
//! The protocol is `proto/control.proto`; `src/generated` is made from it by `scripts/protogen.sh`. This crate does not know the engine,
//! so that a program which only asks (the CSI driver, agents of the node) does not carry it.

mod client;
mod incoming;
pub mod mountinfo;
mod path;
mod status;

pub use client::{Client, Deadline};
pub use incoming::{Connection, Incoming};
pub use path::{Directory, SOCKET_PATH_MAX, bind, check_path};
pub use status::{from_error, into_error};

/// Longest answer, bytes: a list of 1,000 mounts with paths of 300 bytes fits.
pub const ANSWER_MAX: usize = 1 << 20;
/// Longest request, bytes: names and paths, or a fork into 400 children. The daemon remembers some requests whole.
pub const REQUEST_MAX: usize = 64 << 10;
/// Where the packaged daemon listens.
pub const DEFAULT_SOCKET: &str = "/run/hiloop/sandbox-workspace-control/control.sock";

/// Version 1 of the protocol.
#[allow(missing_docs, clippy::all, reason = "made from the proto file, whose comments are the documentation")]
pub mod v1 {
    include!("generated/hiloop.control.v1.rs");
}

use hiloop_types::{Claim, Result};

impl v1::Claim {
    /// The checked form.
    ///
    /// # Errors
    /// `Invalid` for what is no claim.
    pub fn checked(&self) -> Result<Claim> {
        Claim::new(self.namespace.as_str(), self.name.as_str())
    }
}

impl From<&Claim> for v1::Claim {
    fn from(c: &Claim) -> Self {
        Self { namespace: c.namespace().to_owned(), name: c.name().to_owned() }
    }
}
