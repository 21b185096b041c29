//! [`MetaStore`] on RocksDB: the index behind a node's journal (`protocols.md` 2.7).
//!
//! RocksDB's own log is off, since the journal is the log: a crash falls back to the last flush, and atomic flush makes that
//! one point over all columns. Flushes also happen on their own when a memtable is full; they too keep a prefix of whole batches.
//!
//! On disk: a RocksDB directory with the column families of [`Column::name`] and an empty `default`. The format is RocksDB's,
//! pinned by the exact version in `Cargo.toml`; what stands in keys and values is specified by who writes them.

mod error;
mod options;

use std::path::{Path, PathBuf};

use hiloop_types::{Column, META_KEY_MAX, MetaBatch, MetaOp, MetaStore, Result, ResultExt, prefix_end};
use rocksdb::{ColumnFamily, DB, Direction, FlushOptions, IteratorMode, ReadOptions, WriteBatch, WriteOptions};

use crate::error::translate;

/// A RocksDB directory opened for read and write; one process at a time.
pub struct RocksMeta {
    db: DB,
    dir: PathBuf,
    write: WriteOptions,
}

impl RocksMeta {
    /// Opens the store in `dir`, making it if it is not there. `memory` bounds block cache, memtables and indexes together, in
    /// bytes (`limits::MEMORY_ROCKS`); below 8 MiB it is taken as 8 MiB, under which RocksDB would flush all the time.
    ///
    /// # Errors
    /// Conflict when another process has it open, Corrupt when its files do not hold together, Exhausted when the disk is
    /// full, otherwise as the operating system answers.
    pub fn open(dir: &Path, memory: u64) -> Result<Self> {
        let tuned = options::Tuned::new(memory);
        let columns = Column::ALL.map(|c| tuned.column(c.name())).into_iter().chain([tuned.column(rocksdb::DEFAULT_COLUMN_FAMILY_NAME)]);
        let db = DB::open_cf_descriptors(&tuned.database(), dir, columns).map_err(translate).at(dir.display())?;
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        Ok(Self { db, dir: dir.to_path_buf(), write })
    }

    fn column(&self, column: Column) -> &ColumnFamily {
        self.db.cf_handle(column.name()).expect("every column was opened with the store")
    }

    fn located<T>(&self, column: Column, done: Result<T, rocksdb::Error>) -> Result<T> {
        done.map_err(translate).at(column.name()).at(self.dir.display())
    }
}

impl MetaStore for RocksMeta {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.located(column, self.db.get_cf(self.column(column), key))
    }

    fn scan(&self, column: Column, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut read = ReadOptions::default();
        if let Some(end) = prefix_end(prefix) {
            read.set_iterate_upper_bound(end);
        }
        for row in self.db.iterator_cf_opt(self.column(column), read, IteratorMode::From(prefix, Direction::Forward)) {
            let (key, value) = self.located(column, row)?;
            if !key.starts_with(prefix) || !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, batch: MetaBatch) -> Result<()> {
        batch.check()?;
        let mut out = WriteBatch::default();
        for op in batch.ops() {
            match op {
                MetaOp::Put(column, key, value) => out.put_cf(self.column(*column), key, value),
                MetaOp::Delete(column, key) => out.delete_cf(self.column(*column), key),
                MetaOp::DeletePrefix(column, prefix) => {
                    // Without a successor the range ends behind the greatest key that `check` lets in.
                    let end = prefix_end(prefix).unwrap_or_else(|| vec![0xff; META_KEY_MAX + 1]);
                    out.delete_range_cf(self.column(*column), prefix.as_slice(), end.as_slice());
                }
            }
        }
        self.db.write_opt(out, &self.write).map_err(translate).at(self.dir.display())
    }

    fn flush(&self) -> Result<()> {
        let columns = Column::ALL.map(|c| self.column(c));
        let mut wait = FlushOptions::default();
        wait.set_wait(true);
        let columns: Vec<&&ColumnFamily> = columns.iter().collect();
        self.db.flush_cfs_opt(&columns, &wait).map_err(translate).at(self.dir.display())
    }
}

impl Drop for RocksMeta {
    fn drop(&mut self) {
        // Stops compactions now, so that unmounting does not wait for one.
        self.db.cancel_all_background_work(true);
    }
}

#[cfg(test)]
mod tests;
