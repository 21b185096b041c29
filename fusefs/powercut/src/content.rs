//! The bytes of a file, sparse: pages of zeros are not kept.

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const PAGE: usize = 4096;

/// Bytes and length of a file. Clones share pages.
#[derive(Clone, Default)]
pub(crate) struct Content {
    len: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
}

impl Content {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
    /// Bytes that take room.
    pub(crate) fn stored(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }
    /// Sets the length; what lay behind it reads as zeros if the file grows again.
    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len - len);
            self.pages.split_off(&len.div_ceil(PAGE as u64));
        }
        self.len = len;
    }
    /// Writes without moving the length.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) {
        each_page(at, data.len() as u64, |page, from, done, n| {
            let part = &data[done..done + n];
            if let Some(p) = self.pages.get_mut(&page) {
                Arc::make_mut(p)[from..from + n].copy_from_slice(part);
            } else if part.iter().any(|&b| b != 0) {
                let mut fresh = [0; PAGE];
                fresh[from..from + n].copy_from_slice(part);
                self.pages.insert(page, Arc::new(fresh));
            }
        });
    }
    /// Zeros without moving the length.
    pub(crate) fn zero(&mut self, at: u64, len: u64) {
        let (first, end) = (at / PAGE as u64, at.saturating_add(len).div_ceil(PAGE as u64));
        let touched: Vec<u64> = self.pages.range(first..end.max(first)).map(|(&p, _)| p).collect();
        for page in touched {
            let start = page * PAGE as u64;
            let from = at.saturating_sub(start) as usize;
            let to = (at + len - start).min(PAGE as u64) as usize;
            if (from, to) == (0, PAGE) {
                self.pages.remove(&page);
            } else if let Some(p) = self.pages.get_mut(&page) {
                Arc::make_mut(p)[from..to].fill(0);
            }
        }
    }
    /// Up to `len` bytes; fewer at the end of the file.
    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let len = (len as u64).min(self.len.saturating_sub(at)) as usize;
        let mut out = vec![0; len];
        each_page(at, len as u64, |page, from, done, n| {
            if let Some(p) = self.pages.get(&page) {
                out[done..done + n].copy_from_slice(&p[from..from + n]);
            }
        });
        out
    }
}

/// Calls with (page, offset in it, bytes before, bytes) for each piece of a range.
fn each_page(at: u64, len: u64, mut piece: impl FnMut(u64, usize, usize, usize)) {
    let mut done = 0;
    while done < len {
        let (page, from) = ((at + done) / PAGE as u64, ((at + done) % PAGE as u64) as usize);
        let n = ((PAGE - from) as u64).min(len - done) as usize;
        piece(page, from, done as usize, n);
        done += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_a_plain_vector_would() {
        let (dice, _) = hiloop_env::Env::simulated(3);
        let mut plain: Vec<u8> = Vec::new();
        let mut content = Content::default();
        for step in 0..2000u32 {
            let (at, len) = (dice.random_u64() % 20_000, (dice.random_u64() % 9_000) as usize);
            match dice.random_u64() % 4 {
                0 => {
                    plain.resize(at as usize, 0);
                    content.set_len(at);
                }
                1 => {
                    let end = plain.len().min(at as usize + len);
                    if (at as usize) < end {
                        plain[at as usize..end].fill(0);
                    }
                    content.zero(at, len as u64);
                }
                _ => {
                    let data = vec![step as u8; len];
                    let end = at as usize + len;
                    plain.resize(plain.len().max(end), 0);
                    plain[at as usize..end].copy_from_slice(&data);
                    content.set_len(content.len().max(end as u64));
                    content.write(at, &data);
                }
            }
            assert_eq!(content.len(), plain.len() as u64);
            assert!(content.read(0, 1 << 20) == plain, "step {step}");
        }
    }

    #[test]
    fn zeros_take_no_room() {
        let mut content = Content::default();
        content.set_len(1 << 30);
        content.write(0, &[0; 1 << 20]);
        content.write(10, &[1]);
        assert_eq!(content.stored(), PAGE as u64);
        content.zero(0, 1 << 20);
        assert_eq!(content.stored(), 0);
        assert_eq!(content.read((1 << 30) - 2, 10), [0, 0]);
    }
}
