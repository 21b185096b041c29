//! A file's bytes in memory: blocks of their own, so that a large file grows without being copied.

/// Bytes of a block.
const BLOCK: usize = 256 << 10;

/// Bytes; what was never written reads as zeros.
#[derive(Default)]
pub(super) struct Content {
    len: u64,
    /// A block holds what was written of it, from its start.
    blocks: Vec<Vec<u8>>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        self.len = self.len.max(offset + data.len() as u64);
        let (mut at, mut rest) = (offset as usize, data);
        while !rest.is_empty() {
            let (index, within) = (at / BLOCK, at % BLOCK);
            if self.blocks.len() <= index {
                self.blocks.resize_with(index + 1, Vec::new);
            }
            let block = &mut self.blocks[index];
            let part = rest.len().min(BLOCK - within);
            if block.len() < within {
                block.resize(within, 0);
            }
            let over = part.min(block.len() - within);
            block[within..within + over].copy_from_slice(&rest[..over]);
            block.extend_from_slice(&rest[over..part]);
            (at, rest) = (at + part, &rest[part..]);
        }
    }

    /// Appends the range to `to`, as far as there is a file.
    pub(super) fn read(&self, offset: u64, len: usize, to: &mut Vec<u8>) {
        let end = self.len.min(offset.saturating_add(len as u64)) as usize;
        let mut at = offset as usize;
        while at < end {
            let (index, within) = (at / BLOCK, at % BLOCK);
            let part = (end - at).min(BLOCK - within);
            let held = self.blocks.get(index).map(Vec::as_slice).unwrap_or_default();
            let held = held.get(within..).unwrap_or_default();
            let have = held.len().min(part);
            to.extend_from_slice(&held[..have]);
            to.resize(to.len() + part - have, 0);
            at += part;
        }
    }

    pub(super) fn truncate(&mut self, len: u64) {
        if len < self.len {
            let blocks = (len as usize).div_ceil(BLOCK);
            self.blocks.truncate(blocks);
            let last = len as usize % BLOCK;
            if let (true, Some(block)) = (last > 0 && self.blocks.len() == blocks, self.blocks.last_mut()) {
                block.truncate(last);
            }
        }
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(c: &Content) -> Vec<u8> {
        let mut out = Vec::new();
        c.read(0, usize::MAX, &mut out);
        out
    }

    #[test]
    fn writes_across_blocks_holes_and_truncates_read_as_a_vector_would() {
        let mut content = Content::default();
        let mut model: Vec<u8> = Vec::new();
        let big = BLOCK as u64;
        for (n, (offset, len)) in [(0, 10), (5, 20), (big - 3, 7), (3 * big + 1, 2), (big, 2 * BLOCK)].into_iter().enumerate() {
            let data = vec![n as u8 + 1; len];
            content.write(offset, &data);
            let end = offset as usize + len;
            if model.len() < end {
                model.resize(end, 0);
            }
            model[offset as usize..end].copy_from_slice(&data);
            assert_eq!(all(&content), model);
        }
        for len in [big + 5, big, 3, 100] {
            content.truncate(len);
            model.resize(len as usize, 0);
            assert_eq!(all(&content), model, "{len}");
        }
        let mut part = Vec::new();
        content.read(1, 3, &mut part);
        assert_eq!(part, model[1..4]);
    }
}
