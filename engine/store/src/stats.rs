//! What a store was asked and what it answered, counted: benches and tests bind request counts, operators see them as metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hiloop_types::ErrorKind;

/// The kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A whole object.
    Get,
    /// A part of an object.
    GetRange,
    /// Size and version only.
    Head,
    /// An unconditional put.
    Put,
    /// A put on condition that there is no such object.
    Create,
    /// A put on condition that the object is a given version.
    Swap,
    /// A deletion.
    Delete,
    /// A whole listing, however many pages it takes.
    List,
}

impl Call {
    /// The word for messages and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::GetRange => "get_range",
            Self::Head => "head",
            Self::Put => "put",
            Self::Create => "create",
            Self::Swap => "swap",
            Self::Delete => "delete",
            Self::List => "list",
        }
    }
}

/// One finished request, for [`crate::StoreOptions::observer`].
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// Its kind.
    pub call: Call,
    /// Payload bytes read or written.
    pub bytes: u64,
    /// How long it took by the engine's clock, repetitions included.
    pub took: Duration,
    /// Why it failed; a lost condition is no failure.
    pub failed: Option<ErrorKind>,
}

/// Is told each finished request. Called on the requesting task: must be quick and must not block.
pub type Observer = Arc<dyn Fn(&Observed) + Send + Sync>;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A snapshot of a store's counters since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct StoreStats { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> StoreStats {
                StoreStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl StoreStats {
            /// What happened since `earlier`, a snapshot of the same store.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Whole objects asked for.
    gets,
    /// Parts of objects asked for.
    range_gets,
    /// Head requests.
    heads,
    /// Unconditional puts.
    puts,
    /// Puts on condition of absence.
    creates,
    /// Puts on condition of a version.
    swaps,
    /// Deletions.
    deletes,
    /// Listings (not pages).
    lists,
    /// Payload bytes read.
    bytes_in,
    /// Payload bytes written.
    bytes_out,
    /// Requests that ended in an error.
    errors,
    /// Second reads that were sent because the first was slow.
    hedges,
    /// Second reads that answered first.
    hedges_won,
    /// HTTP requests sent, repetitions and fetched credentials included; 0 for directories and memory.
    http_requests,
    /// HTTP requests that got no answer or one that says "again" (5xx, 429, 408): each was repeated or became an error.
    http_failures,
}

impl StoreStats {
    /// All requests, by whatever kind (hedges are extra).
    pub fn requests(&self) -> u64 {
        self.gets + self.range_gets + self.heads + self.puts + self.creates + self.swaps + self.deletes + self.lists
    }
}

impl Counters {
    pub(crate) fn started(&self, call: Call) {
        let counter = match call {
            Call::Get => &self.gets,
            Call::GetRange => &self.range_gets,
            Call::Head => &self.heads,
            Call::Put => &self.puts,
            Call::Create => &self.creates,
            Call::Swap => &self.swaps,
            Call::Delete => &self.deletes,
            Call::List => &self.lists,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn finished(&self, o: &Observed) {
        let bytes = match o.call {
            Call::Put | Call::Create | Call::Swap => &self.bytes_out,
            _ => &self.bytes_in,
        };
        bytes.fetch_add(o.bytes, Ordering::Relaxed);
        if o.failed.is_some() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}
