//! The store as the engine uses it: keys below a prefix, deadlines, hedged reads, counters; every error names call and key.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use hiloop_env::Env;
use hiloop_types::{Error, ErrorKind, Result, limits};

use crate::backend::{Backend, Condition, ObjectInfo, PutOutcome, Version, Versioned};
use crate::cloud;
use crate::file::FileBackend;
use crate::hedge::Hedge;
use crate::key;
use crate::memory::MemoryBackend;
use crate::stats::{Call, Counters, Observed, Observer, StoreStats};
use crate::url::{Place, StoreUrl};

/// A put or deletion without an answer for this long is given up: a pack of 16 MiB at 140 KB/s, or the store is away.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(120);

/// How to open a [`Store`].
#[derive(Clone)]
pub struct StoreOptions {
    /// Certificates (PEM) of a private authority, trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// A read as a whole, repetitions included, and each page of a listing ends after this long.
    pub read_deadline: Duration,
    /// A put or deletion as a whole, repetitions included, ends after this long.
    pub write_deadline: Duration,
    /// Send a second request for a slow read (5 % of the reads at most). Puts are never hedged.
    pub hedge: bool,
    /// `file://`: make the directory if it is missing. Otherwise a missing directory is refused.
    pub create_directory: bool,
    /// Is told each finished request.
    pub observer: Option<Observer>,
    /// Where credentials are looked up instead of the process environment (tests).
    pub variables: Option<BTreeMap<String, String>>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            ca_file: None,
            read_deadline: limits::READ_DEADLINE,
            write_deadline: WRITE_DEADLINE,
            hedge: false,
            create_directory: true,
            observer: None,
            variables: None,
        }
    }
}

/// How [`Store::create`] ended.
#[derive(Clone, Debug)]
pub enum CreateOutcome {
    /// The object is there, and it is this writer's.
    Done(Version),
    /// The store says that there is an object. It may be this writer's own (a lost answer, repeated) and, after a conflict of two
    /// requests in flight, there may even be none: read back and decide, or use [`Store::create_settled`].
    Lost,
    /// Nobody knows: read back and decide. The write may still land later.
    Ambiguous(Error),
}

/// How [`Store::swap`] ended.
#[derive(Clone, Debug)]
pub enum SwapOutcome {
    /// The object was replaced; this is its new version.
    Done(Version),
    /// The store says that the object is another version or gone. The version may have moved by this writer's own lost and
    /// repeated request: read back and decide, or use [`Store::swap_settled`].
    Lost,
    /// Nobody knows: read back and decide. The write may still land later.
    Ambiguous(Error),
}

/// An object store, cheap to clone. All keys are relative to its prefix; [`crate::key`] says what a key is. Deadlines need what
/// [`Env::sleep`] needs.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    prefix: String,
    name: String,
    options: StoreOptions,
    counters: Arc<Counters>,
    hedge: Hedge,
    env: Env,
}

impl Store {
    /// Opens the store that `url` names. Sends no request: credentials and reachability show at the first one ([`Store::probe`]).
    ///
    /// # Errors
    /// `Invalid` for a CA file or credentials that cannot be used; for `file://` what the operating system says.
    pub fn open<'a>(url: &'a StoreUrl, options: StoreOptions, env: Env) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let counters = Arc::new(Counters::default());
            let backend: Arc<dyn Backend> = match url.place() {
                Place::File { dir } => Arc::new(FileBackend::open(dir.clone(), options.create_directory, env.clone()).await?),
                place => Arc::new(cloud::open(place, &options, counters.clone()).await?),
            };
            Ok(Self::assemble(backend, url.prefix().to_owned(), url.to_string(), options, counters, env))
        })
    }

    /// An empty store in memory.
    pub fn memory(env: Env) -> Self {
        Self::from_parts(Arc::new(MemoryBackend::new(env.clone())), StoreOptions::default(), env)
    }

    /// A store over any backend, without a prefix: the seam for fault injection and simulation.
    pub fn from_parts(backend: Arc<dyn Backend>, options: StoreOptions, env: Env) -> Self {
        Self::assemble(backend, String::new(), "store".into(), options, Arc::default(), env)
    }

    /// The same store seen through another backend, made from this one's (a fault injector around a real store). Counts anew.
    #[must_use]
    pub fn wrapped(&self, wrap: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>) -> Self {
        let i = &self.0;
        Self::assemble(wrap(i.backend.clone()), i.prefix.clone(), i.name.clone(), i.options.clone(), Arc::default(), i.env.clone())
    }

    fn assemble(backend: Arc<dyn Backend>, prefix: String, name: String, options: StoreOptions, counters: Arc<Counters>, env: Env) -> Self {
        Self(Arc::new(Inner { backend, prefix, name, options, counters, hedge: Hedge::default(), env }))
    }

    /// The canonical URL, for messages; holds no secret.
    pub fn name(&self) -> &str {
        &self.0.name
    }
    /// What was asked since the store was opened.
    pub fn stats(&self) -> StoreStats {
        self.0.counters.snapshot()
    }
    /// The surroundings it runs in.
    pub fn env(&self) -> &Env {
        &self.0.env
    }

    /// The whole object, or `None` where there is none.
    ///
    /// # Errors
    /// `Invalid` key, `Denied`, `Unavailable` (also after the read deadline), `Corrupt` for a body that is not as long as announced.
    pub fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Versioned>>> {
        Box::pin(async move {
            let full = self.full(key)?;
            let bytes = |found: &Option<Versioned>| found.as_ref().map_or(0, |v| v.bytes.len() as u64);
            self.read(Call::Get, key, bytes, || self.0.backend.get(&full)).await
        })
    }

    /// Exactly `len` bytes from `offset` of the object, or `None` where there is no such object. Zero bytes of anything are `Some`
    /// without a request.
    ///
    /// # Errors
    /// As [`Store::get`]; `Corrupt` if the object ends before `offset + len`.
    pub fn get_range<'a>(&'a self, key: &'a str, offset: u64, len: u64) -> BoxFuture<'a, Result<Option<Bytes>>> {
        Box::pin(async move {
            let full = self.full(key)?;
            if len == 0 {
                return Ok(Some(Bytes::new()));
            }
            if offset.checked_add(len).is_none() {
                return Err(self.named(Call::GetRange, key, Error::corrupt(format!("{len} bytes at {offset} are beyond any object"))));
            }
            let bytes = |found: &Option<Bytes>| found.as_ref().map_or(0, |b| b.len() as u64);
            let found = self.read(Call::GetRange, key, bytes, || self.0.backend.get_range(&full, offset, len)).await?;
            match &found {
                Some(b) if b.len() as u64 != len => {
                    let error = Error::corrupt(format!("the store answered {} bytes, {len} at {offset} were asked for", b.len()));
                    Err(self.named(Call::GetRange, key, error))
                }
                _ => Ok(found),
            }
        })
    }

    /// Size and version of the object, or `None` where there is none.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<ObjectInfo>>> {
        Box::pin(async move {
            let full = self.full(key)?;
            let found = self.read(Call::Head, key, |_| 0, || self.0.backend.head(&full)).await?;
            Ok(found.map(|info| ObjectInfo { key: key.to_owned(), ..info }))
        })
    }

    /// Writes the whole object, whatever is there. For content-addressed or otherwise repeatable bytes only.
    ///
    /// # Errors
    /// `Invalid` key, `Denied`, `Exhausted`, `Unavailable`: the put may or may not have taken effect and may be repeated.
    pub fn put<'a>(&'a self, key: &'a str, bytes: Bytes) -> BoxFuture<'a, Result<Version>> {
        Box::pin(async move {
            match self.write(Call::Put, key, bytes, Condition::Always).await? {
                PutOutcome::Done(version) => Ok(version),
                PutOutcome::Ambiguous(error) => Err(error),
                PutOutcome::Lost => Err(self.named(Call::Put, key, Error::internal("a put without condition lost"))),
            }
        })
    }

    /// Writes the object if there is none. See [`CreateOutcome`] for what the answers are worth.
    ///
    /// # Errors
    /// As [`Store::put`], but then nothing was written.
    pub fn create<'a>(&'a self, key: &'a str, bytes: Bytes) -> BoxFuture<'a, Result<CreateOutcome>> {
        Box::pin(async move {
            Ok(match self.write(Call::Create, key, bytes, Condition::Absent).await? {
                PutOutcome::Done(version) => CreateOutcome::Done(version),
                PutOutcome::Lost => CreateOutcome::Lost,
                PutOutcome::Ambiguous(error) => CreateOutcome::Ambiguous(error),
            })
        })
    }

    /// Replaces the object if it still is `version`. See [`SwapOutcome`] for what the answers are worth.
    ///
    /// # Errors
    /// As [`Store::put`], but then nothing was written.
    pub fn swap<'a>(&'a self, key: &'a str, version: &'a Version, bytes: Bytes) -> BoxFuture<'a, Result<SwapOutcome>> {
        Box::pin(async move {
            Ok(match self.write(Call::Swap, key, bytes, Condition::Version(version.clone())).await? {
                PutOutcome::Done(version) => SwapOutcome::Done(version),
                PutOutcome::Lost => SwapOutcome::Lost,
                PutOutcome::Ambiguous(error) => SwapOutcome::Ambiguous(error),
            })
        })
    }

    /// Removes the object. A missing one is no error: `false` where the store says that there was none, but `true` does not prove
    /// that there was one (S3 does not tell).
    ///
    /// # Errors
    /// `Invalid` key, `Denied`, `Unavailable`; the deletion may have taken effect and may be repeated.
    pub fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let full = self.full(key)?;
            let deadline = self.0.options.write_deadline;
            self.timed(Call::Delete, key, |_| 0, deadline, self.0.backend.delete(&full)).await
        })
    }

    /// All objects below `prefix` (whole segments; empty: all), sorted by key.
    ///
    /// # Errors
    /// As [`Store::list_stream`]. Never a part of the listing: any error is the whole answer.
    pub fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<ObjectInfo>>> {
        Box::pin(async move {
            let mut found: Vec<ObjectInfo> = self.list_stream(prefix)?.try_collect().await?;
            found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            Ok(found)
        })
    }

    /// The objects below `prefix` (whole segments; empty: all) as pages arrive, in no promised order. The listing is complete only if
    /// the stream ended without an error.
    ///
    /// # Errors
    /// `Invalid` prefix at once; in the stream `Denied` and `Unavailable`.
    pub fn list_stream(&self, prefix: &str) -> Result<BoxStream<'static, Result<ObjectInfo>>> {
        let below = key::join(&self.0.prefix, key::check_list_prefix(prefix)?);
        let (this, shown) = (self.clone(), prefix.to_owned());
        this.0.counters.started(Call::List);
        let started = self.0.env.monotonic();
        let strip = if self.0.prefix.is_empty() { 0 } else { self.0.prefix.len() + 1 };
        let pages = self.0.backend.list(&below);
        // The state is `None` once an error was given out: a listing that failed is over.
        let stream = futures::stream::unfold(Some(pages), move |pages| {
            let (this, shown, below) = (this.clone(), shown.clone(), below.clone());
            async move {
                let mut pages = pages?;
                let next = this.0.env.timeout(this.0.options.read_deadline, pages.next()).await;
                let failed = match next {
                    Ok(None) => {
                        this.observe(Call::List, 0, started, None);
                        return None;
                    }
                    Ok(Some(Ok(mut info))) if key::is_below(&below, &info.key) => {
                        info.key.drain(..strip);
                        return Some((Ok(info), Some(pages)));
                    }
                    Ok(Some(Ok(info))) => {
                        let alien: String = info.key.chars().take(80).flat_map(char::escape_debug).collect();
                        Error::corrupt(format!("the store listed {alien}, which is not below the prefix"))
                    }
                    Ok(Some(Err(error))) => error,
                    Err(_) => deadline_passed(this.0.options.read_deadline),
                };
                this.observe(Call::List, 0, started, Some(failed.kind()));
                Some((Err(this.named(Call::List, &shown, failed)), None))
            }
        });
        Ok(stream.boxed())
    }

    fn full(&self, key: &str) -> Result<String> {
        key::check_key(key)?;
        Ok(key::join(&self.0.prefix, key))
    }

    fn named(&self, call: Call, key: &str, error: Error) -> Error {
        error.at(format!("{} {key}", call.as_str())).at(&self.0.name)
    }

    fn observe(&self, call: Call, bytes: u64, started: Duration, failed: Option<ErrorKind>) {
        let seen = Observed { call, bytes, took: self.0.env.monotonic().saturating_sub(started), failed };
        self.0.counters.finished(&seen);
        if let Some(observer) = &self.0.options.observer {
            observer(&seen);
        }
    }

    /// Counts, bounds and names one call.
    async fn timed<T>(
        &self,
        call: Call,
        key: &str,
        bytes: impl Fn(&T) -> u64,
        deadline: Duration,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.0.counters.started(call);
        let started = self.0.env.monotonic();
        let result = match self.0.env.timeout(deadline, request).await {
            Ok(result) => result,
            Err(_) => Err(deadline_passed(deadline)),
        };
        let result = result.map_err(|e| self.named(call, key, e));
        match &result {
            Ok(value) => self.observe(call, bytes(value), started, None),
            Err(error) => self.observe(call, 0, started, Some(error.kind())),
        }
        result
    }

    async fn read<T, F>(&self, call: Call, key: &str, bytes: impl Fn(&T) -> u64, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let deadline = self.0.options.read_deadline;
        if !self.0.options.hedge {
            return self.timed(call, key, bytes, deadline, request()).await;
        }
        let started = self.0.env.monotonic();
        let result = self.timed(call, key, bytes, deadline, self.hedged(&request)).await;
        if result.is_ok() {
            self.0.hedge.record(self.0.env.monotonic().saturating_sub(started));
        }
        result
    }

    /// The first good answer of one or two requests; an error only when no request is left.
    async fn hedged<T, F>(&self, request: &impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut first = Box::pin(request());
        let Some(delay) = self.0.hedge.delay() else { return first.await };
        if let Ok(answer) = self.0.env.timeout(delay, &mut first).await {
            return answer;
        }
        if !self.0.hedge.take() {
            return first.await;
        }
        self.0.counters.hedges.fetch_add(1, Ordering::Relaxed);
        let mut second = Box::pin(request());
        tokio::select! {
            biased;
            answer = &mut first => match answer {
                Ok(value) => Ok(value),
                Err(_) => second.await,
            },
            answer = &mut second => match answer {
                Ok(value) => {
                    self.0.counters.hedges_won.fetch_add(1, Ordering::Relaxed);
                    Ok(value)
                }
                Err(_) => first.await,
            },
        }
    }

    async fn write(&self, call: Call, key: &str, bytes: Bytes, condition: Condition) -> Result<PutOutcome> {
        let full = self.full(key)?;
        let len = bytes.len() as u64;
        let deadline = self.0.options.write_deadline;
        // A put that is given up may be in flight: only then is the answer "nobody knows" made here.
        let request = async {
            match self.0.env.timeout(deadline, self.0.backend.put(&full, bytes, condition)).await {
                Ok(result) => result,
                Err(_) => Ok(PutOutcome::Ambiguous(deadline_passed(deadline))),
            }
        };
        self.0.counters.started(call);
        let started = self.0.env.monotonic();
        let result = request.await.map_err(|e| self.named(call, key, e)).map(|outcome| match outcome {
            PutOutcome::Ambiguous(error) => PutOutcome::Ambiguous(self.named(call, key, error)),
            other => other,
        });
        let (sent, failed) = match &result {
            Ok(PutOutcome::Done(_)) => (len, None),
            Ok(PutOutcome::Lost) => (0, None),
            Ok(PutOutcome::Ambiguous(error)) | Err(error) => (0, Some(error.kind())),
        };
        self.observe(call, sent, started, failed);
        result
    }
}

fn deadline_passed(deadline: Duration) -> Error {
    Error::unavailable(format!("no answer within {} s", deadline.as_secs_f64()))
}
