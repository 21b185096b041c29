//! The packing of an archive or a layer: told by its first bytes, undone, bounded.

use std::cell::Cell;
use std::io::{self, BufReader, Cursor, Read};
use std::rc::Rc;

use hiloop_types::{Error, Result};

use crate::limits::{SourceLimits, beyond};
use crate::path::lift;

/// Bytes that tell a packing.
const MAGIC: usize = 6;
/// Read ahead of a decoder, and of the tar reader, bytes.
const BUFFER: usize = 256 * 1024;

/// The unpacked bytes of `packed`: gzip (all members), zstd (all frames), or as they are.
pub(crate) fn unpacked<'a>(mut packed: Box<dyn Read + 'a>, limits: &SourceLimits) -> Result<Box<dyn Read + 'a>> {
    let mut start = Vec::with_capacity(MAGIC);
    packed.by_ref().take(MAGIC as u64).read_to_end(&mut start).map_err(|e| lift(&e))?;
    let taken = Rc::new(Cell::new(0));
    let counted = Counted { inner: Cursor::new(start.clone()).chain(packed), taken: Rc::clone(&taken) };
    let buffered = BufReader::with_capacity(BUFFER, counted);
    let (inner, compressed): (Box<dyn Read + 'a>, bool) = match start[..] {
        [0x1f, 0x8b, ..] => (Box::new(flate2::bufread::MultiGzDecoder::new(buffered)), true),
        // A frame, or a skippable frame in front of one.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            (Box::new(zstd::stream::read::Decoder::with_buffer(buffered).map_err(|e| lift(&e))?), true)
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0] => return Err(unsupported("xz")),
        [b'B', b'Z', b'h', ..] => return Err(unsupported("bzip2")),
        [0x04, 0x22, 0x4d, 0x18, ..] => return Err(unsupported("lz4")),
        _ => (Box::new(buffered), false),
    };
    let bounded =
        Bounded { inner, taken, given: 0, bytes: limits.bytes, expansion: compressed.then_some((limits.expansion, limits.expansion_free)) };
    Ok(Box::new(BufReader::with_capacity(BUFFER, bounded)))
}

fn unsupported(packing: &str) -> Error {
    Error::invalid(format!("the archive is packed with {packing}"))
        .hint("plain tar, gzip and zstd are read; unpack it into a pipe and use -")
}

struct Counted<R> {
    inner: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        self.taken.set(self.taken.get() + got as u64);
        Ok(got)
    }
}

/// Ends a stream that goes beyond the limits.
struct Bounded<R> {
    inner: R,
    /// Packed bytes so far.
    taken: Rc<Cell<u64>>,
    /// Unpacked bytes so far.
    given: u64,
    bytes: u64,
    /// Ratio, and the bytes from which it holds.
    expansion: Option<(u64, u64)>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        self.given += got as u64;
        if self.given > self.bytes {
            return Err(io::Error::other(beyond("bytes", self.bytes, "unpacked bytes")));
        }
        if let Some((ratio, free)) = self.expansion
            && self.given > free
            && self.given > self.taken.get().saturating_mul(ratio)
        {
            return Err(io::Error::other(beyond("expansion", ratio, "unpacked bytes for each packed byte")));
        }
        Ok(got)
    }
}
