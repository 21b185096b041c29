//! Where a reader's requests go.
//!
//! Its pages are there before the first request. The kernel copies a request into them inside read(2); where a page is missing and
//! the process is being killed, it gives up, and the caller gets EIO: the one request that no successor can take over. Pages that are
//! there it fills also then. The same goes for the memory that an answer is sent from: no file mapped into memory.

use std::hint::black_box;

const PAGE: usize = 4096;

pub(crate) struct Buffer {
    bytes: Vec<u8>,
    /// Bytes from the start whose pages are there.
    resident: usize,
}

impl Buffer {
    /// A buffer of `size` bytes, of which `resident` take up memory from the start.
    pub(crate) fn new(size: usize, resident: usize) -> Self {
        let mut buffer = Self { bytes: vec![0; size], resident: 0 };
        buffer.touch(resident.min(size));
        buffer
    }

    fn touch(&mut self, up_to: usize) {
        // The allocator gives fresh pages, which are none until they are written; that they are zero must not be known.
        self.bytes[self.resident..up_to].iter_mut().step_by(PAGE).for_each(|b| *black_box(b) = black_box(0));
        self.resident = up_to;
    }

    /// All of it, for a read.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// What a read of `n` bytes brought.
    pub(crate) fn message(&self, n: usize) -> &[u8] {
        &self.bytes[..n]
    }

    /// After a request of `n` bytes: where one was long, more will be.
    pub(crate) fn used(&mut self, n: usize) {
        if n > self.resident {
            self.touch(self.bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of a buffer that are in memory, from the kernel's map of this process.
    fn resident(buffer: &Buffer) -> usize {
        use std::os::unix::fs::FileExt;
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        let first = buffer.bytes.as_ptr() as usize / PAGE;
        let last = (buffer.bytes.as_ptr() as usize + buffer.bytes.len() - 1) / PAGE;
        let present = |page: usize| {
            let mut entry = [0; 8];
            map.read_exact_at(&mut entry, page as u64 * 8).unwrap();
            u64::from_ne_bytes(entry) >> 63 == 1
        };
        (first..=last).filter(|p| present(*p)).count()
    }

    #[test]
    fn pages_are_there_before_they_are_used() {
        const SIZE: usize = 64 << 20;
        // So long that the allocator takes it from the kernel.
        let mut b = Buffer::new(SIZE, 1 << 20);
        let few = resident(&b);
        assert!((256..SIZE / PAGE).contains(&few), "{few}");
        b.used(1 << 20);
        assert_eq!(resident(&b), few);
        b.used((1 << 20) + 1);
        assert!(resident(&b) >= SIZE / PAGE);
        assert!(resident(&Buffer::new(SIZE, usize::MAX)) >= SIZE / PAGE);
    }
}
