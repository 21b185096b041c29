//! Packets with descriptors over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::{DESCRIPTORS_MAX, MESSAGE_MAX};

/// Sends one message; descriptors beside it.
pub(crate) fn send(socket: &OwnedFd, message: &impl Serialize, beside: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MESSAGE_MAX || beside.len() > DESCRIPTORS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message to or from the keeper is too long"));
    }
    let numbers: Vec<RawFd> = beside.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control: &[ControlMessage<'_>] = if numbers.is_empty() { &[] } else { &rights };
    // Call and answer take turns, so that there is room; who does not read its answers has left.
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT, None)?;
    Ok(())
}

/// Receives one message with what comes beside it; nothing where the other side has left.
pub(crate) fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut beside = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            // SAFETY: the kernel has just made these numbers for this process; nobody else knows of them.
            beside.extend(numbers.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message to or from the keeper was cut"));
    }
    let len = message.bytes;
    if len == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..len])?, beside)))
}

/// The other side: user and process.
///
/// # Errors
/// PermissionDenied where it is neither root nor the user of this process.
pub(crate) fn peer(socket: &OwnedFd) -> io::Result<i32> {
    let peer = getsockopt(socket, PeerCredentials)?;
    let me = nix::unistd::geteuid().as_raw();
    if peer.uid() != 0 && peer.uid() != me {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("user {} is neither root nor the user of this process", peer.uid()),
        ));
    }
    Ok(peer.pid())
}
