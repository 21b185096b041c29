//! From an [`Answer`] to the bytes of a message: a head on the stack and, where there is one, a body that stays where it is.

use std::io::IoSlice;
use std::time::Duration;

use crate::abi::{OUT_HEADER, Opcode};
use crate::answer::{Answer, Attr, Entry, Opened};
use crate::request::Time;

/// The longest head: the answer to STATX.
const HEAD: usize = OUT_HEADER + 288;
/// The kernel takes errors below this; anything else would leave the request unanswered.
const ERRNO_MAX: i32 = 512;
/// What STATX tells: STATX_BASIC_STATS and STATX_BTIME.
const STATX_MASK: u32 = 0xfff;

/// The part of a message that is not borrowed.
pub(crate) struct Head {
    bytes: [u8; HEAD],
    len: usize,
}

/// The part that is.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    None,
    One(&'a [u8]),
    Parts(&'a [IoSlice<'a>]),
}

impl Body<'_> {
    fn len(&self) -> usize {
        match self {
            Body::None => 0,
            Body::One(data) => data.len(),
            Body::Parts(parts) => parts.iter().map(|p| p.len()).sum(),
        }
    }
}

impl Head {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }
    fn u16(&mut self, n: u16) -> &mut Self {
        self.put(&n.to_ne_bytes())
    }
    fn u32(&mut self, n: u32) -> &mut Self {
        self.put(&n.to_ne_bytes())
    }
    fn i32(&mut self, n: i32) -> &mut Self {
        self.put(&n.to_ne_bytes())
    }
    fn u64(&mut self, n: u64) -> &mut Self {
        self.put(&n.to_ne_bytes())
    }
    fn zeros(&mut self, n: usize) -> &mut Self {
        // The array starts out as zeros.
        self.len += n;
        self
    }

    fn attr(&mut self, a: &Attr) -> &mut Self {
        self.put(&attr(a))
    }

    fn entry(&mut self, e: &Entry) -> &mut Self {
        self.put(&entry(e))
    }

    fn opened(&mut self, o: Opened) -> &mut Self {
        self.u64(o.fh).u32(o.flags).i32(o.backing_id)
    }

    fn statx(&mut self, valid: Duration, a: &Attr) {
        let time = |h: &mut Self, t: Time| {
            h.put(&t.secs.to_ne_bytes()).u32(t.nanos).zeros(4);
        };
        self.u64(valid.as_secs()).u32(valid.subsec_nanos()).zeros(4 + 16);
        self.u32(STATX_MASK).u32(a.blksize).u64(0).u32(a.nlink).u32(a.uid).u32(a.gid).u16(a.mode as u16).zeros(2);
        self.u64(a.ino).u64(a.size).u64(a.blocks).u64(0);
        [a.atime, a.btime, a.ctime, a.mtime].into_iter().for_each(|t| time(self, t));
        // What the kernel encoded: minor in the low and high bits, major between.
        let (major, minor) = ((a.rdev >> 8) & 0xfff, (a.rdev & 0xff) | ((a.rdev >> 12) & 0xf_ff00));
        self.u32(major).u32(minor).zeros(8 + 112);
    }
}

pub(crate) const ATTR: usize = 88;
pub(crate) const ENTRY: usize = 40 + ATTR;

fn attr(a: &Attr) -> [u8; ATTR] {
    let mut out = [0; ATTR];
    let wide = [a.ino, a.size, a.blocks, a.atime.secs as u64, a.mtime.secs as u64, a.ctime.secs as u64];
    let narrow = [a.atime.nanos, a.mtime.nanos, a.ctime.nanos, a.mode, a.nlink, a.uid, a.gid, a.rdev, a.blksize, 0];
    let (first, second) = out.split_at_mut(wide.len() * 8);
    first.as_chunks_mut::<8>().0.iter_mut().zip(wide).for_each(|(b, n)| *b = n.to_ne_bytes());
    second.as_chunks_mut::<4>().0.iter_mut().zip(narrow).for_each(|(b, n)| *b = n.to_ne_bytes());
    out
}

pub(crate) fn entry(e: &Entry) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    let wide = [e.nodeid, e.generation, e.entry_valid.as_secs(), e.attr_valid.as_secs()];
    out.as_chunks_mut::<8>().0.iter_mut().zip(wide).for_each(|(b, n)| *b = n.to_ne_bytes());
    out[32..36].copy_from_slice(&e.entry_valid.subsec_nanos().to_ne_bytes());
    out[36..40].copy_from_slice(&e.attr_valid.subsec_nanos().to_ne_bytes());
    out[40..].copy_from_slice(&attr(&e.attr));
    out
}

/// Encodes the answer to request `unique`.
pub(crate) fn encode<'a>(unique: u64, opcode: Opcode, answer: &Answer<'a>) -> (Head, Body<'a>) {
    let mut head = Head { bytes: [0; HEAD], len: OUT_HEADER };
    let mut error = 0;
    let mut body = Body::None;
    match *answer {
        Answer::Error(code) => error = if (1..ERRNO_MAX).contains(&code) { code } else { libc::EIO },
        Answer::Empty => {}
        Answer::Entry(e) => {
            head.entry(e);
        }
        Answer::Attr { valid, attr } => {
            head.u64(valid.as_secs()).u32(valid.subsec_nanos()).zeros(4).attr(attr);
        }
        Answer::StatX { valid, attr } => head.statx(valid, attr),
        Answer::Opened(o) => {
            head.opened(o);
        }
        Answer::Created(e, o) => {
            head.entry(e).opened(o);
        }
        Answer::Data(data) => body = Body::One(data),
        Answer::Parts(parts) => body = Body::Parts(parts),
        Answer::Written(n) => {
            head.u32(n).zeros(4);
        }
        Answer::Copied(n) if opcode == Opcode::COPY_FILE_RANGE => {
            head.u32(u32::try_from(n).unwrap_or(u32::MAX)).zeros(4);
        }
        Answer::Copied(n) | Answer::LSeek(n) | Answer::BMap(n) => {
            head.u64(n);
        }
        Answer::StatFs(s) => {
            head.u64(s.blocks).u64(s.bfree).u64(s.bavail).u64(s.files).u64(s.ffree);
            head.u32(s.bsize).u32(s.namelen).u32(s.frsize).zeros(4 + 24);
        }
        Answer::XattrSize(n) | Answer::Poll(n) => {
            head.u32(n).zeros(4);
        }
        Answer::Lock(l) => {
            head.u64(l.start).u64(l.end).u32(l.kind).u32(l.pid);
        }
        Answer::IoCtl { result, data } => {
            head.i32(result).zeros(12);
            body = Body::One(data);
        }
        Answer::Listing(l) => body = Body::One(l.bytes()),
        Answer::ListingPlus(l) => body = Body::One(l.bytes()),
        Answer::Recorded(message) => match message.split_first_chunk::<OUT_HEADER>() {
            Some((header, rest)) => {
                error = i32::from_ne_bytes([header[4], header[5], header[6], header[7]]).wrapping_neg();
                body = Body::One(rest);
            }
            None => error = libc::EIO,
        },
    }
    let total = (head.len + body.len()) as u32;
    head.bytes[..4].copy_from_slice(&total.to_ne_bytes());
    head.bytes[4..8].copy_from_slice(&(-error).to_ne_bytes());
    head.bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    (head, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(answer: &Answer<'_>) -> Vec<u8> {
        let (head, body) = encode(7, Opcode::LOOKUP, answer);
        let mut out = head.bytes().to_vec();
        match body {
            Body::None => {}
            Body::One(data) => out.extend(data),
            Body::Parts(parts) => parts.iter().for_each(|p| out.extend(&**p)),
        }
        assert_eq!(out[..4], (out.len() as u32).to_ne_bytes());
        assert_eq!(out[8..16], 7u64.to_ne_bytes());
        out
    }

    #[test]
    fn answers_have_the_lengths_of_the_protocol() {
        let (e, a, o, s) = (Entry::default(), Attr::default(), Opened::default(), crate::answer::StatFs::default());
        let valid = Duration::from_secs(1);
        for (answer, len) in [
            (Answer::Empty, 0),
            (Answer::Entry(&e), 128),
            (Answer::Attr { valid, attr: &a }, 104),
            (Answer::StatX { valid, attr: &a }, 288),
            (Answer::Opened(o), 16),
            (Answer::Created(&e, o), 144),
            (Answer::Written(1), 8),
            (Answer::StatFs(&s), 80),
            (Answer::XattrSize(1), 8),
            (Answer::LSeek(1), 8),
            (Answer::Lock(crate::request::Lock::default()), 24),
            (Answer::IoCtl { result: 0, data: b"abc" }, 19),
            (Answer::Parts(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]), 3),
        ] {
            assert_eq!(bytes(&answer).len(), OUT_HEADER + len);
        }
        assert_eq!(encode(1, Opcode::COPY_FILE_RANGE, &Answer::Copied(u64::MAX)).0.bytes()[16..20], u32::MAX.to_ne_bytes());
        assert_eq!(encode(1, Opcode::COPY_FILE_RANGE_64, &Answer::Copied(5)).0.bytes()[16..], 5u64.to_ne_bytes());
    }

    #[test]
    fn an_errno_that_the_kernel_would_refuse_becomes_eio() {
        for (given, sent) in [(libc::ENOENT, libc::ENOENT), (0, libc::EIO), (-2, libc::EIO), (512, libc::EIO), (i32::MIN, libc::EIO)] {
            assert_eq!(bytes(&Answer::Error(given))[4..8], (-sent).to_ne_bytes());
        }
    }

    #[test]
    fn a_recorded_message_comes_back_under_the_new_number() {
        let entry = Entry { nodeid: 5, ..Entry::default() };
        for answer in [Answer::Entry(&entry), Answer::Error(libc::EEXIST)] {
            let first = bytes(&answer);
            assert_eq!(bytes(&Answer::Recorded(&first)), first);
            let again = encode(9, Opcode::MKDIR, &Answer::Recorded(&first)).0;
            assert_eq!(again.bytes()[8..16], 9u64.to_ne_bytes());
        }
        assert_eq!(bytes(&Answer::Recorded(b"short"))[4..8], (-libc::EIO).to_ne_bytes());
    }
}
