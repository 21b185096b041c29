//! Readers as threads: bound to a CPU, and woken out of a blocking read.
//!
//! A reader that has nothing to do sits in read(2). The alternative, poll(2) with a second descriptor for the wake-up, makes the
//! kernel wake every reader for every request, where a read wakes one. So it is woken by a signal without effect, SIGURG, whose
//! default is to be ignored.

use std::io;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

const WAKE: Signal = Signal::SIGURG;

extern "C" fn nothing(_: libc::c_int) {}

/// Makes the signal interrupt system calls, unless the program uses it for something else.
///
/// # Errors
/// AlreadyExists where it does.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<bool, Errno>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let ours = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing.
        let before = unsafe { sigaction(WAKE, &ours) }?;
        if matches!(before.handler(), SigHandler::SigDfl | SigHandler::SigIgn) {
            return Ok(true);
        }
        // SAFETY: what the program had installed.
        unsafe { sigaction(WAKE, &before) }.map(|_| false)
    });
    match installed {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "the program handles SIGURG, which wakes FUSE readers")),
        Err(e) => Err((*e).into()),
    }
}

/// To be called by a reader first: lets the signal through.
pub(crate) fn accept_wake() -> io::Result<()> {
    let mut set = SigSet::empty();
    set.add(WAKE);
    Ok(set.thread_unblock()?)
}

/// Gets a thread out of a system call.
pub(crate) fn wake(thread: libc::pthread_t) {
    // SAFETY: the thread is joined only after its last wake; one that ended already is told apart by the library.
    unsafe { libc::pthread_kill(thread, WAKE as libc::c_int) };
}

/// CPUs that this thread may run on.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives through the call and has the length that is given.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: the number is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Binds this thread to a CPU.
///
/// # Errors
/// EINVAL where it may not run there.
pub fn bind(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(Errno::EINVAL.into());
    }
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is below the set's size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set lives through the call and has the length that is given.
    Ok(Errno::result(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) }).map(drop)?)
}

/// The CPU that this thread runs on now.
pub(crate) fn current_cpu() -> usize {
    // SAFETY: no arguments; it fails only where the kernel lacks the call.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}
