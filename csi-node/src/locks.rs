//! One operation per volume. A lock lives as long as its call: the call's future holds it, and goes with the caller.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tonic::Status;

/// Time for a publish that was called off to let go.
const LETS_GO: Duration = Duration::from_secs(15);

#[derive(Clone, Default)]
pub(crate) struct Locks(Arc<Table>);

#[derive(Default)]
struct Table {
    held: Mutex<HashMap<String, Held>>,
    changed: Notify,
}

struct Held {
    what: &'static str,
    /// Of a publish: calls it off.
    cancel: Option<watch::Sender<bool>>,
}

pub(crate) struct Guard {
    table: Arc<Table>,
    volume: String,
    cancelled: Option<watch::Receiver<bool>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.table.held.lock().remove(&self.volume);
        self.table.changed.notify_waiters();
    }
}

impl Guard {
    /// Returns once an unpublish called this publish off.
    pub async fn called_off(&self) {
        match self.cancelled.clone() {
            Some(mut c) => {
                if c.wait_for(|c| *c).await.is_err() {
                    std::future::pending().await
                }
            }
            None => std::future::pending().await,
        }
    }
}

impl Locks {
    /// `ABORTED` where another operation runs.
    pub fn take(&self, volume: &str, what: &'static str) -> Result<Guard, Status> {
        self.insert(volume, what, None)
    }

    /// As [`Self::take`], for a publish: an unpublish may call it off.
    pub fn take_to_publish(&self, volume: &str) -> Result<Guard, Status> {
        let (cancel, cancelled) = watch::channel(false);
        let mut guard = self.insert(volume, "NodePublishVolume", Some(cancel))?;
        guard.cancelled = Some(cancelled);
        Ok(guard)
    }

    /// Calls a publish off that runs, waits for its end, and takes the lock; `ABORTED` where another operation runs.
    pub async fn take_to_unpublish(&self, volume: &str) -> Result<Guard, Status> {
        let taken = async {
            loop {
                let changed = self.0.changed.notified();
                let mut changed = std::pin::pin!(changed);
                changed.as_mut().enable();
                let publish = self.0.held.lock().get(volume).and_then(|h| h.cancel.clone());
                let Some(cancel) = publish else { return self.take(volume, "NodeUnpublishVolume") };
                // The publish may have gone already.
                let _ = cancel.send(true);
                changed.await;
            }
        };
        let late = |_| Status::aborted(format!("the NodePublishVolume of volume {volume} does not let go"));
        tokio::time::timeout(LETS_GO, taken).await.map_err(late)?
    }

    fn insert(&self, volume: &str, what: &'static str, cancel: Option<watch::Sender<bool>>) -> Result<Guard, Status> {
        let mut held = self.0.held.lock();
        if let Some(h) = held.get(volume) {
            return Err(Status::aborted(format!("{} runs for volume {volume}", h.what)));
        }
        held.insert(volume.to_owned(), Held { what, cancel });
        Ok(Guard { table: self.0.clone(), volume: volume.to_owned(), cancelled: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_unpublish_goes_first() {
        let locks = Locks::default();
        let first = locks.take("v", "CreateVolume").unwrap();
        let refused = locks.take_to_publish("v").err().unwrap();
        assert!(refused.code() == tonic::Code::Aborted && refused.message().contains("CreateVolume"), "{refused}");
        assert!(locks.take_to_unpublish("v").await.is_err(), "what is no publish is not called off");
        let other = locks.take_to_publish("w").unwrap();
        drop((first, other));
        let publish = locks.take_to_publish("v").unwrap();
        let second = locks.clone();
        let unpublish = tokio::spawn(async move { second.take_to_unpublish("v").await.map(drop) });
        publish.called_off().await;
        drop(publish);
        unpublish.await.unwrap().unwrap();
        assert!(locks.0.held.lock().is_empty());
    }
}
