//! What a session has done. Counters only.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($name:ident $count:ident $doc:literal),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $($name: AtomicU64),*, blocked: AtomicU64 }

        /// What a session has done so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $(#[doc = $doc] pub $name: u64,)*
            /// Readers that wait in the kernel for a request right now.
            pub blocked: u64,
        }

        impl Counters {
            $(pub(crate) fn $count(&self) { self.$name.fetch_add(1, Relaxed); })*

            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.load(Relaxed)),*, blocked: self.blocked.load(Relaxed) }
            }
        }
    };
}

counters! {
    requests count_request "Messages read from the kernel.",
    resent count_resent "Of these, requests that came back after RESEND.",
    malformed count_malformed "Of these, what could not be understood.",
    unknown count_unknown "Of these, kinds of request that are not known; answered ENOSYS.",
    interrupts count_interrupt "Interrupts of requests in hand.",
    interrupts_early count_interrupt_early "Interrupts that came before their request was seen, or after it was answered.",
    unanswered count_unanswered "Replies that were dropped; answered EIO.",
    spins count_spin "Times a reader polled for the next request instead of going to sleep.",
    spin_hits count_spin_hit "Of these, times a request came.",
    spins_refused count_spin_refused "Times a reader would have polled, but another did so on its CPU.",
    polls count_poll "Single polls of all that.",
}

/// Counts a reader as waiting while it lives.
pub(crate) struct Blocked<'a>(&'a AtomicU64);

impl Counters {
    pub(crate) fn blocked(&self) -> Blocked<'_> {
        self.blocked.fetch_add(1, Relaxed);
        Blocked(&self.blocked)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
