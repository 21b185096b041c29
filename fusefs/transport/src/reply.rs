//! The way back to the caller.

use std::io::IoSlice;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::abi::{Opcode, UNIQUE_RESEND};
use crate::answer::{Answer, Attr, Entry, Opened, StatFs};
use crate::dirbuf::{Listing, ListingPlus};
use crate::link::Link;
use crate::request::{Lock, Request};

/// Takes the answer of one request to a transport that is not this crate's.
pub trait Sink: Send {
    /// Sends it; false where nobody wants it any more.
    fn send(self: Box<Self>, answer: &Answer<'_>) -> bool;
}

enum Way {
    Device(Arc<Link>),
    Foreign(Box<dyn Sink>),
}

/// Answers one request, once, from any thread. Dropped without an answer it sends EIO and logs the defect.
///
/// Each answer tells whether the kernel took it: false means that the caller is gone, so that a reference given with an entry was not
/// counted.
#[must_use = "a reply that is dropped answers EIO"]
pub struct Reply {
    way: Option<Way>,
    unique: u64,
    opcode: Opcode,
    nodeid: u64,
    pid: u32,
}

impl Reply {
    pub(crate) fn device(link: Arc<Link>, request: &Request<'_>) -> Self {
        Self { way: Some(Way::Device(link)), unique: request.unique, opcode: request.opcode, nodeid: request.nodeid, pid: request.pid }
    }

    /// For a request that another transport read.
    pub fn foreign(opcode: Opcode, nodeid: u64, sink: Box<dyn Sink>) -> Self {
        Self { way: Some(Way::Foreign(sink)), unique: 0, opcode, nodeid, pid: 0 }
    }

    /// What it answers.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Thread of the caller; 0 where the kernel asks for itself, or where it is not seen from here.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn key(&self) -> u64 {
        self.unique & !UNIQUE_RESEND
    }

    /// Sends any answer.
    pub fn send(mut self, answer: &Answer<'_>) -> bool {
        self.give(answer)
    }

    fn give(&mut self, answer: &Answer<'_>) -> bool {
        match self.way.take() {
            Some(Way::Device(link)) => link.answer(self.unique, self.opcode, self.nodeid, answer),
            Some(Way::Foreign(sink)) => sink.send(answer),
            None => false,
        }
    }

    /// Has `hook` called once when the caller is interrupted; at once, where it was already. Where the answer overtakes the interrupt
    /// it may come after the answer, or never. It runs on a reader, so it must not wait. Other transports never call it.
    pub fn on_interrupt(&self, hook: impl FnOnce() + Send + 'static) {
        if let Some(Way::Device(link)) = &self.way {
            link.shared.in_hand.on_interrupt(self.key(), Box::new(hook));
        }
    }

    /// Puts the reply aside while the request waits for something, together with what it needs then: an interrupt answers it with EINTR
    /// and drops both, unless they were taken back first.
    pub fn park<T: Send + 'static>(self, with: T) -> Parked<T> {
        self.park_until(with, |waiting| {
            if let Some((reply, with)) = waiting.take() {
                drop(with);
                reply.error(libc::EINTR);
            }
        })
    }

    /// As [`Reply::park`], but it is `interrupted` that decides what an interrupt means: it is called once, on a reader, and must not
    /// wait. The kernel tells of the first signal only.
    pub fn park_until<T: Send + 'static>(self, with: T, interrupted: impl FnOnce(Waiting<T>) + Send + 'static) -> Parked<T> {
        let link = match &self.way {
            Some(Way::Device(link)) => Some((link.clone(), self.key())),
            _ => None,
        };
        let place = Arc::new(Mutex::new(Some((self, with))));
        if let Some((link, key)) = &link {
            let waiting = Waiting(Arc::downgrade(&place));
            link.shared.in_hand.on_interrupt(*key, Box::new(move || interrupted(waiting)));
        }
        Parked { place, link }
    }

    /// A positive errno.
    pub fn error(self, errno: i32) -> bool {
        self.send(&Answer::Error(errno))
    }
    /// Done, nothing to say.
    pub fn ok(self) -> bool {
        self.send(&Answer::Empty)
    }
    /// A name's node; with node 0 that there is none.
    pub fn entry(self, entry: &Entry) -> bool {
        self.send(&Answer::Entry(entry))
    }
    /// Attributes, to be kept for `valid`.
    pub fn attr(self, valid: Duration, attr: &Attr) -> bool {
        self.send(&Answer::Attr { valid, attr })
    }
    /// Attributes with the time of creation, to be kept for `valid`.
    pub fn statx(self, valid: Duration, attr: &Attr) -> bool {
        self.send(&Answer::StatX { valid, attr })
    }
    /// An open file or directory.
    pub fn opened(self, opened: Opened) -> bool {
        self.send(&Answer::Opened(opened))
    }
    /// A new file, open.
    pub fn created(self, entry: &Entry, opened: Opened) -> bool {
        self.send(&Answer::Created(entry, opened))
    }
    /// Content of a file or a link, names of extended attributes. It should lie in memory: where the process is killed while the kernel
    /// fetches a page of it from a mapped file, the caller gets EIO.
    pub fn data(self, data: &[u8]) -> bool {
        self.send(&Answer::Data(data))
    }
    /// Content that lies in several places.
    pub fn parts(self, parts: &[IoSlice<'_>]) -> bool {
        self.send(&Answer::Parts(parts))
    }
    /// Bytes written.
    pub fn written(self, bytes: u32) -> bool {
        self.send(&Answer::Written(bytes))
    }
    /// Bytes copied by a request to copy; no more than [`u32::MAX`] for one of the shorter form.
    pub fn copied(self, bytes: u64) -> bool {
        self.send(&Answer::Copied(bytes))
    }
    /// Space.
    pub fn statfs(self, statfs: &StatFs) -> bool {
        self.send(&Answer::StatFs(statfs))
    }
    /// A value (or a list of names) for a request that has room for `size` bytes: its length where it asks for that with 0, ERANGE
    /// where it does not fit.
    pub fn xattr(self, size: u32, value: &[u8]) -> bool {
        match value.len() {
            n if size == 0 => self.send(&Answer::XattrSize(n as u32)),
            n if n > size as usize => self.error(libc::ERANGE),
            _ => self.data(value),
        }
    }
    /// Where the seek ended.
    pub fn offset(self, offset: u64) -> bool {
        self.send(&Answer::LSeek(offset))
    }
    /// A lock in the way.
    pub fn lock(self, lock: Lock) -> bool {
        self.send(&Answer::Lock(lock))
    }
    /// Entries of a directory.
    pub fn listing(self, listing: &Listing) -> bool {
        self.send(&Answer::Listing(listing))
    }
    /// Entries of a directory with their nodes.
    pub fn listing_plus(self, listing: &ListingPlus) -> bool {
        self.send(&Answer::ListingPlus(listing))
    }
    /// What [`crate::InHand::applied`] got when the request was done the first time.
    pub fn recorded(self, message: &[u8]) -> bool {
        self.send(&Answer::Recorded(message))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(way) = &self.way {
            tracing::error!(opcode = self.opcode.name(), node = self.nodeid, "a request was dropped without an answer; it gets EIO");
            if let Way::Device(link) = way {
                link.shared.counters.count_unanswered();
            }
            self.give(&Answer::Error(libc::EIO));
        }
    }
}

type Place<T> = Mutex<Option<(Reply, T)>>;

/// A reply of a request that waits. Dropped, it drops the reply.
pub struct Parked<T> {
    place: Arc<Place<T>>,
    link: Option<(Arc<Link>, u64)>,
}

impl<T> Parked<T> {
    /// The reply and what was put aside with it, or nothing where the caller was interrupted: then it has its EINTR and the request must
    /// not be done any more. From here on an interrupt changes nothing.
    pub fn take(self) -> Option<(Reply, T)> {
        self.withdraw()
    }

    /// True once the caller was interrupted.
    pub fn is_interrupted(&self) -> bool {
        self.place.lock().is_none()
    }

    fn withdraw(&self) -> Option<(Reply, T)> {
        let taken = self.place.lock().take()?;
        if let Some((link, key)) = &self.link {
            // An interrupt that comes now has nothing to do.
            link.shared.in_hand.unhook(*key);
        }
        Some(taken)
    }
}

impl<T> Drop for Parked<T> {
    fn drop(&mut self) {
        drop(self.withdraw());
    }
}

/// The other side of a [`Parked`] reply: whoever hears of the interrupt.
pub struct Waiting<T>(Weak<Place<T>>);

impl<T> Waiting<T> {
    /// The reply and what was put aside with it, for whoever answers it now; nothing where it was taken back before.
    pub fn take(&self) -> Option<(Reply, T)> {
        self.0.upgrade()?.lock().take()
    }

    /// True while the request waits.
    pub fn is_waiting(&self) -> bool {
        self.0.upgrade().is_some_and(|place| place.lock().is_some())
    }
}
