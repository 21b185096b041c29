//! How a daemon ends: by a signal, or because nothing is left to serve.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::{Daemon, Ended};

/// How often the daemon looks whether mounts ended and whether it is still needed.
const LOOK: Duration = Duration::from_millis(200);
/// Time that running calls have to end once no new ones are taken.
const CALLS_END: Duration = Duration::from_secs(5);

/// Returns once the daemon should end; its mounts are gone then, or with the keeper.
pub(super) async fn run(daemon: &Arc<Daemon>) -> Ended {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (mut term, mut int) = match signals {
        (Ok(term), Ok(int)) => (term, int),
        (Err(e), _) | (_, Err(e)) => {
            tracing::error!(error = %e, "signals cannot be waited for");
            return Ended::Done;
        }
    };
    tokio::select! {
        _ = term.recv() => terminate(daemon, "SIGTERM").await,
        _ = int.recv() => terminate(daemon, "SIGINT").await,
        () = unneeded(daemon) => Ended::Done,
    }
}

async fn terminate(daemon: &Arc<Daemon>, signal: &str) -> Ended {
    let grace = daemon.options.grace;
    let stays = daemon.keeper.is_some();
    tracing::info!(signal, grace = ?grace, mounts_stay = stays, "ending: what was accepted is published");
    daemon.closing.store(true, Ordering::SeqCst);
    let _ = tokio::time::timeout(CALLS_END.min(grace), no_calls(daemon)).await;
    futures::join!(daemon.end_all(grace), daemon.hand_over(grace));
    if stays { Ended::HandedOver } else { Ended::Done }
}

async fn no_calls(daemon: &Daemon) {
    loop {
        let changed = daemon.changed.notified();
        let mut changed = std::pin::pin!(changed);
        changed.as_mut().enable();
        if daemon.calls.load(Ordering::SeqCst) == 0 {
            return;
        }
        changed.await;
    }
}

/// Returns once nothing was mounted or left to publish for the time that the daemon lingers, and nobody asks.
async fn unneeded(daemon: &Arc<Daemon>) {
    let mut idle_since = None;
    loop {
        tokio::time::sleep(LOOK).await;
        daemon.sweep();
        let Some(linger) = daemon.options.linger else { continue };
        if !is_unneeded(daemon) {
            idle_since = None;
            continue;
        }
        let now = daemon.env.monotonic();
        if now.saturating_sub(*idle_since.get_or_insert(now)) < linger {
            continue;
        }
        // A call counts itself, then looks at the flag; here the flag is set, then the count looked at: one of the two sees the other.
        daemon.closing.store(true, Ordering::SeqCst);
        if daemon.calls.load(Ordering::SeqCst) == 0 && is_unneeded(daemon) {
            tracing::info!("nothing is mounted any more");
            return;
        }
        daemon.closing.store(false, Ordering::SeqCst);
    }
}

fn is_unneeded(daemon: &Daemon) -> bool {
    daemon.mounts.lock().is_empty()
}
