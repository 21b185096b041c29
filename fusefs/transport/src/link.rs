//! One descriptor of a connection, and what all descriptors of a session share.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::errno::Errno;
use nix::sys::uio::writev;

use crate::abi::{Opcode, UNIQUE_RESEND};
use crate::answer::Answer;
use crate::encode::{Body, encode};
use crate::inhand::{InHand, Registry};
use crate::stats::Counters;

/// Parts that go to the kernel in one call; more are joined.
const PARTS: usize = 64;

pub(crate) struct Shared {
    pub(crate) in_hand: Registry,
    pub(crate) table: Arc<dyn InHand>,
    pub(crate) counters: Counters,
    /// Readers leave before they take another request.
    pub(crate) stop: AtomicBool,
}

/// A descriptor. An answer must go through the one that its request came from.
pub(crate) struct Link {
    pub(crate) device: OwnedFd,
    pub(crate) shared: Arc<Shared>,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Link {
    /// Answers a request that was registered; tells whether the kernel took it.
    pub(crate) fn answer(&self, unique: u64, opcode: Opcode, nodeid: u64, answer: &Answer<'_>) -> bool {
        let key = unique & !UNIQUE_RESEND;
        let (head, body) = encode(unique, opcode, answer);
        let table = &self.shared.table;
        if opcode.mutates() {
            match body {
                Body::None => table.applied(key, head.bytes()),
                // Only a recorded answer has a body here.
                Body::One(rest) => table.applied(key, &[head.bytes(), rest].concat()),
                Body::Parts(_) => {}
            }
        }
        let sent = self.send(head.bytes(), body);
        table.answered(key);
        self.shared.in_hand.remove(key);
        match sent {
            Ok(()) => true,
            // The caller was killed meanwhile, or the connection is gone.
            Err(Errno::ENOENT | Errno::ENODEV) => false,
            Err(e) => {
                tracing::error!(opcode = opcode.name(), node = nodeid, error = %e, "the kernel refused an answer");
                // A message that it refuses for its form leaves the caller waiting.
                let (head, body) = encode(unique, opcode, &Answer::Error(libc::EIO));
                if let Err(e) = self.send(head.bytes(), body) {
                    tracing::debug!(error = %e, "nor is there anyone to tell");
                }
                false
            }
        }
    }

    /// Writes one message.
    pub(crate) fn send(&self, head: &[u8], body: Body<'_>) -> Result<(), Errno> {
        let written = match body {
            Body::None => nix::unistd::write(self, head)?,
            Body::One(data) => writev(self, &[IoSlice::new(head), IoSlice::new(data)])?,
            Body::Parts(parts) if parts.len() < PARTS => {
                let mut all = [IoSlice::new(head); PARTS];
                all[1..=parts.len()].copy_from_slice(parts);
                writev(self, &all[..=parts.len()])?
            }
            Body::Parts(parts) => {
                let mut joined = Vec::with_capacity(parts.iter().map(|p| p.len()).sum());
                parts.iter().for_each(|p| joined.extend_from_slice(p));
                writev(self, &[IoSlice::new(head), IoSlice::new(&joined)])?
            }
        };
        // The device takes a message whole or not at all.
        debug_assert!(written >= head.len());
        Ok(())
    }

    /// The same open file under another number.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }
}
