//! A tar stream as the source, alone or as a layer of an image.

mod archive;
mod field;
mod pax;
mod sparse;

use std::io::{self, Read};

use hiloop_types::{Error, Result};

use self::archive::{Archive, Entry, EntryKind};
use crate::builder::Builder;
use crate::inflate::unpacked;
use crate::limits::Meter;
use crate::path::{components, join, lift, shown, truncated};
use crate::sink::{ContentSink, Delivery, Shape, deliver};
use crate::tree::{SourceInode, SourceKind};

const WHITEOUT: &[u8] = b".wh.";
/// Names that start with this are layer metadata, never deletions.
const WHITEOUT_META: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What a tar stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// A whole tree. It must have its end marker: nothing else tells that it was not cut at a header.
    Archive,
    /// One layer, with whiteouts; its digest tells that it is whole.
    Layer,
}

/// Unpacks a stream to its end, packed or not, into `builder`.
pub(crate) fn unpack_stream(
    packed: Box<dyn Read + '_>,
    flavour: Flavour,
    builder: &mut Builder,
    sink: &mut dyn ContentSink,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let mut stream = unpacked(packed, meter.limits)?;
    let mut archive = Archive::new(&mut stream);
    let mut applier = Applier { flavour, builder, sink, meter };
    while let Some(entry) = archive.next_entry()? {
        applier.apply(entry, &mut archive)?;
    }
    if flavour == Flavour::Archive && !archive.ended() {
        return Err(truncated());
    }
    // What follows the end marker is padding, but a decoder checks its sums there, and a pipe's writer wants to be read out.
    io::copy(&mut stream, &mut io::sink()).map_err(|e| lift(&e))?;
    Ok(())
}

struct Applier<'a, 'm> {
    flavour: Flavour,
    builder: &'a mut Builder,
    sink: &'a mut dyn ContentSink,
    meter: &'a mut Meter<'m>,
}

impl Applier<'_, '_> {
    fn apply<R: Read>(&mut self, mut entry: Entry, archive: &mut Archive<R>) -> Result<()> {
        let told = std::mem::take(&mut entry.path);
        let parts = components(&told, self.meter.limits)?;
        let path = join(&parts);
        let Some((name, above)) = parts.split_last() else {
            let EntryKind::Inode(kind) = entry.kind else {
                return Err(Error::invalid("the root of the tree is a hard link").at(shown(&path)));
            };
            return self.builder.set_root(inode(kind, entry), self.meter);
        };
        if self.flavour == Flavour::Layer && name.starts_with(WHITEOUT) {
            return self.delete(above, name, &path);
        }
        let parent = self.builder.directory(above, self.meter)?;
        match entry.kind {
            EntryKind::HardLink => {
                let target = components(&entry.link, self.meter.limits).map_err(|e| e.at(shown(&path)))?;
                let inode = self.target(&target).map_err(|e| e.at(shown(&path)))?;
                self.builder.link(parent, name, &path, inode, self.meter)
            }
            EntryKind::Inode(SourceKind::File) => {
                let mut inode = inode(SourceKind::File, entry);
                let shape = Shape { size: inode.size, data: inode.data.as_deref() };
                match deliver(self.sink, self.meter, &path, shape, archive)? {
                    Delivery::Whole(content) => inode.content = Some(content),
                    Delivery::Short => return Err(truncated().at(shown(&path))),
                }
                self.builder.put(parent, name, &path, inode, self.meter).map(drop)
            }
            EntryKind::Inode(kind) => self.builder.put(parent, name, &path, inode(kind, entry), self.meter).map(drop),
        }
    }

    /// The inode that a hard link names.
    fn target(&self, parts: &[&[u8]]) -> Result<usize> {
        match self.builder.find(parts)? {
            Some(node) if self.builder.is_directory(node) => Err(Error::invalid("a hard link to a directory").at(shown(&join(parts)))),
            Some(node) => Ok(self.builder.inode_of(node)),
            None => Err(Error::invalid("a hard link to something that did not come before").at(shown(&join(parts)))),
        }
    }

    /// Applies a whiteout; one for something that is not there is nothing.
    fn delete(&mut self, above: &[&[u8]], name: &[u8], path: &[u8]) -> Result<()> {
        self.meter.entry(path)?;
        let Some(directory) = self.builder.find_directory(above)? else { return Ok(()) };
        if name == OPAQUE {
            self.builder.opaque(directory);
            return Ok(());
        }
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(Error::invalid("a whiteout of no name").at(shown(path)));
        }
        if !name.starts_with(WHITEOUT_META) {
            self.builder.whiteout(directory, hidden);
        }
        Ok(())
    }
}

fn inode(kind: SourceKind, entry: Entry) -> SourceInode {
    let target = if kind == SourceKind::Symlink { entry.link } else { Vec::new() };
    SourceInode {
        kind,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        mtime: entry.mtime,
        rdev: entry.rdev,
        size: if kind == SourceKind::File { entry.size } else { target.len() as u64 },
        target,
        xattrs: entry.xattrs,
        content: None,
        data: entry.data,
        nlink: 0,
    }
}
