//! What a caller chooses when it opens a journal, and the faults that tests plant.

use hiloop_types::limits;

/// Which room a record may take when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Ordinary records: refused with an exhausted error while only the reserve is left.
    Data,
    /// Records that free space or end work (unlink, truncate, fsync bookkeeping): may use the reserved segments.
    Reserve,
}

/// What to do when recovery finds damage (a bad record with whole ones behind it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnDamage {
    /// Open read-only with the prefix replayed and nothing written: the default, until a person or a policy decides.
    #[default]
    ReadOnly,
    /// Keep the prefix if the missing record was not provably flushed (a power cut in the middle of a flush looks like this);
    /// read-only otherwise.
    KeepPrefixIfUncertain,
    /// Keep the prefix and go on: the `recover` command. The loss stays in the report.
    KeepPrefix,
}

/// Sizes and policies of one journal.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Bytes of a segment file; at least 4 KiB.
    pub segment_size: u64,
    /// Bytes of a staging slab; at least 4 KiB.
    pub slab_size: u64,
    /// Spare segments kept ready, the reserve included.
    pub preallocate: usize,
    /// Of these, segments that only [`Class::Reserve`] may open.
    pub reserve: usize,
    /// Unsynced staging bytes at which a stager is refused until they are flushed; write-back starts at half of it.
    pub staging_dirty: u64,
    /// Run the committer and upkeep threads. Without them the caller drives [`crate::Journal::maintain`] (the simulator does).
    pub background: bool,
    /// Policy for damage.
    pub on_damage: OnDamage,
    #[cfg(test)]
    pub(crate) fault: Option<Fault>,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            segment_size: 16 * limits::MIB,
            slab_size: 64 * limits::MIB,
            preallocate: 2,
            reserve: 1,
            staging_dirty: limits::STAGING_DIRTY,
            background: true,
            on_damage: OnDamage::ReadOnly,
            #[cfg(test)]
            fault: None,
        }
    }
}

/// Ways to break the protocol that the simulation must notice (each names the rule it drops).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// 2.4: claims and marks the flushed seqno before staging is flushed.
    JournalBeforeStaging,
    /// 2.4: does not flush segments at all.
    SkipJournalFlush,
    /// 2.4: recovery believes records above the last flushed seqno without looking at their staging.
    SkipStagingCheck,
    /// 2.5: recovery counts pages that it did not write.
    SkipRewrite,
    /// 2.5: recovery acts on an anchor that may stand in the page cache only.
    TrustAnchor,
    /// New files are used before their directory is flushed.
    SkipDirectorySync,
    /// A failed flush is tried again on the same pages.
    RetryFailedFlush,
    /// Released segments are reused although the anchor still counts them.
    SkipAnchorAtRelease,
}

impl JournalOptions {
    /// Whether a test planted this fault; always false in a real build.
    #[cfg(test)]
    pub(crate) fn planted(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
    /// Whether a test planted this fault; always false in a real build.
    #[cfg(not(test))]
    pub(crate) fn planted(&self, _fault: Fault) -> bool {
        false
    }
}
