//! The keeper itself: one thread that waits for messages and for the deadline.

#![allow(clippy::print_stderr, reason = "standard error is all the log it has")]

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen, socket};

use crate::protocol::{Answer, Call, Row, VERSION};
use crate::socket::{peer, receive, send};

/// Connections at once; more are closed.
const CONNECTIONS: usize = 64;
/// Where the kernel ends a connection.
const CONTROL: &str = "/sys/fs/fuse/connections";

struct Kept {
    mountpoint: String,
    about: String,
    devices: Vec<OwnedFd>,
}

struct Connection {
    socket: OwnedFd,
    pid: i32,
    /// It has claimed the mounts, and nobody after it.
    daemon: bool,
}

struct Keeper {
    kept: BTreeMap<u32, Kept>,
    connections: Vec<Connection>,
    deadline: Timer,
    /// How long mounts wait for a daemon; zero: for ever.
    patience: Duration,
}

/// Listens on `path` and keeps what it is given, until the process ends. `ready` is called once it listens.
///
/// # Errors
/// AddrInUse where another keeper listens there; others as the system gives them.
pub fn serve(path: &Path, patience: Duration, ready: impl FnOnce()) -> io::Result<()> {
    let listener = listen_on(path)?;
    ready();
    let mut keeper = Keeper { kept: BTreeMap::new(), connections: Vec::new(), deadline: Timer::new()?, patience };
    loop {
        keeper.turn(&listener)?;
    }
}

fn listen_on(path: &Path) -> io::Result<OwnedFd> {
    if crate::Client::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another keeper listens there"));
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listen(&listener, Backlog::new(16)?)?;
    Ok(listener)
}

impl Keeper {
    /// Waits for something to happen and deals with it.
    fn turn(&mut self, listener: &OwnedFd) -> io::Result<()> {
        let all = [listener.as_fd(), self.deadline.0.as_fd()].into_iter().chain(self.connections.iter().map(|c| c.socket.as_fd()));
        let mut waited: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut waited, PollTimeout::NONE) {
            Err(Errno::EINTR) => return Ok(()),
            other => other?,
        };
        let came: Vec<bool> = waited.iter().map(|p| p.any().unwrap_or(true)).collect();
        // From the end, since one that is gone is replaced by the last.
        for n in (0..self.connections.len()).rev().filter(|n| came[n + 2]) {
            self.hear(n);
        }
        if came[1] {
            self.deadline.heard();
            if !self.has_daemon() {
                eprintln!("no daemon came in time: {} mounts are let go", self.kept.len());
                self.kept.clear();
            }
        }
        if came[0] {
            self.greet(listener);
        }
        Ok(())
    }

    fn greet(&mut self, listener: &OwnedFd) {
        let accepted = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC);
        // SAFETY: the kernel has just made this number for this process; nobody else knows of it.
        let accepted = accepted.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        match accepted.map_err(io::Error::from).and_then(|socket| Ok((peer(&socket)?, socket))) {
            Ok((pid, socket)) if self.connections.len() < CONNECTIONS => self.connections.push(Connection { socket, pid, daemon: false }),
            Ok(_) => eprintln!("too many connections; one is closed"),
            Err(e) => eprintln!("a connection is refused: {e}"),
        }
    }

    /// Reads one message of a connection and answers it; takes away one that is gone or that talks nonsense.
    fn hear(&mut self, n: usize) {
        let answered = match receive::<Call>(&self.connections[n].socket) {
            Ok(Some((call, beside))) => self.answer(n, call, beside),
            Ok(None) => Err(io::ErrorKind::ConnectionAborted.into()),
            Err(e) => Err(e),
        };
        if answered.is_err() {
            let left = self.connections.swap_remove(n);
            if left.daemon {
                self.deadline.set(self.patience);
            }
        }
    }

    fn answer(&mut self, n: usize, call: Call, beside: Vec<OwnedFd>) -> io::Result<()> {
        let refused = |why: &str| Answer::Refused { why: why.to_owned() };
        let mut sent = None;
        let answer = match call {
            Call::Claim { version } if version != VERSION => {
                refused(&format!("the keeper speaks version {VERSION}, the daemon version {version}"))
            }
            Call::Claim { .. } => {
                self.connections.iter_mut().enumerate().for_each(|(i, c)| c.daemon = i == n);
                self.deadline.set(Duration::ZERO);
                Answer::Done
            }
            Call::Take { .. } | Call::Hold { .. } | Call::Release { .. } if !self.connections[n].daemon => {
                refused("only the daemon that has claimed the mounts may ask for this")
            }
            Call::Take { after } => match self.kept.range(after.saturating_add(1)..).next() {
                Some((connection, kept)) => {
                    sent = Some(*connection);
                    Answer::Mount { connection: *connection, about: kept.about.clone() }
                }
                None => Answer::Done,
            },
            Call::Hold { .. } if beside.is_empty() => refused("no descriptor came with the mount"),
            Call::Hold { connection, about, mountpoint } => {
                self.kept.insert(connection, Kept { mountpoint, about, devices: beside });
                Answer::Done
            }
            Call::Release { connection } => {
                self.kept.remove(&connection);
                Answer::Done
            }
            Call::List => Answer::List { daemon: self.connections.iter().find(|c| c.daemon).map(|c| c.pid), mounts: self.rows() },
            Call::Abort { connection } => match self.kept.remove(&connection) {
                Some(_) => {
                    // Where the daemon has copies, closing ours ends nothing.
                    if let Err(e) = std::fs::write(format!("{CONTROL}/{connection}/abort"), "1") {
                        eprintln!("connection {connection} is let go, and not cut: {e}");
                    }
                    Answer::Done
                }
                None => refused("no such mount is kept"),
            },
        };
        let devices = sent.and_then(|c| self.kept.get(&c)).map(|k| k.devices.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        send(&self.connections[n].socket, &answer, &devices.unwrap_or_default())
    }

    fn has_daemon(&self) -> bool {
        self.connections.iter().any(|c| c.daemon)
    }

    fn rows(&self) -> Vec<Row> {
        let row = |(n, k): (&u32, &Kept)| Row { connection: *n, mountpoint: k.mountpoint.clone(), descriptors: k.devices.len() };
        self.kept.iter().map(row).collect()
    }
}

/// A timer of the kernel, to be waited for with the sockets.
struct Timer(OwnedFd);

impl Timer {
    fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = Errno::result(unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })?;
        // SAFETY: the kernel has just made this number for this process; nobody else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Once, after this long; zero: never.
    fn set(&self, after: Duration) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_sec: after.as_secs() as libc::time_t, tv_nsec: after.subsec_nanos().into() };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: the descriptor is open and the argument lives through the call; nothing is written back.
        if unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &spec, std::ptr::null_mut()) } != 0 {
            eprintln!("the orphan deadline cannot be set: {}", io::Error::last_os_error());
        }
    }

    fn heard(&self) {
        // What counts is that it rang.
        let _ = nix::unistd::read(&self.0, &mut [0; 8]);
    }
}
