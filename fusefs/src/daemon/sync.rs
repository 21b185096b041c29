//! Changed pages of mapped files, brought to the daemon before a cut.
//!
//! What a program stores through a mapping is in the kernel until it is written back. `syncfs` on the mount has it written back, and waits
//! for this daemon's own answers; not even SIGKILL ends that wait while one of them is missing. So it is never called in the daemon, which
//! could not end any more, but by a process of its own: this program as [`HELPER`]. It is waited for within a bound, then killed and let
//! go of: it ends with the answer that it misses, or with the mount. Until then no other is started for that mount, so that there
//! is at most one for each.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use hiloop_types::Result;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::Daemon;
use super::mounts::is_there;
use crate::fuse::Mount;

/// The command of this program that calls `syncfs` on its one argument.
pub const HELPER: &str = "sync-mount";
/// Time for the pages to come in before a snapshot is cut or a flush begins.
pub(super) const BEFORE_A_CUT: Duration = Duration::from_secs(2);

/// The turn of the one helper that a mount may have.
pub(super) type Turn = Arc<Mutex<()>>;

impl Daemon {
    /// Has the kernel write back what was changed in `mount` before this call. Answers why some of it may be missing; nothing where all is
    /// here.
    pub(super) async fn written_back(&self, mount: &Mount, turn: &Turn, within: Duration) -> Option<String> {
        // What lies below the mount, once it is gone, is none of our business.
        match is_there(mount) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(e) => return Some(e.to_string()),
        }
        let started = self.env.monotonic();
        let Ok(turn) = tokio::time::timeout(within, turn.clone().lock_owned()).await else {
            return Some("an earlier write-back of changed pages has not ended".into());
        };
        let helper = match start(mount) {
            Ok(helper) => helper,
            Err(e) => return Some(format!("the helper for write-back did not start: {e}")),
        };
        let rest = within.saturating_sub(self.env.monotonic().saturating_sub(started));
        let unsynced = ended(helper, turn, rest, within).await;
        if let Some(why) = &unsynced {
            tracing::warn!(mountpoint = %mount.mountpoint().display(), why, "changed pages of mapped files may be missing in a cut");
        }
        unsynced
    }
}

fn start(mount: &Mount) -> Result<Child> {
    use hiloop_types::ResultExt;
    let program = std::env::current_exe().at("the program's own path")?;
    let mut command = Command::new(&program);
    command.arg(HELPER).arg(mount.mountpoint()).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().at(program.display())
}

async fn ended(mut helper: Child, turn: OwnedMutexGuard<()>, rest: Duration, within: Duration) -> Option<String> {
    match tokio::time::timeout(rest, helper.wait()).await {
        Ok(Ok(status)) if status.success() => None,
        Ok(Ok(status)) => {
            let mut said = String::new();
            if let Some(mut stderr) = helper.stderr.take()
                && let Err(e) = stderr.read_to_string(&mut said).await
            {
                tracing::debug!(error = %e, "what the helper said is lost");
            }
            let said = said.lines().next().unwrap_or_default();
            Some(if said.is_empty() { format!("the helper for write-back ended with {status}") } else { said.to_owned() })
        }
        Ok(Err(e)) => Some(format!("the helper for write-back was lost: {e}")),
        Err(_) => {
            if let Err(e) = helper.start_kill() {
                tracing::debug!(error = %e, "the helper for write-back ended just now");
            }
            tokio::spawn(async move {
                let ended = helper.wait().await;
                tracing::info!(?ended, "a write-back that was given up has ended");
                drop(turn);
            });
            Some(format!("write-back of changed pages did not end within {}", humantime::format_duration(within)))
        }
    }
}
