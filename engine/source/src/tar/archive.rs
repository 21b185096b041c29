//! Entries of a tar stream: the header block, the extension headers in front of it, and the data after it.
//!
//! The `tar` crate gives the layout of the block only. Its own iterator keeps extension headers of any length in memory and knows no
//! pax sparse files.

use std::collections::BTreeMap;
use std::io::{self, Read};

use hiloop_types::limits::{FILE_MAX, SYMLINK_MAX};
use hiloop_types::{Error, Result};
use tar::Header;

use super::field::{number, size, text, time};
use super::pax::Pax;
use super::sparse;
use crate::limits::{EXTENSION_MAX, EXTENSIONS_MAX, beyond};
use crate::path::{lift, shown, truncated};
use crate::tree::{DataRange, SourceKind};
use crate::xattr;

/// Unit of a tar, bytes.
pub(super) const BLOCK: usize = 512;
/// Device numbers as Linux has them: 12 bits major, 20 bits minor.
const MAJOR_MAX: u64 = (1 << 12) - 1;
const MINOR_MAX: u64 = (1 << 20) - 1;

/// What an entry makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// A new inode.
    Inode(SourceKind),
    /// A further name for the inode at `link`.
    HardLink,
}

/// One entry, its extension headers applied.
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: (i64, u32),
    pub(super) rdev: u64,
    pub(super) size: u64,
    pub(super) data: Option<Vec<DataRange>>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A tar stream. As a reader it gives the data of the entry that came last.
pub(super) struct Archive<R> {
    stream: R,
    /// Data of the current entry that are still to be read.
    left: u64,
    /// Zeros behind them.
    padding: u64,
    global: Pax,
    ended: bool,
}

/// Extension headers seen in front of an entry.
#[derive(Default)]
struct Extensions {
    pax: Pax,
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    count: usize,
    /// Whether one of them needs an entry behind it.
    pending: bool,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, left: 0, padding: 0, global: Pax::default(), ended: false }
    }

    /// Whether the end marker was met.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// The next entry; `None` at the end marker or where the stream ends between two entries.
    pub(super) fn next_entry(&mut self) -> Result<Option<Entry>> {
        let mut extensions = Extensions::default();
        loop {
            self.skip()?;
            let Some(block) = read_block(&mut self.stream)? else {
                return if extensions.pending { Err(truncated()) } else { Ok(None) };
            };
            if block.iter().all(|b| *b == 0) {
                if extensions.pending {
                    return Err(Error::corrupt("the archive ends after an extension header"));
                }
                self.ended = true;
                return Ok(None);
            }
            let header = Header::from_byte_slice(&block);
            check_sum(&block, header)?;
            let flag = header.as_old().linkflag[0];
            if matches!(flag, b'x' | b'X' | b'g' | b'L' | b'K' | b'V') {
                self.extension(flag, &header.as_old().size, &mut extensions)?;
                continue;
            }
            let name = extensions.name(header, &self.global);
            return self.entry(&block, header, extensions).map(Some).map_err(|e| e.at(shown(&name)));
        }
    }

    /// Passes what is left of an entry.
    fn skip(&mut self) -> Result<()> {
        let rest = self.left + self.padding;
        let passed = io::copy(&mut self.stream.by_ref().take(rest), &mut io::sink()).map_err(|e| lift(&e))?;
        (self.left, self.padding) = (0, 0);
        if passed < rest { Err(truncated()) } else { Ok(()) }
    }

    /// Expects `stored` bytes of data from here on.
    fn expect(&mut self, stored: u64) -> Result<()> {
        if stored > FILE_MAX {
            return Err(Error::exhausted(format!("an entry of {stored} bytes, {FILE_MAX} are allowed")));
        }
        self.left = stored;
        self.padding = stored.next_multiple_of(BLOCK as u64) - stored;
        Ok(())
    }

    fn extension(&mut self, flag: u8, length: &[u8], extensions: &mut Extensions) -> Result<()> {
        extensions.count += 1;
        extensions.pending |= !matches!(flag, b'g' | b'V');
        if extensions.count > EXTENSIONS_MAX {
            return Err(beyond("extension headers of an entry", EXTENSIONS_MAX as u64, "headers"));
        }
        let length = size(length, "extension size")?;
        if length > EXTENSION_MAX {
            return Err(beyond("extension header", EXTENSION_MAX, "bytes"));
        }
        self.expect(length)?;
        let mut bytes = Vec::new();
        self.stream.by_ref().take(length).read_to_end(&mut bytes).map_err(|e| lift(&e))?;
        if (bytes.len() as u64) < length {
            return Err(truncated());
        }
        self.left = 0;
        match flag {
            b'g' => self.global.add(&bytes),
            b'L' => {
                extensions.path = Some(text(&bytes).to_vec());
                Ok(())
            }
            b'K' => {
                extensions.link = Some(text(&bytes).to_vec());
                Ok(())
            }
            // The label of a volume.
            b'V' => Ok(()),
            _ => extensions.pax.add(&bytes),
        }
    }

    fn entry(&mut self, block: &[u8; BLOCK], header: &Header, extensions: Extensions) -> Result<Entry> {
        let old = header.as_old();
        let path = extensions.name(header, &self.global);
        let Extensions { pax, link, .. } = extensions;
        let pax = pax.over(&self.global);
        let link = pax.get("linkpath").map(<[u8]>::to_vec).or(link).unwrap_or_else(|| text(&old.linkname).to_vec());
        let kind = entry_kind(old.linkflag[0], &path)?;
        let mode = number(&old.mode).ok_or_else(|| Error::corrupt("the header's mode is not a number"))?;
        let mtime = match pax.get("mtime") {
            Some(value) => time(value),
            None => number(&old.mtime).map(|seconds| (seconds, 0)),
        };
        let mut entry = Entry {
            kind,
            // Some archivers keep the file type in the upper bits.
            mode: (mode & 0o7777) as u32,
            uid: owner(pax.number("uid")?, &old.uid, "uid")?,
            gid: owner(pax.number("gid")?, &old.gid, "gid")?,
            mtime: mtime.ok_or_else(|| Error::corrupt("the modification time is not a number"))?,
            rdev: 0,
            size: 0,
            data: None,
            xattrs: BTreeMap::new(),
            path,
            link,
        };
        match kind {
            EntryKind::Inode(SourceKind::File) => {
                let stored = match pax.number("size")? {
                    Some(stored) => stored,
                    None => size(&old.size, "size")?,
                };
                self.file(block, stored, &pax, &mut entry)?;
            }
            EntryKind::Inode(SourceKind::Symlink) => check_target(&entry.link)?,
            EntryKind::Inode(SourceKind::CharDevice | SourceKind::BlockDevice) => entry.rdev = device(header)?,
            _ => {}
        }
        if kind != EntryKind::HardLink {
            xattr::check(&pax.xattrs)?;
            entry.xattrs = pax.xattrs;
        }
        Ok(entry)
    }

    /// Size and data ranges of a file, and where its data are.
    fn file(&mut self, block: &[u8; BLOCK], stored: u64, pax: &Pax, entry: &mut Entry) -> Result<()> {
        let real = match pax.number("GNU.sparse.realsize")? {
            Some(real) => Some(real),
            None => pax.number("GNU.sparse.size")?,
        };
        let version = (pax.number("GNU.sparse.major")?, pax.number("GNU.sparse.minor")?);
        let map = if block[156] == b'S' {
            let map = sparse::gnu(block, &mut self.stream)?;
            self.expect(stored)?;
            Some((map, size(&block[483..495], "real size")?))
        } else {
            self.expect(stored)?;
            match (version, real) {
                ((Some(1), Some(0)), Some(real)) => {
                    let (map, taken) = sparse::leading(&mut self.stream, stored)?;
                    self.left -= taken;
                    Some((map, real))
                }
                ((None, None) | (Some(0), _), Some(real)) => {
                    Some((pax.get("GNU.sparse.map").map_or_else(|| Ok(pax.map.clone()), sparse::listed)?, real))
                }
                ((None, None), None) => None,
                ((major, minor), _) => {
                    return Err(Error::invalid(format!(
                        "a sparse file of an unknown format {}.{}",
                        major.unwrap_or(0),
                        minor.unwrap_or(0)
                    )));
                }
            }
        };
        entry.size = stored;
        if let Some((map, real)) = map {
            entry.size = real;
            entry.data = sparse::ranges(&map, real, self.left)?;
        }
        if entry.size > FILE_MAX {
            return Err(Error::exhausted(format!("a file of {} bytes, {FILE_MAX} are allowed", entry.size)));
        }
        Ok(())
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.stream.read(&mut buf[..want])?;
        self.left -= got as u64;
        Ok(got)
    }
}

impl Extensions {
    /// The entry's name: a pax record, a GNU long name, or the header's own.
    fn name(&self, header: &Header, global: &Pax) -> Vec<u8> {
        for pax in [&self.pax, global] {
            if let Some(name) = pax.get("GNU.sparse.name").or_else(|| pax.get("path")) {
                return name.to_vec();
            }
        }
        if let Some(name) = &self.path {
            return name.clone();
        }
        let name = text(&header.as_old().name);
        match header.as_ustar().map(|ustar| text(&ustar.prefix)) {
            Some(prefix) if !prefix.is_empty() => [prefix, name].join(&b'/'),
            _ => name.to_vec(),
        }
    }
}

fn entry_kind(flag: u8, path: &[u8]) -> Result<EntryKind> {
    Ok(EntryKind::Inode(match flag {
        // Archives older than ustar mark a directory by its slash only.
        b'0' | 0 if path.ends_with(b"/") => SourceKind::Directory,
        b'0' | 0 | b'7' | b'S' => SourceKind::File,
        b'1' => return Ok(EntryKind::HardLink),
        b'2' => SourceKind::Symlink,
        b'3' => SourceKind::CharDevice,
        b'4' => SourceKind::BlockDevice,
        b'5' => SourceKind::Directory,
        b'6' => SourceKind::Fifo,
        other => return Err(Error::invalid(format!("an entry of the unknown type `{}`", other.escape_ascii()))),
    }))
}

fn check_target(target: &[u8]) -> Result<()> {
    if target.is_empty() || target.len() > SYMLINK_MAX || target.contains(&0) {
        return Err(Error::invalid(format!("a link target of {} bytes, 1 to {SYMLINK_MAX} without zeros are allowed", target.len())));
    }
    Ok(())
}

fn owner(pax: Option<u64>, field: &[u8], what: &str) -> Result<u32> {
    let id = match pax {
        Some(id) => id,
        None => size(field, what)?,
    };
    u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or_else(|| Error::invalid(format!("a {what} of {id} is no id")))
}

fn device(header: &Header) -> Result<u64> {
    let (major, minor) = match (header.as_ustar(), header.as_gnu()) {
        (Some(h), _) => (&h.dev_major, &h.dev_minor),
        (None, Some(h)) => (&h.dev_major, &h.dev_minor),
        (None, None) => return Err(Error::invalid("a device in a header that has no device numbers")),
    };
    let (major, minor) = (size(major, "device number")?, size(minor, "device number")?);
    if major > MAJOR_MAX || minor > MINOR_MAX {
        return Err(Error::invalid(format!("the device number {major}:{minor} is beyond {MAJOR_MAX}:{MINOR_MAX}")));
    }
    Ok(libc::makedev(major as u32, minor as u32))
}

/// The sum of all bytes with the sum's own field as blanks; old archivers took the bytes as signed.
fn check_sum(block: &[u8; BLOCK], header: &Header) -> Result<()> {
    let told = number(&header.as_old().cksum);
    let field = 148..156;
    let counted = block.iter().enumerate().map(|(i, b)| if field.contains(&i) { b' ' } else { *b });
    let (unsigned, signed) = counted.fold((0_i64, 0_i64), |(u, s), b| (u + i64::from(b), s + i64::from(b as i8)));
    if told == Some(unsigned) || told == Some(signed) {
        return Ok(());
    }
    Err(Error::corrupt("a header's checksum is wrong").hint("this is no tar archive, or it is damaged"))
}

/// The next block; `None` at the end of the stream.
pub(super) fn read_block(stream: &mut impl Read) -> Result<Option<[u8; BLOCK]>> {
    let mut block = [0; BLOCK];
    let mut got = 0;
    while got < BLOCK {
        match stream.read(&mut block[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(truncated()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(lift(&e)),
        }
    }
    Ok(Some(block))
}
