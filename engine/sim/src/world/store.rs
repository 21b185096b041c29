//! The object store of a simulated world: exact underneath, slow, lossy and reordering in between.
//!
//! A request is work of the store's: it goes on when the one who asked is killed or has given up, so a put may land late. Listings come in
//! pages, between which the store changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hiloop_engine::catalog::Head;
use hiloop_env::Env;
use hiloop_store::{Backend, Condition, MemoryBackend, ObjectInfo, PutOutcome, Store, StoreOptions, Versioned};
use hiloop_types::{Error, Result};
use parking_lot::Mutex;

use super::planted::Lie;
use super::report::Report;
use crate::executor::Executor;

/// Objects of a listing that come at once.
const PAGE: usize = 5;

/// How bad things are: parts of a thousand requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Refused without effect.
    pub refused: u64,
    /// Done, and the answer is lost.
    pub lost: u64,
    /// Never answered; done or not.
    pub silent: u64,
    /// A conditional write told that it lost, though it was done or nobody else wrote.
    pub misled: u64,
    /// A body with a flipped bit.
    pub flipped: u64,
    /// Seconds on the way instead of milliseconds.
    pub slow: u64,
}

/// Epoch, session and sequence of a head.
type Moved = (u64, Option<u64>, u64);

/// The store.
pub struct SimStore {
    exec: Executor,
    env: Env,
    objects: Arc<MemoryBackend>,
    weather: Mutex<Weather>,
    report: Arc<Report>,
    heads: Mutex<BTreeMap<String, Moved>>,
    since_flip: Mutex<u64>,
}

/// The way from one machine to the store.
pub struct Way {
    store: Arc<SimStore>,
    name: String,
    cut: Arc<AtomicBool>,
    lie: Option<Lie>,
    /// What was answered before, for a way that answers a second question from memory.
    remembered: Mutex<BTreeMap<String, Option<Versioned>>>,
}

impl SimStore {
    /// An empty store whose own work runs in `env`.
    pub fn new(exec: Executor, env: Env, report: Arc<Report>) -> Arc<Self> {
        let objects = Arc::new(MemoryBackend::new(env.clone()));
        Arc::new(Self { exec, env, objects, weather: Mutex::default(), report, heads: Mutex::default(), since_flip: Mutex::new(0) })
    }
    /// Changes the weather.
    pub fn set_weather(&self, weather: Weather) {
        *self.weather.lock() = weather;
    }
    /// The store as the machine `name` sees it, which `cut` separates from it.
    pub fn way(self: &Arc<Self>, name: &str, cut: &Arc<AtomicBool>, lie: Option<Lie>, env: Env) -> Store {
        let way = Way { store: self.clone(), name: name.to_owned(), cut: cut.clone(), lie, remembered: Mutex::default() };
        Store::from_parts(Arc::new(way), StoreOptions::default(), env)
    }

    /// The sequence of a workspace's head, while it is that of `session`.
    pub fn published(&self, workspace: &str, session: u64) -> Option<u64> {
        self.heads.lock().get(workspace).filter(|h| h.1 == Some(session)).map(|h| h.2)
    }

    fn travel(&self) -> Duration {
        let ms = if self.exec.chance(self.weather.lock().slow) { 500 + self.exec.below(20_000) } else { 1 + self.exec.below(12) };
        Duration::from_millis(ms)
    }

    /// What every put must keep to (`protocols.md` 3): epochs never go back, an epoch has one session, its sequence never goes back.
    fn watch(&self, key: &str, bytes: &Bytes) {
        let Some(name) = key.strip_prefix("heads/") else { return };
        let Ok(head) = serde_json::from_slice::<Head>(bytes) else { return };
        let now = (head.epoch.0, head.session.map(|s| s.0), head.sequence);
        let mut heads = self.heads.lock();
        if let Some(before) = heads.insert(name.to_owned(), now) {
            let same = before.0 == now.0 && (before.1 == now.1 || before.1.is_none());
            if now.0 < before.0 || (now.0 == before.0 && !same) {
                self.report.violation(format!("a fenced writer moved the head of {name}: epoch {} after {}", now.0, before.0));
            } else if same && now.2 < before.2 {
                self.report.violation(format!("the head of {name} went back from sequence {} to {}", before.2, now.2));
            }
        }
    }

    fn flips(&self) -> bool {
        let mut since = self.since_flip.lock();
        *since += 1;
        // Never twice where a reader would look at one thing again.
        let flips = *since > 12 && self.exec.chance(self.weather.lock().flipped);
        if flips {
            *since = 0;
            self.report.count("flipped body");
        }
        flips
    }
}

/// What the way does to a request.
enum Fate {
    Fine,
    Refused,
    Lost,
    Silent { done: bool },
    Misled { done: bool },
}

fn away() -> Error {
    Error::unavailable("the store is away (simulated)")
}

impl Way {
    fn fate(&self, key: &str, conditional: bool) -> Fate {
        let exec = &self.store.exec;
        if self.cut.load(Ordering::SeqCst) {
            return if exec.chance(700) { Fate::Refused } else { Fate::Silent { done: false } };
        }
        let w = *self.store.weather.lock();
        let mut at = exec.below(1000);
        if key.starts_with("probe/") {
            return Fate::Fine;
        }
        for (share, fate) in [
            (w.refused, Fate::Refused),
            (w.lost, Fate::Lost),
            (w.silent, Fate::Silent { done: at.is_multiple_of(2) }),
            (if conditional { w.misled } else { 0 }, Fate::Misled { done: at.is_multiple_of(2) }),
        ] {
            if at < share {
                self.store.report.count(match fate {
                    Fate::Refused => "refused request",
                    Fate::Lost => "lost answer",
                    Fate::Silent { .. } => "silence",
                    _ => "misled writer",
                });
                return fate;
            }
            at -= share;
        }
        Fate::Fine
    }

    /// Sends a request; `None` where the answer was lost after it was done.
    async fn send<T: Send + 'static>(
        &self,
        what: &str,
        key: &str,
        fate: Fate,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Option<T>> {
        let (there, back) = (self.store.travel(), self.store.travel());
        let env = self.store.env.clone();
        let shown = format!("{} {what} {key}", self.name);
        let exec = self.store.exec.clone();
        let task = self.store.env.spawn(async move {
            env.sleep(there).await;
            let done = match fate {
                Fate::Refused | Fate::Silent { done: false } | Fate::Misled { done: false } => None,
                Fate::Fine | Fate::Lost | Fate::Silent { .. } | Fate::Misled { .. } => Some(work.await),
            };
            exec.note(|| format!("{shown}: {}", told(&fate, done.is_some())));
            env.sleep(back).await;
            match fate {
                Fate::Fine => done.transpose().map(|d| d.map(Some)),
                Fate::Refused => Err(away()),
                Fate::Lost | Fate::Misled { .. } => Ok(Some(None)),
                Fate::Silent { .. } => Ok(None),
            }
        });
        match task.await {
            Ok(Ok(Some(answer))) => Ok(answer),
            Ok(Ok(None)) => std::future::pending().await,
            Ok(Err(e)) => Err(e),
            Err(died) => Err(Error::internal(format!("a simulated request died: {died}"))),
        }
    }

    fn spoil(&self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() || !self.store.flips() {
            return bytes;
        }
        let mut changed = BytesMut::from(&bytes[..]);
        let at = self.store.exec.below(changed.len() as u64) as usize;
        changed[at] ^= 1 << self.store.exec.below(8);
        changed.freeze()
    }

    async fn read<T: Send + 'static>(&self, what: &str, key: &str, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let fate = self.fate(key, false);
        self.send(what, key, fate, work).await?.ok_or_else(away)
    }
}

fn told(fate: &Fate, done: bool) -> &'static str {
    match (fate, done) {
        (Fate::Fine, _) => "done",
        (Fate::Refused, _) => "refused",
        (Fate::Lost, _) => "done, answer lost",
        (Fate::Silent { .. }, true) => "done, silence",
        (Fate::Silent { .. }, false) => "not done, silence",
        (Fate::Misled { .. }, true) => "done, told that it lost",
        (Fate::Misled { .. }, false) => "not done, told that it lost",
    }
}

#[async_trait]
impl Backend for Way {
    async fn get(&self, key: &str) -> Result<Option<Versioned>> {
        if self.lie == Some(Lie::SecondReadFromMemory)
            && (key.starts_with("snapshots/") || key.starts_with("heads/"))
            && let Some(known) = self.remembered.lock().remove(key)
        {
            return Ok(known);
        }
        let (objects, at) = (self.store.objects.clone(), key.to_owned());
        let found = self.read("get", key, async move { objects.get(&at).await }).await?;
        let found = found.map(|v| Versioned { bytes: self.spoil_document(key, v.bytes), version: v.version });
        if self.lie == Some(Lie::SecondReadFromMemory) {
            self.remembered.lock().insert(key.to_owned(), found.clone());
        }
        Ok(found)
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Option<Bytes>> {
        let (objects, at) = (self.store.objects.clone(), key.to_owned());
        let found = self.read("range", key, async move { objects.get_range(&at, offset, len).await }).await?;
        Ok(found.map(|b| self.spoil(b)))
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        let (objects, at) = (self.store.objects.clone(), key.to_owned());
        self.read("head", key, async move { objects.head(&at).await }).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<PutOutcome> {
        let conditional = condition != Condition::Always;
        let condition = match (&self.lie, condition) {
            (Some(Lie::EpochIgnored), Condition::Version(_)) if key.starts_with("heads/") => Condition::Always,
            (_, condition) => condition,
        };
        if self.lie == Some(Lie::SecondReadFromMemory) && key.starts_with("intents/") {
            // Somebody who does not look again may as well have dozed off.
            self.store.env.sleep(Duration::from_millis(self.store.exec.below(15_000))).await;
        }
        let fate = self.fate(key, conditional);
        let misled = matches!(fate, Fate::Misled { .. });
        let (store, at) = (self.store.clone(), key.to_owned());
        let work = async move {
            let outcome = store.objects.put(&at, bytes.clone(), condition).await?;
            if matches!(outcome, PutOutcome::Done(_)) {
                store.watch(&at, &bytes);
            }
            Ok(outcome)
        };
        match self.send("put", key, fate, work).await {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) if misled => Ok(PutOutcome::Lost),
            Ok(None) if conditional => Ok(PutOutcome::Ambiguous(away())),
            Ok(None) => Err(away()),
            Err(e) => Err(e),
        }
    }

    async fn delete(&self, key: &str) -> Result<bool> {
        let (objects, at) = (self.store.objects.clone(), key.to_owned());
        self.read("delete", key, async move { objects.delete(&at).await }).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>> {
        let fate = self.fate(prefix, false);
        let short = self.lie == Some(Lie::ListingsEndEarly) && !prefix.starts_with("packs");
        let (store, prefix, name) = (self.store.clone(), prefix.to_owned(), self.name.clone());
        stream::once(async move {
            let broken = match fate {
                Fate::Fine => false,
                Fate::Silent { .. } => std::future::pending().await,
                _ => true,
            };
            store.exec.note(|| format!("{name} list {prefix}"));
            let mut found: Vec<Result<ObjectInfo>> = Vec::new();
            let mut last = String::new();
            loop {
                store.env.sleep(store.travel()).await;
                let all: Vec<_> = store.objects.list(&prefix).collect().await;
                let mut page: Vec<ObjectInfo> = all.into_iter().flatten().filter(|o| o.key > last).collect();
                page.sort_unstable_by(|a, b| a.key.cmp(&b.key));
                page.truncate(PAGE);
                let Some(end) = page.last() else { break };
                last = end.key.clone();
                found.extend(page.into_iter().map(Ok));
                if broken {
                    found.push(Err(away()));
                    break;
                }
                if short {
                    found.truncate(1);
                    break;
                }
            }
            if broken && found.is_empty() {
                found.push(Err(away()));
            }
            stream::iter(found)
        })
        .flatten()
        .boxed()
    }
}

impl Way {
    /// The collector that knows no sequences believes that everything is below the limit.
    fn spoil_document(&self, key: &str, bytes: Bytes) -> Bytes {
        if self.lie != Some(Lie::NoSequenceRule) || !key.starts_with("heads/") {
            return bytes;
        }
        match serde_json::from_slice::<Head>(&bytes) {
            Ok(mut head) => {
                head.sequence = u64::MAX;
                serde_json::to_vec(&head).map_or(bytes, Bytes::from)
            }
            Err(_) => bytes,
        }
    }
}
