//! What happens each second: expire, evict, delete, punch, compact, write the index behind.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hiloop_types::{Column, MetaBatch, Result, ResultExt, limits};

use crate::cache::{Cache, Held};
use crate::frame::CacheKey;
use crate::options::{SHARDS, TOUCH_ROUND};
use crate::policy::{self, Ages, Holding, Plan};
use crate::record::Place;
use crate::residency;
use crate::shard::{Quota, Removed};
use crate::slab::Run;
use crate::stats::count;

/// What upkeep remembers from tick to tick.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// When the next shard's last uses are written, and which shard that is.
    round_at: u32,
    round: usize,
    /// Slab whose file is checked next.
    check: u32,
    /// The file system cannot punch holes; said once.
    no_holes: bool,
}

impl Cache {
    /// Upkeep; the owner calls it every second with `env.monotonic()`. One call at a time, others wait.
    ///
    /// # Errors
    /// When the index cannot be written: the cache goes on, what it holds may be unknown after a restart.
    pub fn tick(&self, now: Duration) -> Result<()> {
        let mut upkeep = self.upkeep.lock();
        let now = self.advance(now);
        let ttl = self.options.ttl_seconds();
        // A whole sweep each second would be for nothing when entries expire one by one.
        let pause = (ttl / 64).min(60);
        let deadline = now.saturating_add(self.options.delay_seconds());
        for shard in &self.shards {
            shard.lock().condemn_expired(ttl, pause, now, deadline);
        }
        let plan = self.measure();
        if plan.condemn > 0 {
            self.condemn(&plan, now, deadline);
        }
        self.delete_due(&mut upkeep, now, plan.at_once)?;
        self.check_one_slab(&mut upkeep);
        self.compact();
        self.measure();
        let round = (upkeep.round_at <= now).then(|| {
            upkeep.round_at = now + TOUCH_ROUND / SHARDS as u32;
            upkeep.round = (upkeep.round + 1) % SHARDS;
            upkeep.round
        });
        self.write_rows(|shard| Some(shard) == round)
    }

    /// Evicts everything that is neither pinned nor being read, now, without delay or floor.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub fn evict_all(&self) -> Result<()> {
        let mut upkeep = self.upkeep.lock();
        let now = self.now();
        let everything = policy::Cut { before: u32::MAX, until: u32::MAX, partly: 0 };
        for shard in &self.shards {
            shard.lock().condemn_cut(everything, &mut Quota { partly: 0, spare: u64::MAX }, now);
        }
        self.seal_active(None);
        let done = self.delete_due(&mut upkeep, now, true);
        self.measure();
        done
    }

    /// Writes the whole index and makes it durable: at shutdown, so that the next opening knows everything.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn persist(&self) -> Result<()> {
        let _upkeep = self.upkeep.lock();
        self.write_rows(|_| true)?;
        self.meta.flush().at("residency")
    }

    /// Looks at the volumes and decides; sets the room for fills.
    pub(crate) fn measure(&self) -> Plan {
        let mut holding = Holding::default();
        for shard in &self.shards {
            let s = shard.lock().sizes();
            holding.stored += s.bytes + s.freed_bytes;
            holding.pending += s.condemned_bytes + s.freed_bytes;
        }
        let usage = self.disk.usage().inspect_err(|err| tracing::warn!(%err, "the use of the cache's file system is unknown")).ok();
        let plan = policy::plan(&self.options, usage, holding);
        self.room.store(plan.room, Ordering::Relaxed);
        plan
    }

    fn condemn(&self, plan: &Plan, now: u32, deadline: u32) {
        let oldest = self.shards.iter().map(|s| s.lock().oldest()).min().unwrap_or(now);
        let mut ages = Ages::new(oldest.min(now), now);
        for shard in &self.shards {
            shard.lock().count_ages(&mut ages);
        }
        let cut = ages.cut(plan.condemn);
        let mut quota = Quota { partly: cut.partly, spare: plan.spare };
        for shard in &self.shards {
            shard.lock().condemn_cut(cut, &mut quota, deadline);
        }
    }

    /// Removes what is due, gives its bytes back, removes empty slabs.
    fn delete_due(&self, upkeep: &mut Upkeep, now: u32, at_once: bool) -> Result<()> {
        let mut all = Removed::default();
        let mut done = Ok(());
        for shard in &self.shards {
            let (removed, freed) = {
                let mut shard = shard.lock();
                (shard.remove_due(now, at_once), shard.take_freed())
            };
            all.ttl += removed.ttl;
            all.pressure += removed.pressure;
            if freed.is_empty() {
                continue;
            }
            self.give_back(upkeep, &freed);
            shard.lock().punched(freed.iter().map(|(_, len)| u64::from(*len)).sum());
            for rows in freed.chunks(limits::CACHE_ROWS) {
                let mut batch = MetaBatch::new();
                rows.iter().for_each(|(place, _)| batch.delete(Column::Residency, residency::row_key(*place)));
                done = done.and(self.meta.write(batch).at("residency"));
            }
        }
        count(&self.counters.evicted_ttl, all.ttl);
        count(&self.counters.evicted_pressure, all.pressure);
        self.remove_empty_slabs();
        done
    }

    fn give_back(&self, upkeep: &mut Upkeep, freed: &[(Place, u32)]) {
        let mut runs: BTreeMap<u32, Vec<Run>> = BTreeMap::new();
        for (place, len) in freed {
            if let Some(slab) = self.slab(place.slab) {
                runs.entry(place.slab).or_default().extend(slab.release(place.at, *len));
            }
        }
        for (id, mut runs) in runs {
            let Some(slab) = self.slab(id) else { continue };
            let fill = slab.fill();
            if fill.sealed && fill.records == 0 {
                // The whole file goes.
                continue;
            }
            runs.sort_unstable();
            runs.dedup_by(|next, run| {
                let adjacent = run.0 + run.1 == next.0;
                if adjacent {
                    run.1 += next.1;
                }
                adjacent
            });
            for run in runs {
                if let Err(err) = slab.punch(run)
                    && !std::mem::replace(&mut upkeep.no_holes, true)
                {
                    tracing::warn!(%err, "a hole cannot be punched; space is freed only by whole slabs");
                }
            }
        }
    }

    fn remove_empty_slabs(&self) {
        let empty: Vec<u32> = {
            let slabs = self.slabs.read();
            slabs.values().filter(|s| s.fill().sealed && s.fill().records == 0).map(|s| s.id).collect()
        };
        for id in empty {
            // A sealed slab without records gains none: nobody can be about to use it.
            self.slabs.write().remove(&id);
            if let Err(err) = self.disk.remove(id) {
                tracing::warn!(%err, slab = id, "an empty slab cannot be removed; the next opening tries again");
            }
        }
    }

    /// Notices when somebody has deleted a slab file: its space is only freed once we let go of it.
    fn check_one_slab(&self, upkeep: &mut Upkeep) {
        let slab = {
            let slabs = self.slabs.read();
            slabs.range(upkeep.check.saturating_add(1)..).next().or_else(|| slabs.first_key_value()).map(|(_, slab)| slab.clone())
        };
        let Some(slab) = slab else { return };
        upkeep.check = slab.id;
        if slab.is_linked() {
            return;
        }
        tracing::warn!(slab = slab.id, "a slab file of the disk cache was deleted; its entries are fetched again");
        self.seal_active(Some(slab.id));
        self.slabs.write().remove(&slab.id);
        for key in self.keys_of(slab.id, usize::MAX) {
            if self.shard(&key).lock().remove_of_slab(&key, slab.id) {
                count(&self.counters.vanished, 1);
            }
        }
    }

    fn keys_of(&self, slab: u32, max: usize) -> Vec<CacheKey> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            let rest = max - keys.len();
            if rest == 0 {
                break;
            }
            shard.lock().of_slab(slab, rest, &mut keys);
        }
        keys
    }

    /// Moves the rest out of the emptiest slab when there are many more files than the content needs.
    fn compact(&self) {
        let emptiest = {
            let slabs = self.slabs.read();
            let fills: Vec<_> = slabs.values().map(|s| (s.id, s.fill())).collect();
            let bytes: u64 = fills.iter().map(|(_, f)| f.bytes).sum();
            let needed = bytes.div_ceil(u64::from(self.options.slab_bytes));
            if (fills.len() as u64) <= 2 * needed + limits::CACHE_SPARE_SLABS {
                return;
            }
            fills.into_iter().filter(|(_, f)| f.sealed && f.records > 0).min_by_key(|(id, f)| (f.bytes, *id))
        };
        let Some((id, _)) = emptiest else { return };
        let mut moved = 0;
        for key in self.keys_of(id, limits::CACHE_ROWS) {
            if moved >= limits::CACHE_COMPACT {
                break;
            }
            let shard = self.shard(&key);
            let Some(found) = shard.lock().hold(&key) else { continue };
            let _held = Held { shard, place: found.place };
            if found.place.slab != id {
                continue;
            }
            match self.read(&key, &found) {
                Ok(frame) => {
                    let Ok((to, len)) = self.append(&key, &frame) else { return };
                    let mut shard = shard.lock();
                    if shard.relocate(&key, found.place, to) {
                        count(&self.counters.compacted, 1);
                    } else {
                        shard.free(to, len);
                    }
                    moved += u64::from(len);
                }
                Err(fault) => self.discard(&key, found.place, fault),
            }
        }
    }

    fn write_rows(&self, round: impl Fn(usize) -> bool) -> Result<()> {
        let mut rows = Vec::new();
        for (at, shard) in self.shards.iter().enumerate() {
            shard.lock().take_dirty(round(at), &mut rows);
            for rows in rows.chunks(limits::CACHE_ROWS) {
                let mut batch = MetaBatch::new();
                rows.iter().for_each(|row| row.put(&mut batch));
                self.meta.write(batch).at("residency")?;
            }
            rows.clear();
        }
        Ok(())
    }
}
