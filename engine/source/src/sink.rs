//! Where contents go while a source is read.

use std::io::{self, Read};
use std::path::Path;

use hiloop_types::{Error, Result};

use crate::limits::Meter;
use crate::path::{as_path, lift, shown};
use crate::tree::{DataRange, covered};

/// What the sink made of one content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Content {
    /// The sink's own name for it; this crate only carries it.
    pub handle: u64,
    /// Bytes that the sink read: the file's size less its holes.
    pub size: u64,
}

/// The form of one file, known before its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Bytes of the file with its holes.
    pub size: u64,
    /// Where the bytes of the reader belong, in order; `None` if the file has no holes. Everything outside reads as zeros.
    pub data: Option<&'a [DataRange]>,
}

/// Takes the contents of a source.
pub trait ContentSink {
    /// Reads `reader` to its end and returns a name for the bytes. The reader gives the file's data ranges one after another, without
    /// the holes. Called once for each regular file (once for all hard links to it; also for an empty file), in arrival order. A file
    /// that changed while it was read comes again; the content returned first is then not part of the tree.
    ///
    /// # Errors
    /// Any error ends the reading of the source.
    fn content(&mut self, path: &Path, shape: Shape<'_>, reader: &mut dyn Read) -> Result<Content>;
}

/// How far the reading has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Entries met.
    pub entries: u64,
    /// Content bytes read.
    pub bytes: u64,
}

/// What became of one content.
pub(crate) enum Delivery {
    Whole(Content),
    /// The reader ended before the shape said so.
    Short,
}

/// Hands one content to the sink, exactly as many bytes as its shape promises.
pub(crate) fn deliver(
    sink: &mut dyn ContentSink,
    meter: &mut Meter<'_>,
    path: &[u8],
    shape: Shape<'_>,
    source: &mut dyn Read,
) -> Result<Delivery> {
    let expected = shape.data.map_or(shape.size, covered);
    meter.reserve(path, expected)?;
    let mut reader = Measured { source, meter, left: expected, ended: false, failure: None };
    let given = sink.content(as_path(path), shape, &mut reader);
    let Measured { left, ended, failure, .. } = reader;
    if let Some(failure) = failure {
        return Err(failure.at(shown(path)));
    }
    if ended && left > 0 {
        return Ok(Delivery::Short);
    }
    let content = given.map_err(|e| e.at(shown(path)))?;
    if left > 0 || content.size != expected {
        return Err(
            Error::internal(format!("the sink took {} of {expected} bytes and reports {}", expected - left, content.size)).at(shown(path))
        );
    }
    Ok(Delivery::Whole(content))
}

/// Gives a sink the promised bytes and no more, counts them, and keeps the error that the sink may have reworded.
struct Measured<'a, 'm> {
    source: &'a mut dyn Read,
    meter: &'a mut Meter<'m>,
    left: u64,
    ended: bool,
    failure: Option<Error>,
}

impl Read for Measured<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 || self.ended {
            return Ok(0);
        }
        match self.source.read(&mut buf[..want]) {
            Ok(got) => {
                self.ended = got == 0;
                self.left -= got as u64;
                self.meter.advance(got as u64);
                Ok(got)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                let again = io::Error::new(e.kind(), e.to_string());
                self.failure = Some(lift(&e));
                Err(again)
            }
        }
    }
}
