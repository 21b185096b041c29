//! Mounting through fusermount3, for users who may not mount themselves.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair};

const PROGRAM: &str = "fusermount3";
/// Names the descriptor over which the program sends back the one of the mount: its standard input.
const ANSWERS_OVER: (&str, &str) = ("_FUSE_COMMFD", "0");

/// Mounts; the descriptor has INIT waiting.
///
/// # Errors
/// NotFound without the program; what it said where it refused.
pub(super) fn mount(mountpoint: &Path, source: &str, read_only: bool, allow_other: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    let mut options = format!("fsname={source},subtype={},default_permissions,nodev", super::SUBTYPE);
    for (wanted, option) in [(read_only, ",ro"), (allow_other, ",allow_other")] {
        options.push_str(if wanted { option } else { "" });
    }
    let mut command = Command::new(PROGRAM);
    command.arg("-o").arg(options).arg("--").arg(mountpoint).env(ANSWERS_OVER.0, ANSWERS_OVER.1);
    let output = command.stdin(Stdio::from(theirs)).output()?;
    // The command holds the other end of the socket.
    drop(command);
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    receive(&ours)?.ok_or_else(|| io::Error::other(format!("{PROGRAM} sent no descriptor")))
}

fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut received = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // SAFETY: the kernel has just made these numbers for this process; nobody else knows of them.
            received = descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).next_back();
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use nix::sys::socket::{ControlMessage, sendmsg};

    use super::*;

    #[test]
    fn a_descriptor_comes_over_and_its_absence_shows() {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let file = tempfile::tempfile().unwrap();
        let send =
            |control: &[ControlMessage<'_>]| sendmsg::<()>(theirs.as_raw_fd(), &[IoSlice::new(b"x")], control, MsgFlags::empty(), None);
        send(&[ControlMessage::ScmRights(&[file.as_raw_fd()])]).unwrap();
        let got = std::fs::File::from(receive(&ours).unwrap().unwrap());
        got.set_len(5).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5);
        send(&[]).unwrap();
        drop(theirs);
        assert!(receive(&ours).unwrap().is_none());
        assert!(receive(&ours).unwrap().is_none(), "the other side is gone");
    }
}
