//! The daemon's side, and that of `keeper list` and `keeper abort`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use parking_lot::Mutex;

use crate::protocol::{Answer, Call, Row, VERSION};
use crate::socket::{peer, receive, send};

/// A mount that can be taken over.
#[derive(Debug)]
pub struct Held {
    /// Number of the FUSE connection.
    pub connection: u32,
    /// What the daemon before wrote down about it.
    pub about: String,
    /// The descriptor that was mounted, and after it its clones.
    pub devices: Vec<OwnedFd>,
}

/// A connection to the keeper. While one that has claimed the mounts is open, the orphan deadline does not run.
#[derive(Debug)]
pub struct Client {
    socket: Mutex<OwnedFd>,
    pid: i32,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// NotFound, ConnectionRefused where no keeper listens; PermissionDenied where it is another user's.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        let pid = peer(&socket)?;
        Ok(Self { socket: Mutex::new(socket), pid })
    }

    /// The keeper's process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn call(&self, call: &Call, beside: &[BorrowedFd<'_>]) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let socket = self.socket.lock();
        send(&socket, call, beside)?;
        match receive::<Answer>(&socket)? {
            None => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the keeper has left")),
            Some((Answer::Refused { why }, _)) => Err(io::Error::other(why)),
            Some(answered) => Ok(answered),
        }
    }

    /// Becomes the daemon.
    ///
    /// # Errors
    /// Those of the connection; a keeper of another version refuses.
    pub fn claim(&self) -> io::Result<()> {
        self.call(&Call::Claim { version: VERSION }, &[]).map(drop)
    }

    /// The kept mount with the lowest number above `after`.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn take(&self, after: u32) -> io::Result<Option<Held>> {
        match self.call(&Call::Take { after }, &[])? {
            (Answer::Mount { connection, about }, devices) => Ok(Some(Held { connection, about, devices })),
            _ => Ok(None),
        }
    }

    /// Has a mount kept.
    ///
    /// # Errors
    /// Those of the connection: then nobody could take the mount over.
    pub fn hold(&self, connection: u32, mountpoint: &str, about: String, devices: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.call(&Call::Hold { connection, about, mountpoint: mountpoint.to_owned() }, devices).map(drop)
    }

    /// Has a mount kept no more.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn release(&self, connection: u32) -> io::Result<()> {
        self.call(&Call::Release { connection }, &[]).map(drop)
    }

    /// The daemon's process, and what is kept.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn list(&self) -> io::Result<(Option<i32>, Vec<Row>)> {
        match self.call(&Call::List, &[])? {
            (Answer::List { daemon, mounts }, _) => Ok((daemon, mounts)),
            (other, _) => Err(io::Error::new(io::ErrorKind::InvalidData, format!("the keeper answered {other:?}"))),
        }
    }

    /// Cuts a mount off.
    ///
    /// # Errors
    /// Those of the connection; where no such mount is kept.
    pub fn abort(&self, connection: u32) -> io::Result<()> {
        self.call(&Call::Abort { connection }, &[]).map(drop)
    }
}
