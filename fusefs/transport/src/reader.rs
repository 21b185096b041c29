//! A reader: takes requests from one descriptor and gives them to the file system, until the mount or the session ends.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use hiloop_env::Env;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::abi::{Opcode, UNIQUE_RESEND};
use crate::answer::Answer;
use crate::buffer::Buffer;
use crate::decode::{Layout, Malformed};
use crate::encode::encode;
use crate::inhand::Interrupt;
use crate::link::Link;
use crate::reply::Reply;
use crate::request::{Operation, Request};
use crate::session::{Ended, FileSystem};
use crate::spin::{Pace, Spin, Spinners};
use crate::threads;

pub(crate) struct Reader {
    pub(crate) link: Arc<Link>,
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) layout: Layout,
    pub(crate) buffer: Buffer,
    /// The CPU to be bound to.
    pub(crate) cpu: Option<usize>,
    pub(crate) spin: Spin,
    pub(crate) spinners: Spinners,
    pub(crate) env: Env,
}

impl Reader {
    /// Reads and serves until there is no more to read, or until it shall stop. A request that was read is always served.
    pub(crate) fn run(mut self) -> io::Result<Ended> {
        threads::accept_wake()?;
        if let Some(cpu) = self.cpu
            && let Err(e) = threads::bind(cpu)
        {
            tracing::warn!(cpu, error = %e, "a FUSE reader runs where it likes");
        }
        let shared = self.link.shared.clone();
        let mut pace = Pace::default();
        let mut idle_since = self.env.monotonic();
        while !shared.stop.load(SeqCst) {
            self.spin(&pace, idle_since);
            let read = {
                // Also after a poll that found something: another reader may take it first.
                let _blocked = shared.counters.blocked();
                nix::unistd::read(&*self.link, self.buffer.space())
            };
            match read {
                Ok(n) => {
                    if self.spin != Spin::Off {
                        pace.observe(self.env.monotonic().saturating_sub(idle_since));
                    }
                    shared.counters.count_request();
                    self.dispatch(self.buffer.message(n));
                    self.buffer.used(n);
                    if self.spin != Spin::Off {
                        idle_since = self.env.monotonic();
                    }
                }
                // ENOENT: the caller took its request back while it was handed out.
                Err(Errno::EINTR | Errno::ENOENT) => {}
                // Somebody made the shared description non-blocking.
                Err(Errno::EAGAIN) => {
                    let mut fds = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
                    if let Err(e) = poll(&mut fds, PollTimeout::NONE)
                        && e != Errno::EINTR
                    {
                        return Err(e.into());
                    }
                }
                Err(Errno::ENODEV) => return Ok(Ended::Unmounted),
                Err(Errno::ECONNABORTED) => return Ok(Ended::Aborted),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Ended::Stopped)
    }

    /// Polls for the next request for as long as that has proved worth it.
    fn spin(&self, pace: &Pace, idle_since: Duration) {
        let Some(window) = pace.window(self.spin) else { return };
        let until = idle_since + window;
        if self.env.monotonic() >= until {
            return;
        }
        let counters = &self.link.shared.counters;
        let cpu = self.cpu.unwrap_or_else(threads::current_cpu);
        let Some(_turn) = self.spinners.enter(cpu) else {
            counters.count_spin_refused();
            return;
        };
        counters.count_spin();
        while !self.link.shared.stop.load(SeqCst) {
            counters.count_poll();
            let mut fds = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0) {
                counters.count_spin_hit();
                return;
            }
            if self.env.monotonic() >= until {
                return;
            }
            std::hint::spin_loop();
        }
    }

    fn dispatch(&self, message: &[u8]) {
        let request = match self.layout.decode(message) {
            Ok(request) => request,
            Err(e) => return self.refuse(&e),
        };
        match request.op {
            Operation::Forget { nlookup } => self.fs.forget(request.nodeid, nlookup),
            Operation::BatchForget(forgets) => forgets.iter().for_each(|(node, n)| self.fs.forget(node, n)),
            Operation::Interrupt { unique } => self.interrupt(request.unique, unique & !UNIQUE_RESEND),
            Operation::NotifyReply { offset, data } => self.fs.retrieved(request.unique, request.nodeid, offset, data),
            Operation::Destroy => {
                self.fs.destroy();
                self.receive(&request).ok();
            }
            Operation::Unknown | Operation::Init(_) => {
                self.link.shared.counters.count_unknown();
                tracing::debug!(opcode = request.opcode.0, "a request of a kind that is not served; the kernel does without");
                self.receive(&request).error(libc::ENOSYS);
            }
            _ => {
                let reply = self.receive(&request);
                self.fs.handle(request, reply);
            }
        }
    }

    /// Takes a request in hand.
    fn receive(&self, request: &Request<'_>) -> Reply {
        let shared = &self.link.shared;
        if request.resent() {
            shared.counters.count_resent();
        }
        shared.in_hand.insert(request.key());
        shared.table.received(request.key(), request.opcode, request.nodeid);
        Reply::device(self.link.clone(), request)
    }

    /// An interrupt has no answer, but for EAGAIN: then the kernel asks again. It does so only where the request came from the same
    /// descriptor; one that another reader has just taken from its own is remembered instead.
    fn interrupt(&self, unique: u64, key: u64) {
        let shared = &self.link.shared;
        if shared.in_hand.interrupt(key) == Interrupt::Delivered {
            return shared.counters.count_interrupt();
        }
        shared.counters.count_interrupt_early();
        let (head, body) = encode(unique, Opcode::INTERRUPT, &Answer::Error(libc::EAGAIN));
        if self.link.send(head.bytes(), body).is_err() {
            shared.in_hand.interrupt_early(key);
        }
    }

    fn refuse(&self, e: &Malformed) {
        self.link.shared.counters.count_malformed();
        tracing::error!(error = %e, "a request could not be understood");
        if e.unique != 0 {
            let (head, body) = encode(e.unique, e.opcode, &Answer::Error(libc::EIO));
            if let Err(e) = self.link.send(head.bytes(), body) {
                tracing::debug!(error = %e, "nor could it be refused");
            }
        }
    }
}
