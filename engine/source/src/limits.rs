//! Bounds on a source, so that a hostile or broken one ends in an error instead of a full disk or memory.

use hiloop_types::limits::{GIB, MIB};
use hiloop_types::{Error, Result};

use crate::path::shown;
use crate::sink::Progress;

/// Highest depth limit that may be asked for: deletions by whiteout recurse once a level.
pub const DEPTH_MAX: usize = 4096;
/// Longest name of an extended attribute, bytes (the kernel's XATTR_NAME_MAX).
pub(crate) const XATTR_NAME_MAX: usize = 255;
/// Largest pax or long-name header, bytes: several times what 64 KiB of attribute names with a full value or two need.
pub(crate) const EXTENSION_MAX: u64 = 4 * MIB;
/// Extension headers in front of one entry: one of each kind, and room for repeated global ones.
pub(crate) const EXTENSIONS_MAX: usize = 16;
/// Data ranges of one sparse file.
pub(crate) const RANGES_MAX: usize = 1 << 20;
/// Largest JSON document of an image, bytes (what registries allow).
pub(crate) const DOCUMENT_MAX: u64 = 4 * MIB;
/// Indexes that are followed to find an image's manifest.
pub(crate) const INDEXES_MAX: usize = 256;
/// Content bytes between two calls of the progress function inside one file.
const PROGRESS_BYTES: u64 = 4 * MIB;
/// Memory of one entry besides its names and attributes, bytes: node and inode, twice while the order is made.
const ENTRY_BYTES: u64 = 512;

/// What a source may hold at most. The defaults are generous, and finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLimits {
    /// Entries of all kinds, those that are replaced or deleted later included.
    pub entries: u64,
    /// Content bytes (without holes); also the unpacked bytes of one archive or layer, headers included.
    pub bytes: u64,
    /// Components of a path; at most [`DEPTH_MAX`].
    pub depth: usize,
    /// Memory for metadata, bytes: names, targets, attributes, data ranges and a fixed part for each entry.
    pub metadata_bytes: u64,
    /// Unpacked bytes for each packed byte, applied to a compressed archive or layer once it has unpacked [`Self::expansion_free`].
    pub expansion: u64,
    /// Unpacked bytes of one archive or layer that are allowed at any ratio.
    pub expansion_free: u64,
}

impl Default for SourceLimits {
    fn default() -> Self {
        Self {
            entries: 10_000_000,
            bytes: 16 << 40,
            depth: 1024,
            metadata_bytes: 8 * GIB,
            // Deflate cannot pass 1 032; zstd of zeros passes 30 000.
            expansion: 10_000,
            expansion_free: GIB,
        }
    }
}

/// The error of every limit: says which, and how much it is.
pub(crate) fn beyond(limit: &str, most: u64, unit: &str) -> Error {
    Error::exhausted(format!("the source goes beyond the limit `{limit}` of {most} {unit}"))
}

/// Counts against the limits and reports progress.
pub(crate) struct Meter<'a> {
    pub(crate) limits: &'a SourceLimits,
    progress: &'a mut dyn FnMut(Progress),
    seen: Progress,
    metadata: u64,
    reserved: u64,
    reported: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(limits: &'a SourceLimits, progress: &'a mut dyn FnMut(Progress)) -> Self {
        Self { limits, progress, seen: Progress::default(), metadata: 0, reserved: 0, reported: 0 }
    }

    /// One more entry at `path`.
    pub(crate) fn entry(&mut self, path: &[u8]) -> Result<()> {
        self.seen.entries += 1;
        if self.seen.entries > self.limits.entries {
            return Err(beyond("entries", self.limits.entries, "entries").at(shown(path)));
        }
        self.metadata(path, ENTRY_BYTES)?;
        (self.progress)(self.seen);
        Ok(())
    }

    /// Memory that is kept for `path`.
    pub(crate) fn metadata(&mut self, path: &[u8], bytes: u64) -> Result<()> {
        self.metadata = self.metadata.saturating_add(bytes);
        if self.metadata > self.limits.metadata_bytes {
            return Err(beyond("metadata_bytes", self.limits.metadata_bytes, "bytes").at(shown(path)));
        }
        Ok(())
    }

    /// Content that is about to be read, so that a file too large is refused before its first byte.
    pub(crate) fn reserve(&mut self, path: &[u8], bytes: u64) -> Result<()> {
        self.reserved = self.reserved.saturating_add(bytes);
        if self.reserved > self.limits.bytes {
            return Err(beyond("bytes", self.limits.bytes, "bytes").at(shown(path)));
        }
        Ok(())
    }

    /// Content that was read.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.seen.bytes += bytes;
        if self.seen.bytes - self.reported >= PROGRESS_BYTES {
            self.reported = self.seen.bytes;
            (self.progress)(self.seen);
        }
    }
}
