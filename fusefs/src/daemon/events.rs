//! What happens to mounts, for whoever watches.

use std::path::{Path, PathBuf};

use hiloop_types::Name;

use super::Daemon;

/// Events that a slow watcher may be behind before it misses some, and is told so.
pub(super) const BEHIND: usize = 256;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A workspace was mounted.
    Attached,
    /// It was unmounted; a rest may still be published.
    Detached,
    /// The rest of an unmounted workspace is published.
    Drained,
    /// A mount ended that nobody asked the daemon to end.
    Ended,
}

/// An event.
#[derive(Clone, Debug)]
pub(super) struct Happened {
    pub what: What,
    pub workspace: Name,
    /// Where it is or was mounted; empty where that is over.
    pub at: PathBuf,
    pub note: String,
}

impl Daemon {
    /// Tells whoever watches; nobody is fine.
    pub(super) fn tell(&self, what: What, workspace: &Name, at: &Path, note: &str) {
        let _ = self.events.send(Happened { what, workspace: workspace.clone(), at: at.to_owned(), note: note.to_owned() });
    }
}
