//! Names of all metrics of the daemon, with unit and help. None has a workspace as a label: names of workspaces are unbounded.

/// Whether a value only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows from the start of the daemon.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A metric. Its Prometheus name is `name`, with `_total` behind a counter's; the OpenTelemetry name is the same.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name, without `_total`.
    pub name: &'static str,
    /// Unit, as UCUM has it.
    pub unit: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
}

macro_rules! metrics {
    ($($const:ident $kind:ident $name:literal $unit:literal $help:literal;)*) => {
        $(#[doc = $help] pub const $const: &Metric = &Metric { name: $name, unit: $unit, help: $help, kind: Kind::$kind };)*
        /// All of them.
        pub const ALL: &[&Metric] = &[$($const),*];
    };
}

metrics! {
    WORKSPACES Gauge "hiloop_workspace_attached" "{workspace}" "Workspaces attached for write, those being drained included.";
    MOUNTS Gauge "hiloop_workspace_mounts" "{mount}" "Mounts served.";
    TAILS Gauge "hiloop_workspace_tails" "{tail}" "Openings in the journal that nobody attached: recover or a mount takes them.";
    NOT_LIVE Gauge "hiloop_workspace_not_live" "{workspace}" "Workspaces that are fenced, read-only or without a head.";
    REPLICATION_FAILING Gauge "hiloop_workspace_replication_failing" "{workspace}" "Workspaces whose last attempt to publish failed.";
    BACKLOG_BYTES Gauge "hiloop_workspace_backlog_bytes" "By" "Accepted bytes that are not published.";
    BACKLOG_OPERATIONS Gauge "hiloop_workspace_backlog_operations" "{operation}" "Accepted operations that are not published.";
    UNJOURNALED_RECORDS Gauge "hiloop_workspace_unflushed_records" "{record}" "Accepted records that are not on the node's disk yet.";
    LAG_SECONDS Gauge "hiloop_workspace_lag_seconds" "s" "Age of the oldest change that is not published, over all workspaces.";
    STORE_THROUGHPUT Gauge "hiloop_workspace_store_throughput" "By/s" "Measured throughput of publishing, the highest of all workspaces.";
    CACHE_BYTES Gauge "hiloop_cache_bytes" "By" "Bytes in the disk cache.";
    CACHE_PENDING_DELETE_BYTES Gauge "hiloop_cache_pending_delete_bytes" "By" "Bytes of the disk cache that are condemned and not given back yet.";
    CACHE_ENTRIES Gauge "hiloop_cache_entries" "{entry}" "Entries in the disk cache.";
    CACHE_HITS Counter "hiloop_cache_hits" "{lookup}" "Lookups that the disk cache answered.";
    CACHE_MISSES Counter "hiloop_cache_misses" "{lookup}" "Lookups that the disk cache could not answer.";
    CACHE_FILLS Counter "hiloop_cache_fills" "{fill}" "Frames stored in the disk cache.";
    CACHE_FILL_DROPS Counter "hiloop_cache_fill_drops" "{fill}" "Frames that the disk cache did not keep.";
    CACHE_EVICTED Counter "hiloop_cache_evicted" "{entry}" "Entries evicted from the disk cache, by reason.";
    CACHE_CORRUPT Counter "hiloop_cache_damaged" "{entry}" "Entries whose bytes were damaged or gone; they were fetched again.";
    MEMORY_BYTES Gauge "hiloop_memory_bytes" "By" "Decoded manifest nodes and chunks in memory, by kind.";
    JOURNAL_BYTES Gauge "hiloop_journal_bytes" "By" "Bytes of journal segments that count.";
    STAGING_BYTES Gauge "hiloop_journal_staging_bytes" "By" "Bytes of staging slabs.";
    FUSE_REQUESTS Counter "hiloop_fuse_requests" "{request}" "Requests of the kernel, by opcode.";
    FUSE_ERRORS Counter "hiloop_fuse_errors" "{request}" "Requests answered with an errno; a name that does not exist counts.";
    FUSE_IO_ERRORS Counter "hiloop_fuse_io_errors" "{request}" "Requests answered with EIO.";
    FUSE_WAITING Gauge "hiloop_fuse_waiting" "{request}" "Requests that wait now, by what for.";
    FUSE_INODES Gauge "hiloop_fuse_inodes" "{inode}" "Inodes that the kernel holds.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_well_formed() {
        let mut names: Vec<_> = ALL.iter().map(|m| m.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        for m in ALL {
            assert!(m.name.starts_with("hiloop_") && m.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", m.name);
            assert!(!m.name.ends_with("_total") && m.help.ends_with('.') && !m.unit.is_empty(), "{}", m.name);
        }
    }
}
