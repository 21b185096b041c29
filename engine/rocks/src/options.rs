//! RocksDB's settings: bounded memory, atomic flush, paranoid checks.

use hiloop_types::limits::MIB;
use rocksdb::{BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, LogLevel, Options, WriteBufferManager};

/// Least memory that works, bytes.
const MEMORY_MIN: u64 = 8 * MIB;
/// Table files kept open: their readers count in the cache, their descriptors here.
const OPEN_FILES: i32 = 128;
/// RocksDB's own text log, bytes; two files of it are kept.
const INFO_LOG: usize = MIB as usize;

/// Settings that share one memory budget.
pub(crate) struct Tuned {
    cache: Cache,
    memtables: WriteBufferManager,
    memory: usize,
}

impl Tuned {
    pub(crate) fn new(memory: u64) -> Self {
        let memory = memory.max(MEMORY_MIN) as usize;
        let cache = Cache::new_lru_cache(memory);
        // Memtables are charged to the cache, so that `memory` bounds both; half of it is theirs. No stall: a writer that is
        // over the limit starts a flush, and the journal's own bound keeps it from running away.
        let memtables = WriteBufferManager::new_write_buffer_manager_with_cache(memory / 2, false, cache.clone());
        Self { cache, memtables, memory }
    }

    pub(crate) fn database(&self) -> Options {
        let mut o = Options::default();
        o.create_if_missing(true);
        o.create_missing_column_families(true);
        o.set_paranoid_checks(true);
        // With the log off this is what makes a crash fall back to one point over all columns.
        o.set_atomic_flush(true);
        o.set_write_buffer_manager(&self.memtables);
        o.set_max_open_files(OPEN_FILES);
        // Two threads: one flush need not wait for a compaction, and a node has few cores to spare.
        o.set_max_background_jobs(2);
        o.set_bytes_per_sync(MIB);
        o.set_log_level(LogLevel::Warn);
        o.set_max_log_file_size(INFO_LOG);
        o.set_keep_log_file_num(2);
        o.set_stats_dump_period_sec(0);
        o
    }

    pub(crate) fn column(&self, name: &str) -> ColumnFamilyDescriptor {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&self.cache);
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        table.set_bloom_filter(10.0, false);
        table.set_block_size(8 << 10);
        let mut o = Options::default();
        o.set_block_based_table_factory(&table);
        o.set_write_buffer_size(self.memory / 8);
        o.set_target_file_size_base(8 * MIB);
        o.set_level_compaction_dynamic_level_bytes(true);
        o.set_compression_type(DBCompressionType::Lz4);
        ColumnFamilyDescriptor::new(name, o)
    }
}
