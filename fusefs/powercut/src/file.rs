//! One file: what processes see, what is on the platter, and the changes in between.

use std::collections::HashMap;

use crate::content::Content;
use crate::dice::Dice;
use crate::report::Losses;

/// What a disk writes whole or not at all.
pub(crate) const SECTOR: u64 = 512;

/// A change that was not flushed.
struct Change {
    at: u64,
    len: u64,
    /// Absent: zeros (also those that a shorter length leaves).
    data: Option<Box<[u8]>>,
    /// Length of the file afterwards.
    file_len: u64,
    shortens: bool,
}

impl Change {
    fn sectors(&self) -> std::ops::Range<u64> {
        if self.len == 0 { 0..0 } else { self.at / SECTOR..(self.at + self.len).div_ceil(SECTOR) }
    }
    /// Applies what falls into `from..to`.
    fn apply(&self, content: &mut Content, from: u64, to: u64) {
        let (from, to) = (from.max(self.at), to.min(self.at + self.len));
        if from >= to {
            return;
        }
        match &self.data {
            Some(data) => content.write(from, &data[(from - self.at) as usize..(to - self.at) as usize]),
            None => content.zero(from, to - from),
        }
    }
}

#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Lost,
    /// Each sector by itself.
    Torn,
}

#[derive(Default)]
pub(crate) struct File {
    now: Content,
    durable: Content,
    pending: Vec<Change>,
}

impl File {
    fn settled(content: Content) -> Self {
        Self { now: content.clone(), durable: content, pending: Vec::new() }
    }
    pub(crate) fn now(&self) -> &Content {
        &self.now
    }
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) {
        let len = data.len() as u64;
        let kept = data.iter().any(|&b| b != 0).then(|| data.into());
        self.push(Change { at, len, data: kept, file_len: self.now.len().max(at + len), shortens: false });
    }
    pub(crate) fn zero(&mut self, at: u64, len: u64, file_len: u64) {
        self.push(Change { at, len, data: None, file_len, shortens: false });
    }
    pub(crate) fn set_len(&mut self, len: u64) {
        let gone = self.now.len().saturating_sub(len);
        self.push(Change { at: len, len: gone, data: None, file_len: len, shortens: gone > 0 });
    }
    fn push(&mut self, change: Change) {
        change.apply(&mut self.now, 0, u64::MAX);
        self.now.set_len(change.file_len);
        self.pending.push(change);
    }
    /// The flush: all of it reaches the platter.
    pub(crate) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable, 0, u64::MAX);
            self.durable.set_len(change.file_len);
        }
    }
    /// What a power cut leaves.
    ///
    /// A sector holds what it held after one of the changes that touched it, or none: a page that was written back holds all changes
    /// up to then. The length is one that the file had. A shorter length that survives took what lay behind it along.
    pub(crate) fn survivor(self, dice: &mut Dice, losses: &mut Losses) -> Self {
        let count = self.pending.len();
        if count == 0 {
            return Self::settled(self.durable);
        }
        let (fates, length) = fates(count, dice);
        let mut last: HashMap<u64, usize> = HashMap::new();
        for (i, change) in self.pending.iter().enumerate() {
            let (mut kept, mut lost) = (0u64, 0u64);
            for sector in change.sectors() {
                let survives = match fates[i] {
                    Fate::Kept => true,
                    Fate::Lost => false,
                    Fate::Torn => dice.coin(),
                };
                // The shorter length is one change of the inode, not of sectors.
                if if change.shortens { length.is_some_and(|l| i <= l) } else { survives } {
                    last.insert(sector, i);
                    kept += 1;
                } else {
                    lost += 1;
                }
            }
            losses.sectors_kept += kept;
            losses.sectors_lost += lost;
            losses.writes_torn += u64::from(kept > 0 && lost > 0);
        }
        let mut content = self.durable;
        for (i, change) in self.pending.iter().enumerate() {
            let mut run: Option<(u64, u64)> = None;
            for sector in change.sectors() {
                let applies = last.get(&sector).is_some_and(|&l| i <= l);
                match (&mut run, applies) {
                    (Some((_, end)), true) => *end = sector + 1,
                    (None, true) => run = Some((sector, sector + 1)),
                    (Some((from, end)), false) => {
                        change.apply(&mut content, *from * SECTOR, *end * SECTOR);
                        run = None;
                    }
                    (None, false) => {}
                }
            }
            if let Some((from, end)) = run {
                change.apply(&mut content, from * SECTOR, end * SECTOR);
            }
        }
        let len = length.map_or(content.len(), |l| self.pending[l].file_len);
        // Through the longest: what was written behind a length that did not survive is gone.
        let longest = self.pending.iter().map(|c| c.file_len).max().unwrap_or(0).max(content.len());
        content.set_len(longest);
        content.set_len(len);
        Self::settled(content)
    }
}

/// The fate of each change, and the change whose length survives. The extremes are as likely as the mixtures: whole recoveries
/// depend on them.
fn fates(count: usize, dice: &mut Dice) -> (Vec<Fate>, Option<usize>) {
    match dice.below(4) {
        0 => (vec![Fate::Lost; count], None),
        1 => (vec![Fate::Kept; count], Some(count - 1)),
        2 => {
            let torn = dice.below(count as u64) as usize;
            let fates = (0..count).map(|i| match i.cmp(&torn) {
                std::cmp::Ordering::Less => Fate::Kept,
                std::cmp::Ordering::Equal => Fate::Torn,
                std::cmp::Ordering::Greater => Fate::Lost,
            });
            (fates.collect(), if dice.coin() { Some(torn) } else { torn.checked_sub(1) })
        }
        _ => {
            let fates = (0..count).map(|_| match dice.below(3) {
                0 => Fate::Kept,
                1 => Fate::Lost,
                _ => Fate::Torn,
            });
            (fates.collect(), (dice.below(count as u64 + 1) as usize).checked_sub(1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> File {
        let mut f = File::default();
        f.write(0, &[1; 4096]);
        f.sync();
        f.write(0, &[2; 2048]);
        f.write(4096, &[3; 4096]);
        f
    }

    #[test]
    fn what_was_flushed_survives_and_the_rest_in_every_mixture() {
        let (mut lens, mut torn, mut all, mut none) = (std::collections::BTreeSet::new(), 0, 0, 0);
        for seed in 0..400 {
            let mut losses = Losses::default();
            let f = written().survivor(&mut Dice::new(seed), &mut losses);
            let bytes = f.now().read(0, 1 << 20);
            lens.insert(bytes.len());
            assert!(bytes[2048..4096].iter().all(|&b| b == 1), "flushed and not written again");
            for sector in bytes.chunks(SECTOR as usize) {
                assert!(sector.iter().all(|b| *b == sector[0]), "a sector is whole");
            }
            assert!(bytes[..2048].iter().all(|b| [1, 2].contains(b)));
            torn += u64::from(bytes[..2048].contains(&1) && bytes[..2048].contains(&2));
            none += u64::from(bytes == [1; 4096]);
            all += u64::from(losses.sectors_lost == 0 && bytes.len() == 8192);
        }
        assert_eq!(lens.into_iter().collect::<Vec<_>>(), [4096, 8192]);
        assert!(torn > 20 && all > 20 && none > 20, "{torn} {all} {none}");
    }

    #[test]
    fn a_seed_gives_one_outcome() {
        for seed in 0..50 {
            let one = |_| written().survivor(&mut Dice::new(seed), &mut Losses::default()).now().read(0, 1 << 20);
            assert_eq!(one(0), one(1));
        }
    }

    #[test]
    fn a_later_write_to_a_sector_brings_the_earlier_ones_along() {
        for seed in 0..300 {
            let mut f = File::default();
            f.set_len(512);
            f.sync();
            for i in 0..4 {
                f.write(i * 100, &[i as u8 + 1; 100]);
            }
            let bytes = f.survivor(&mut Dice::new(seed), &mut Losses::default()).now().read(0, 512);
            let steps: Vec<u8> = (0..4).map(|i| bytes[i * 100]).collect();
            let reached = steps.iter().take_while(|&&b| b != 0).count();
            assert!(steps[reached..].iter().all(|&b| b == 0), "{steps:?}");
        }
    }

    #[test]
    fn nothing_comes_back_behind_a_shorter_length() {
        for seed in 0..300 {
            let mut f = File::default();
            f.write(0, &[7; 8192]);
            f.sync();
            f.set_len(1000);
            f.set_len(8192);
            let bytes = f.survivor(&mut Dice::new(seed), &mut Losses::default()).now().read(0, 1 << 20);
            let shortened = bytes.len() == 1000 || bytes[1000..].iter().all(|&b| b == 0);
            assert!(shortened || bytes == [7; 8192], "seed {seed}: {}", bytes.len());
        }
    }
}
