//! A directory as a store, with compare-and-swap across processes and nothing but the object's bytes in each file.
//!
//! ```text
//! <root>/heads/ws-1           one file per object, the key is the path, the content is the object (plain tools can read it)
//! <root>/.tmp/<32 hex>        objects being written; nothing here is an object
//! <root>/.locks/<00..ff>      empty files that are flocked, never removed; a key's stripe is the first byte of BLAKE3(key)
//! ```
//!
//! **Version.** The BLAKE3 of the content, as S3's tag is its MD5: nothing beside the bytes is needed, so it survives copies and is right
//! across processes and hosts, where inode numbers and times are not. Equal bytes are an equal version; whoever must tell two writes
//! apart puts a nonce into them, as on S3.
//!
//! **Writing.** Bytes go to a file under `.tmp`, which is flushed; then, under the exclusive flock of the key's stripe, the condition is
//! checked, the file is renamed over the key, and the key's directory is flushed. Deletion takes the same lock. So conditions are exact
//! between threads, processes and (where flock reaches) hosts, and the answer comes after the data are durable. Readers take no lock: a
//! rename is atomic, an open file does not change. A reader may see an object whose directory entry is not flushed yet.
//!
//! **Recovery.** A crash at any point leaves the old object or the new one, and at worst a file under `.tmp`; those older than
//! a day are removed at the next open (no put lives that long). Locks are the kernel's: they die with their holder.
//!
//! **Away.** A root that is missing, or another directory than the one that was opened (its file system was unmounted), is `Unavailable`:
//! no object is then called absent, and none is written there.
//!
//! **Limits.** A key cannot be both an object and a directory of others (`a` and `a/b`): such a put is refused, named. An error between
//! the rename and the flush of the directory is ambiguous. Anything in the tree that is neither file nor directory is an error, not
//! skipped; names that start with a dot are no objects.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hiloop_env::Env;
use hiloop_types::{Error, ErrorKind, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::backend::{Backend, Condition, ObjectInfo, PutOutcome, Version, Versioned};

const TEMPORARY: &str = ".tmp";
const LOCKS: &str = ".locks";
/// A file under `.tmp` older than this belongs to no living put.
const TEMPORARY_AGE: Duration = Duration::from_secs(24 * 3600);

/// A store in a directory of a local or network file system.
pub struct FileBackend {
    root: Arc<Root>,
    env: Env,
}

struct Root {
    dir: PathBuf,
    /// Device and inode of the directory as it was opened.
    identity: OnceLock<(u64, u64)>,
}

impl FileBackend {
    /// Opens the store in `dir`; makes the directory if `create` and it is missing.
    ///
    /// # Errors
    /// `NotFound` for a missing directory without `create`; else what the operating system says, with the path.
    pub async fn open(dir: PathBuf, create: bool, env: Env) -> Result<Self> {
        let root = Arc::new(Root { dir, identity: OnceLock::new() });
        let (wall, opening) = (env.wall(), root.clone());
        blocking(&env, move || opening.open(create, wall)).await?;
        Ok(Self { root, env })
    }
}

/// Runs file system calls off the async threads.
async fn blocking<T: Send + 'static>(env: &Env, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match env.blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Error::internal(format!("a file system call did not return: {e}"))),
    }
}

#[async_trait]
impl Backend for FileBackend {
    async fn get(&self, key: &str) -> Result<Option<Versioned>> {
        let (root, key) = (self.root.clone(), key.to_owned());
        blocking(&self.env, move || root.read(&key)).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Option<Bytes>> {
        let (root, key) = (self.root.clone(), key.to_owned());
        blocking(&self.env, move || root.read_range(&key, offset, len)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        let (root, key) = (self.root.clone(), key.to_owned());
        blocking(&self.env, move || {
            let Some(file) = root.open_object(&key)? else { return Ok(None) };
            let meta = file.metadata().map_err(|e| io_error(&root.path(&key), &e))?;
            Ok(Some(info(&key, &meta)))
        })
        .await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<PutOutcome> {
        let (root, key) = (self.root.clone(), key.to_owned());
        let name = format!("{:016x}{:016x}", self.env.random_u64(), self.env.random_u64());
        blocking(&self.env, move || root.write(&key, &name, &bytes, &condition)).await
    }

    async fn delete(&self, key: &str) -> Result<bool> {
        let (root, key) = (self.root.clone(), key.to_owned());
        blocking(&self.env, move || root.remove(&key)).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>> {
        let (root, prefix, env) = (self.root.clone(), prefix.to_owned(), self.env.clone());
        let walk = async move {
            blocking(&env, move || {
                let mut found = Vec::new();
                root.walk(&root.path(&prefix), &prefix, &mut found)?;
                Ok(found)
            })
            .await
        };
        walk.map(|result| match result {
            Ok(found) => stream::iter(found.into_iter().map(Ok).collect::<Vec<_>>()),
            Err(error) => stream::iter(vec![Err(error)]),
        })
        .flatten_stream()
        .boxed()
    }
}

impl Root {
    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(key)
    }

    /// One of the store's own directories, made at the first write: reading leaves no trace.
    fn own(&self, name: &str) -> Result<PathBuf> {
        self.present()?;
        let dir = self.dir.join(name);
        make_directories(&dir)?;
        Ok(dir)
    }

    fn open(&self, create: bool, wall: Duration) -> Result<()> {
        if create {
            make_directories(&self.dir)?;
        }
        match fs::metadata(&self.dir) {
            Ok(meta) if meta.is_dir() => _ = self.identity.set((meta.dev(), meta.ino())),
            Ok(_) => return Err(Error::invalid("the store's path is not a directory").at(self.dir.display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(Error::not_found("the store's directory does not exist").at(self.dir.display()));
            }
            Err(e) => return Err(io_error(&self.dir, &e)),
        }
        self.sweep(wall)
    }

    /// Whether the directory is the one that was opened. A file system that was unmounted, or a directory that was moved away, is a store
    /// that is away: nothing in it is absent, and nothing may be written in its place.
    fn present(&self) -> Result<()> {
        let found = fs::metadata(&self.dir).map(|meta| (meta.dev(), meta.ino()));
        match (found, self.identity.get()) {
            (Ok(found), Some(opened)) if found == *opened => Ok(()),
            (Err(e), _) if e.kind() != io::ErrorKind::NotFound => Err(io_error(&self.dir, &e)),
            _ => Err(Error::unavailable("the store's directory is gone")
                .at(self.dir.display())
                .hint("bring it back at this path, or mount its file system again")),
        }
    }

    /// Removes what dead writers left behind.
    fn sweep(&self, wall: Duration) -> Result<()> {
        let dir = self.dir.join(TEMPORARY);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            // Nobody wrote here yet.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(io_error(&dir, &e)),
        };
        for entry in entries {
            let entry = entry.map_err(|e| io_error(&dir, &e))?;
            let Ok(meta) = entry.metadata() else { continue };
            if wall.saturating_sub(modified(&meta)) > TEMPORARY_AGE {
                // Another opener may have removed it; what cannot be removed harms nobody.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// The file of an object, or `None` where there is none.
    fn open_object(&self, key: &str) -> Result<Option<File>> {
        let path = self.path(key);
        match File::open(&path) {
            Ok(file) => {
                let meta = file.metadata().map_err(|e| io_error(&path, &e))?;
                Ok(meta.is_file().then_some(file))
            }
            // A key below an object (`a/b` where `a` is one) names nothing.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => self.present().map(|()| None),
            Err(e) => Err(io_error(&path, &e)),
        }
    }

    fn read(&self, key: &str) -> Result<Option<Versioned>> {
        let Some(mut file) = self.open_object(key)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|e| io_error(&self.path(key), &e))?;
        let version = version_of(&bytes);
        Ok(Some(Versioned { bytes: bytes.into(), version }))
    }

    fn read_range(&self, key: &str, offset: u64, len: u64) -> Result<Option<Bytes>> {
        let Some(file) = self.open_object(key)? else { return Ok(None) };
        let size = file.metadata().map_err(|e| io_error(&self.path(key), &e))?.len();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::corrupt(format!("the object has {size} bytes, {len} at {offset} were asked for")));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, offset).map_err(|e| io_error(&self.path(key), &e))?;
        Ok(Some(bytes.into()))
    }

    fn write(&self, key: &str, name: &str, bytes: &[u8], condition: &Condition) -> Result<PutOutcome> {
        let target = self.path(key);
        let parent = target.parent().unwrap_or(&self.dir);
        // Nothing is written for a condition that cannot hold; under the lock it is looked at again.
        if *condition == Condition::Absent && self.open_object(key)?.is_some() {
            return Ok(PutOutcome::Lost);
        }
        let temporary = Temporary::write(self.own(TEMPORARY)?.join(name), bytes)?;
        make_directories(parent)?;
        let _lock = self.lock(key)?;
        let holds = match condition {
            Condition::Always => true,
            Condition::Absent => self.open_object(key)?.is_none(),
            Condition::Version(wanted) => self.read(key)?.is_some_and(|there| there.version == *wanted),
        };
        if !holds {
            return Ok(PutOutcome::Lost);
        }
        temporary.rename(&target).map_err(|e| key_error(&target, &e))?;
        match flush_directory(parent) {
            Ok(()) => Ok(PutOutcome::Done(version_of(bytes))),
            Err(error) => Ok(PutOutcome::Ambiguous(error)),
        }
    }

    fn remove(&self, key: &str) -> Result<bool> {
        let target = self.path(key);
        let _lock = self.lock(key)?;
        if self.open_object(key)?.is_none() {
            return Ok(false);
        }
        fs::remove_file(&target).map_err(|e| io_error(&target, &e))?;
        flush_directory(target.parent().unwrap_or(&self.dir))?;
        Ok(true)
    }

    /// The exclusive lock of the key's stripe: one open file per call, so threads exclude each other as processes do.
    fn lock(&self, key: &str) -> Result<Flock<File>> {
        let stripe = blake3::hash(key.as_bytes()).as_bytes()[0];
        let path = self.own(LOCKS)?.join(format!("{stripe:02x}"));
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(|e| io_error(&path, &e))?;
        loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(lock) => return Ok(lock),
                Err((back, nix::errno::Errno::EINTR)) => file = back,
                Err((_, errno)) => return Err(io_error(&path, &errno.into())),
            }
        }
    }

    fn walk(&self, dir: &Path, key: &str, found: &mut Vec<ObjectInfo>) -> Result<()> {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return self.present(),
            Err(e) => return Err(io_error(dir, &e)),
        };
        for entry in entries {
            let entry = entry.map_err(|e| io_error(dir, &e))?;
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_str().ok_or_else(|| Error::corrupt("a name in the store that is not UTF-8").at(path.display()))?;
            if name.starts_with('.') {
                continue;
            }
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                // Deleted since the directory was read.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(io_error(&path, &e)),
            };
            let below = crate::key::join(key, name);
            if meta.is_dir() {
                self.walk(&path, &below, found)?;
            } else if meta.is_file() {
                found.push(info(&below, &meta));
            } else {
                return Err(Error::corrupt("neither file nor directory in the store").at(path.display()));
            }
        }
        Ok(())
    }
}

/// A flushed file under `.tmp` that disappears unless it is renamed.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    fn write(path: PathBuf, bytes: &[u8]) -> Result<Self> {
        let mut file = OpenOptions::new().create_new(true).write(true).open(&path).map_err(|e| io_error(&path, &e))?;
        let this = Self { path, renamed: false };
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| io_error(&this.path, &e))?;
        Ok(this)
    }

    fn rename(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // What stays is swept at a later open.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes a directory and its missing parents, each durable in its parent.
fn make_directories(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let Some(parent) = dir.parent() else { return Ok(()) };
    make_directories(parent)?;
    match fs::create_dir(dir) {
        // One made by somebody else is flushed too: it may not be on disk yet.
        Ok(()) => flush_directory(parent),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            if dir.is_dir() {
                flush_directory(parent)
            } else {
                Err(key_error(dir, &io::ErrorKind::NotADirectory.into()))
            }
        }
        Err(e) => Err(key_error(dir, &e)),
    }
}

fn flush_directory(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| io_error(dir, &e))
}

fn version_of(bytes: &[u8]) -> Version {
    Version::from_tag(blake3::hash(bytes).to_hex().as_str())
}

fn modified(meta: &fs::Metadata) -> Duration {
    Duration::new(meta.mtime().max(0) as u64, meta.mtime_nsec().clamp(0, 999_999_999) as u32)
}

fn info(key: &str, meta: &fs::Metadata) -> ObjectInfo {
    ObjectInfo { key: key.to_owned(), size: meta.len(), modified: modified(meta), version: None }
}

/// What the operating system says, in the store's terms: a medium that fails is an unavailable store, like a server that answers 500.
fn io_error(path: &Path, e: &io::Error) -> Error {
    let error = Error::io(path.display(), e);
    match error.kind() {
        ErrorKind::Internal | ErrorKind::NotFound | ErrorKind::Conflict => Error::unavailable(error.what()).at(path.display()),
        _ => error,
    }
}

/// [`io_error`], but an object where a directory is needed (or the other way round) is the caller's fault.
fn key_error(path: &Path, e: &io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            Error::invalid("a directory store cannot hold an object and others below it").at(path.display())
        }
        _ => io_error(path, e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Versions are kept in journals: the same bytes must have the same version in every release.
    #[test]
    fn the_version_of_known_bytes_is_pinned() {
        let version = version_of(b"");
        assert_eq!(version.e_tag.as_deref(), Some("af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"));
        assert_eq!(version.generation, None);
    }
}
