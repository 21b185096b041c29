//! Directory streams.

use std::sync::Arc;

use hiloop_engine::stop::{Miss, Stop};
use hiloop_engine::workspace::Read;
use hiloop_transport::abi::fopen;
use hiloop_transport::{Dirent, Listing, ListingPlus, Opened, Reply};
use hiloop_types::Ino;

use super::convert::{entry, type_bits};
use super::core::Core;
use crate::fs::dir::{self, Item};
use crate::fs::{FsError, FsResult};

fn dirent<'a>(item: &Item<'a>) -> Dirent<'a> {
    // As in `d_type`: the type bits of a mode, shifted.
    Dirent { ino: item.ino.0, cookie: item.cookie, kind: type_bits(item.kind) >> 12, name: item.name }
}

impl Core {
    pub(super) fn opendir(self: &Arc<Self>, ino: Ino, reply: Reply) {
        self.run(
            reply,
            move |c| dir::end(&c.ws.view(), ino),
            |c, reply, result| {
                match result {
                    Ok(end) => {
                        let fh = c.listings.open(end);
                        reply.opened(Opened { fh, flags: fopen::KEEP_CACHE | fopen::CACHE_DIR, backing_id: 0 })
                    }
                    Err(e) => reply.error(e),
                };
            },
        );
    }

    pub(super) fn readdir(self: &Arc<Self>, ino: Ino, fh: u64, offset: u64, size: u32, reply: Reply) {
        self.run(
            reply,
            move |c| {
                let view = c.ws.view();
                let end = c.listing_end(&view, ino, fh, offset)?;
                let (mut listing, mut added) = (Listing::new(size), false);
                let listed = dir::read(&view, ino, offset, end, &mut |item| {
                    let fits = listing.add(&dirent(&item));
                    added |= fits;
                    fits
                });
                c.partial(listed, added).map(|()| listing)
            },
            |_, reply, result| {
                match result {
                    Ok(listing) => reply.listing(&listing),
                    Err(e) => reply.error(e),
                };
            },
        );
    }

    pub(super) fn readdirplus(self: &Arc<Self>, ino: Ino, fh: u64, offset: u64, size: u32, reply: Reply) {
        let mut waited = Vec::new();
        self.run(
            reply,
            move |c| {
                let view = c.ws.view();
                let end = c.listing_end(&view, ino, fh, offset)?;
                let (mut listing, mut given) = (ListingPlus::new(size), Vec::new());
                let mut added = false;
                let listed = dir::read_plus(&view, ino, offset, end, &waited, &mut |item, attr| {
                    // Of an entry whose attributes cannot be had the kernel learns the name; whoever wants more asks, and is told.
                    let node = attr.map(|attr| entry(item.ino, attr));
                    let fits = listing.add(&dirent(&item), node.as_ref());
                    if fits && node.is_some() {
                        given.push(item.ino);
                    }
                    added |= fits;
                    fits
                });
                if let Err(FsError::Stop(Stop::Miss(Miss::Listing(nodes)))) = &listed {
                    waited.extend(nodes);
                }
                c.partial(listed, added).map(|()| (listing, given))
            },
            |c, reply, result| match result {
                Ok((listing, given)) => {
                    given.iter().for_each(|ino| c.references.add(*ino));
                    if !reply.listing_plus(&listing) {
                        given.into_iter().for_each(|ino| c.unreferenced(ino));
                    }
                }
                Err(e) => drop(reply.error(e)),
            },
        );
    }

    /// Where a stream ends; a read from the start (open or rewinddir) sees what there is now.
    fn listing_end(&self, view: &impl Read, ino: Ino, fh: u64, offset: u64) -> FsResult<u64> {
        if offset > 0 {
            return Ok(self.listings.end(fh));
        }
        let end = dir::end(view, ino)?;
        self.listings.rewind(fh, end);
        Ok(end)
    }
}
