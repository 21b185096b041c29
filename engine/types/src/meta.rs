//! The small ordered key-value store behind a node's journal (`protocols.md` 2.7).
//!
//! Promise: a batch is applied whole or not at all, over all columns; batches survive a crash as a *prefix* of the order in
//! which they were written; everything written before [`MetaStore::flush`] began is durable when it returns. What was written
//! after the last flush may or may not survive: the journal, not this store, is the log.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock};

use crate::{Error, Result};

/// Longest key, bytes. Room for a directory key with the longest name; implementations refuse longer ones.
pub const META_KEY_MAX: usize = 1024;

/// A column family: its own key space, flushed atomically with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Column {
    /// Cursors and small records of the node: applied sequence number, sessions, workspaces.
    State,
    /// Accepted changes that no published manifest holds yet.
    Overlay,
    /// What the disk cache holds. Losing it loses only cache.
    Residency,
}

impl Column {
    /// Every column, in the order of the enum.
    pub const ALL: [Self; 3] = [Self::State, Self::Overlay, Self::Residency];

    /// The name under which the column stands on disk. Never changes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Overlay => "overlay",
            Self::Residency => "residency",
        }
    }
}

/// One change of a [`MetaBatch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaOp {
    /// Sets a key.
    Put(Column, Vec<u8>, Vec<u8>),
    /// Removes a key; a key that is not there is no error.
    Delete(Column, Vec<u8>),
    /// Removes every key that starts with the prefix; the empty prefix empties the column.
    DeletePrefix(Column, Vec<u8>),
}

/// Changes that become visible and durable together, applied in the order they were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaBatch {
    ops: Vec<MetaOp>,
    bytes: usize,
}

impl MetaBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }
    /// Sets `key` to `value`.
    pub fn put(&mut self, column: Column, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        let (key, value) = (key.into(), value.into());
        self.bytes += key.len() + value.len();
        self.ops.push(MetaOp::Put(column, key, value));
    }
    /// Removes `key`.
    pub fn delete(&mut self, column: Column, key: impl Into<Vec<u8>>) {
        let key = key.into();
        self.bytes += key.len();
        self.ops.push(MetaOp::Delete(column, key));
    }
    /// Removes every key that starts with `prefix`.
    pub fn delete_prefix(&mut self, column: Column, prefix: impl Into<Vec<u8>>) {
        let prefix = prefix.into();
        self.bytes += prefix.len();
        self.ops.push(MetaOp::DeletePrefix(column, prefix));
    }
    /// The changes in order.
    pub fn ops(&self) -> &[MetaOp] {
        &self.ops
    }
    /// Number of changes.
    pub fn len(&self) -> usize {
        self.ops.len()
    }
    /// Whether there is nothing to apply.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
    /// Bytes of all keys and values: what a writer bounds its batches by.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// Refuses keys that the store could not hold.
    ///
    /// # Errors
    /// Invalid, when a key or prefix is longer than [`META_KEY_MAX`].
    pub fn check(&self) -> Result<()> {
        for op in &self.ops {
            let (MetaOp::Put(column, key, _) | MetaOp::Delete(column, key) | MetaOp::DeletePrefix(column, key)) = op;
            if key.len() > META_KEY_MAX {
                let what = format!("a key of {} bytes exceeds the limit of {META_KEY_MAX}", key.len());
                return Err(Error::invalid(what).at(column.name()));
            }
        }
        Ok(())
    }
}

/// First key after every key that starts with `prefix`; `None` if no such key exists (empty, or only `0xff`).
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// A small ordered key-value store; see the module for what it promises.
pub trait MetaStore: Send + Sync {
    /// The value of `key`.
    ///
    /// # Errors
    /// Corrupt when stored bytes fail their checksum, Internal when the disk fails.
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Shows every key that starts with `prefix`, in ascending order, as of the time of the call, until `visit` answers false.
    ///
    /// # Errors
    /// As [`Self::get`]; keys seen before the error are valid.
    fn scan(&self, column: Column, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// Applies a batch atomically.
    ///
    /// # Errors
    /// Invalid for a key above [`META_KEY_MAX`]; Exhausted, Corrupt or Internal as the disk answers. Nothing was applied.
    fn write(&self, batch: MetaBatch) -> Result<()>;

    /// Makes everything written so far durable, all columns at one point.
    ///
    /// # Errors
    /// As [`Self::write`]; what was written is then still readable but at risk.
    fn flush(&self) -> Result<()>;
}

/// [`MetaStore`] in memory: for tests, and for nodes of the simulator, which lose what was not flushed.
#[derive(Default)]
pub struct MemoryMeta(RwLock<Memory>);

type Table = BTreeMap<(Column, Vec<u8>), Vec<u8>>;

#[derive(Default)]
struct Memory {
    live: Table,
    durable: Table,
    /// Batches in the order of their coming.
    unflushed: Vec<Vec<MetaOp>>,
}

impl MemoryMeta {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
    /// Forgets everything that was not flushed, as a crash may.
    pub fn crash(&self) {
        self.crash_keeping(|_| 0);
    }
    /// Forgets what was not flushed, but for the first batches: as many as `keep` makes of their number.
    pub fn crash_keeping(&self, keep: impl FnOnce(usize) -> usize) {
        let mut m = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let unflushed = std::mem::take(&mut m.unflushed);
        let kept = keep(unflushed.len());
        for op in unflushed.into_iter().take(kept).flatten() {
            apply(&mut m.durable, op);
        }
        m.live = m.durable.clone();
    }
}

fn apply(table: &mut Table, op: MetaOp) {
    match op {
        MetaOp::Put(column, key, value) => {
            table.insert((column, key), value);
        }
        MetaOp::Delete(column, key) => {
            table.remove(&(column, key));
        }
        MetaOp::DeletePrefix(column, prefix) => {
            let doomed: Vec<_> = prefix_range(table, column, &prefix).map(|(k, _)| k.clone()).collect();
            for key in doomed {
                table.remove(&key);
            }
        }
    }
}

fn prefix_range<'a>(table: &'a Table, column: Column, prefix: &'a [u8]) -> impl Iterator<Item = (&'a (Column, Vec<u8>), &'a Vec<u8>)> {
    let start = Bound::Included((column, prefix.to_vec()));
    table.range((start, Bound::Unbounded)).take_while(move |((c, k), _)| *c == column && k.starts_with(prefix))
}

impl MetaStore for MemoryMeta {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let m = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Ok(m.live.get(&(column, key.to_vec())).cloned())
    }

    fn scan(&self, column: Column, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        // Copied, so that `visit` may write to the store and still sees the state at the time of the call.
        let rows: Vec<(Vec<u8>, Vec<u8>)> = {
            let m = self.0.read().unwrap_or_else(PoisonError::into_inner);
            prefix_range(&m.live, column, prefix).map(|((_, k), v)| (k.clone(), v.clone())).collect()
        };
        for (key, value) in &rows {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, batch: MetaBatch) -> Result<()> {
        batch.check()?;
        let mut m = self.0.write().unwrap_or_else(PoisonError::into_inner);
        m.unflushed.push(batch.ops.clone());
        for op in batch.ops {
            apply(&mut m.live, op);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut m = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Memory { durable, unflushed, .. } = &mut *m;
        for op in unflushed.drain(..).flatten() {
            apply(durable, op);
        }
        Ok(())
    }
}

/// Test support: runs every promise of [`MetaStore`] against an implementation. `reopen` first closes what it was given (the
/// unflushed part may or may not survive, as after a crash), then opens the same store again; its first call, with `None`, opens an empty one.
///
/// # Panics
/// Panics at the first promise that does not hold.
pub fn check_conformance(reopen: &mut dyn FnMut(Option<Box<dyn MetaStore>>) -> Box<dyn MetaStore>) {
    use Column::{Overlay, Residency, State};
    let rows = |s: &dyn MetaStore, c: Column, prefix: &[u8]| {
        let mut out: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        s.scan(c, prefix, &mut |k, v| {
            out.push((k.to_vec(), v.to_vec()));
            true
        })
        .expect("scan");
        out
    };
    let row = |k: &[u8], v: &[u8]| (k.to_vec(), v.to_vec());
    let store = reopen(None);

    // Columns are key spaces of their own; order is that of unsigned bytes; a scan stops when told.
    let mut b = MetaBatch::new();
    b.put(State, b"a", b"1");
    b.put(Overlay, b"a", b"2");
    for k in [&b"p"[..], b"p\x00", b"p\xff", b"p\xff\xff", b"q", b"o\xff", b"\xff", b"\xff\xff", b""] {
        b.put(Residency, k, k);
    }
    assert_eq!((b.len(), b.bytes()), (11, 32));
    store.write(b).expect("write");
    assert_eq!(store.get(State, b"a").expect("get"), Some(b"1".to_vec()));
    assert_eq!(store.get(Overlay, b"a").expect("get"), Some(b"2".to_vec()));
    assert_eq!(store.get(Residency, b"a").expect("get"), None);
    assert_eq!(store.get(Residency, b"").expect("get"), Some(Vec::new()));
    let with_p = [&b"p"[..], b"p\x00", b"p\xff", b"p\xff\xff"].map(|k| row(k, k));
    assert_eq!(rows(&*store, Residency, b"p"), with_p);
    assert_eq!(rows(&*store, Residency, b"\xff"), [row(b"\xff", b"\xff"), row(b"\xff\xff", b"\xff\xff")]);
    assert_eq!(rows(&*store, Residency, b"").len(), 9);
    let mut seen = 0;
    store
        .scan(Residency, b"p", &mut |_, _| {
            seen += 1;
            seen < 2
        })
        .expect("scan");
    assert_eq!(seen, 2);

    // A scan shows the state at its start, whatever `visit` writes.
    let mut seen = Vec::new();
    store
        .scan(Residency, b"p", &mut |k, _| {
            let mut b = MetaBatch::new();
            b.delete(Residency, b"p\xff\xff");
            b.put(Residency, b"p\x01", b"late");
            store.write(b).expect("write in scan");
            seen.push(k.to_vec());
            true
        })
        .expect("scan");
    assert_eq!(seen, with_p.clone().map(|(k, _)| k));
    assert_eq!(rows(&*store, Residency, b"p").len(), 4);

    // Within a batch the order counts, also for prefixes; prefixes without a successor end at the column's end.
    let mut b = MetaBatch::new();
    b.delete_prefix(Residency, b"p");
    b.put(Residency, b"p\xff", b"again");
    b.delete_prefix(Residency, b"\xff");
    b.put(State, b"gone", b"x");
    b.delete(State, b"gone");
    b.delete(State, b"never there");
    store.write(b).expect("write");
    assert_eq!(rows(&*store, Residency, b"p"), [row(b"p\xff", b"again")]);
    assert_eq!(rows(&*store, Residency, b"\xff"), []);
    assert_eq!(rows(&*store, State, b""), [row(b"a", b"1")]);
    let mut b = MetaBatch::new();
    b.delete_prefix(Residency, b"");
    store.write(b).expect("write");
    assert_eq!(rows(&*store, Residency, b""), []);
    assert_eq!(rows(&*store, Overlay, b""), [row(b"a", b"2")]);

    // A key above the limit refuses the whole batch.
    let mut b = MetaBatch::new();
    b.put(State, b"before", b"x");
    b.put(State, vec![0xff; META_KEY_MAX + 1], b"x");
    assert_eq!(store.write(b).map_err(|e| e.kind()), Err(crate::ErrorKind::Invalid));
    assert_eq!(store.get(State, b"before").expect("get"), None);
    let longest = vec![0xff; META_KEY_MAX];
    let mut b = MetaBatch::new();
    b.put(Overlay, longest.clone(), b"end");
    store.write(b).expect("write");
    assert_eq!(rows(&*store, Overlay, b"\xff"), [row(&longest, b"end")]);
    let mut b = MetaBatch::new();
    b.delete_prefix(Overlay, b"\xff");
    store.write(b).expect("write");
    assert_eq!(store.get(Overlay, &longest).expect("get"), None);

    // Flushed is kept over a reopening; of the rest a prefix of whole batches is kept, over all columns.
    store.flush().expect("flush");
    let batch = |n: u8| {
        let mut b = MetaBatch::new();
        for c in Column::ALL {
            b.put(c, b"seq", [n]);
        }
        b.put(Overlay, vec![b'n', n], vec![n; 100]);
        b
    };
    for n in 0..10 {
        store.write(batch(n)).expect("write");
    }
    store.flush().expect("flush");
    for n in 10..20 {
        store.write(batch(n)).expect("write");
    }
    let store = reopen(Some(store));
    let kept = store.get(State, b"seq").expect("get").expect("flushed");
    assert!((9..20).contains(&kept[0]), "a flushed batch is missing: {kept:?}");
    for c in Column::ALL {
        assert_eq!(store.get(c, b"seq").expect("get").as_ref(), Some(&kept), "columns stand at different points");
    }
    assert_eq!(rows(&*store, Overlay, b"n").len(), usize::from(kept[0]) + 1);
    assert_eq!(store.get(State, b"a").expect("get"), Some(b"1".to_vec()));
    let mut b = MetaBatch::new();
    b.delete_prefix(Overlay, b"n");
    store.write(b).expect("write");
    store.flush().expect("flush");
    let store = reopen(Some(store));
    assert_eq!(rows(&*store, Overlay, b"n"), []);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Shared(Arc<MemoryMeta>);

    impl MetaStore for Shared {
        fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>> {
            self.0.get(column, key)
        }
        fn scan(&self, column: Column, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
            self.0.scan(column, prefix, visit)
        }
        fn write(&self, batch: MetaBatch) -> Result<()> {
            self.0.write(batch)
        }
        fn flush(&self) -> Result<()> {
            self.0.flush()
        }
    }

    #[test]
    fn memory_conforms_over_crashes() {
        let kept = Arc::new(MemoryMeta::new());
        check_conformance(&mut |_| {
            kept.crash();
            Box::new(Shared(kept.clone()))
        });
    }

    #[test]
    fn memory_conforms_over_clean_reopenings() {
        let kept = Arc::new(MemoryMeta::new());
        check_conformance(&mut |_| Box::new(Shared(kept.clone())));
    }

    #[test]
    fn a_crash_keeps_exactly_what_was_flushed() {
        let m = MemoryMeta::new();
        let put = |v: &[u8]| {
            let mut b = MetaBatch::new();
            b.put(Column::State, b"k", v);
            m.write(b).unwrap();
        };
        put(b"1");
        m.flush().unwrap();
        put(b"2");
        m.crash();
        assert_eq!(m.get(Column::State, b"k").unwrap(), Some(b"1".to_vec()));
        m.flush().unwrap();
        m.crash();
        assert_eq!(m.get(Column::State, b"k").unwrap(), Some(b"1".to_vec()));
    }

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }
}
