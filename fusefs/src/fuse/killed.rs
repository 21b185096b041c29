//! A caller who waits can be killed, and is not disturbed otherwise.
//!
//! The kernel tells of the first signal that reaches a waiting caller, whatever its kind, and of no other. EINTR as the answer to a
//! signal that does not kill would reach programs that know no such error of a file (a page fault makes SIGBUS of it). So a waiting
//! request is answered only where its caller is being killed; after another signal the caller is looked at now and then.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hiloop_transport::{Parked, Reply, Waiting};

use super::core::Core;

/// Between two looks at a caller that got a signal and lives: what `kill -9` may take then.
const LOOK: Duration = Duration::from_millis(50);
/// SIGKILL in the masks of `/proc`.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

impl Core {
    /// Puts a request aside that was not done yet, with what it needs when it goes on. Where its caller is killed it is answered EINTR,
    /// dropped, and never done.
    pub(super) fn park_killably<T: Send + 'static>(self: &Arc<Self>, reply: Reply, with: T) -> Parked<T> {
        let (core, pid) = (self.clone(), reply.pid());
        reply.park_until(with, move |waiting| core.look(waiting, pid))
    }

    fn look<T: Send + 'static>(self: Arc<Self>, waiting: Waiting<T>, pid: u32) {
        if is_killed(pid) {
            if let Some((reply, with)) = waiting.take() {
                drop(with);
                self.counters.interrupted.fetch_add(1, Relaxed);
                reply.error(libc::EINTR);
            }
        } else if waiting.is_waiting() {
            let workers = self.workers.clone();
            workers.after(LOOK, Box::new(move || self.look(waiting, pid)));
        }
    }
}

/// True where the thread has a fatal signal to die of, and where nothing can be known of it: such a caller must not wait for ever. A
/// signal that ends a process is SIGKILL to each of its threads.
fn is_killed(thread: u32) -> bool {
    if thread == 0 {
        return true;
    }
    std::fs::read_to_string(format!("/proc/{thread}/status")).map_or(true, |status| kill_pends(&status))
}

fn kill_pends(status: &str) -> bool {
    let masks = status.lines().filter_map(|l| l.strip_prefix("SigPnd:").or_else(|| l.strip_prefix("ShdPnd:")));
    masks.filter_map(|m| u64::from_str_radix(m.trim(), 16).ok()).any(|m| m & KILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kill_counts_and_who_is_not_seen_counts_as_killed() {
        assert!(!kill_pends("Name:\tsh\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000010002\n"));
        assert!(kill_pends("SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(kill_pends("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"));
        assert!(is_killed(0) && is_killed(u32::MAX));
        assert!(!is_killed(std::process::id()));
    }
}
