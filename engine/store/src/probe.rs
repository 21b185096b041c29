//! Does the store do conditional writes? Asked with racing writers: some servers (S3Mock, s3proxy, s3s-fs) pass one writer after the
//! other and let several racing ones win, which would lose a published head without a word.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::future::{join_all, try_join_all};
use hiloop_types::{Error, ErrorKind, Result, ResultExt};

use crate::backend::Version;
use crate::store::{CreateOutcome, Store, SwapOutcome};

/// Rounds; a server that loses races loses most rounds (`floors.md` 6: 168 of 200 and more).
const ROUNDS: usize = 3;
/// Racing writers per round.
const RACERS: usize = 8;

impl Store {
    /// Checks that conditional writes are exact, by three rounds of eight racing creates and eight racing swaps below `probe/`. Costs
    /// about sixty small requests and cleans up after itself.
    ///
    /// # Errors
    /// `Invalid` with the check that failed: the store must not be used. `Denied` and `Unavailable` as any request.
    pub fn probe<'a>(&'a self) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let run = format!("{:016x}{:016x}", self.env().random_u64(), self.env().random_u64());
            let keys: Vec<String> = (0..ROUNDS).map(|round| format!("probe/{run}/{round}")).collect();
            let checked = async {
                for key in &keys {
                    self.probe_round(key).await.at("probe of conditional writes")?;
                }
                Ok(())
            }
            .await;
            let removed = join_all(keys.iter().map(|key| self.delete(key))).await;
            checked?;
            for result in removed {
                result?;
            }
            Ok(())
        })
    }

    async fn probe_round(&self, key: &str) -> Result<()> {
        let mut nonce = 0u64;
        let mut bodies = || -> Vec<Bytes> {
            (0..RACERS)
                .map(|racer| {
                    nonce += 1;
                    Bytes::from(format!("hiloop probe {key} {racer} {nonce}"))
                })
                .collect()
        };

        let created = bodies();
        let outcomes = try_join_all(created.iter().map(|body| self.create(key, body.clone()))).await?;
        let mut won = Vec::new();
        for (body, outcome) in created.iter().zip(outcomes) {
            match outcome {
                CreateOutcome::Done(version) => won.push((body, version)),
                CreateOutcome::Lost => {}
                CreateOutcome::Ambiguous(error) => return Err(error),
            }
        }
        let first = self.winner("racing creates", key, won).await?;
        if let CreateOutcome::Done(_) = self.create(key, Bytes::from_static(b"hiloop probe, late")).await? {
            return Err(unusable("a create over an existing object was accepted"));
        }

        let swapped = bodies();
        let outcomes = try_join_all(swapped.iter().map(|body| self.swap(key, &first, body.clone()))).await?;
        let mut won = Vec::new();
        for (body, outcome) in swapped.iter().zip(outcomes) {
            match outcome {
                SwapOutcome::Done(version) => won.push((body, version)),
                SwapOutcome::Lost => {}
                SwapOutcome::Ambiguous(error) => return Err(error),
            }
        }
        let second = self.winner("racing swaps", key, won).await?;
        if let SwapOutcome::Done(_) = self.swap(key, &first, Bytes::from_static(b"hiloop probe, stale")).await? {
            return Err(unusable("a swap of a version that is gone was accepted"));
        }
        match self.swap(key, &second, Bytes::from_static(b"hiloop probe, last")).await? {
            SwapOutcome::Done(_) => Ok(()),
            SwapOutcome::Lost => Err(unusable("a swap of the current version was refused")),
            SwapOutcome::Ambiguous(error) => Err(error),
        }
    }

    /// The version of the one winner, whose bytes must be there.
    async fn winner(&self, race: &str, key: &str, won: Vec<(&Bytes, Version)>) -> Result<Version> {
        let there = self.get(key).await?.ok_or_else(|| unusable(&format!("after {race} there is no object")))?;
        match won.as_slice() {
            [(body, version)] if **body == there.bytes && *version == there.version => Ok(there.version),
            [(body, _)] if **body == there.bytes => Err(unusable(&format!("after {race} a read shows another version than the put"))),
            [_] => Err(unusable(&format!("after {race} a loser's bytes are there"))),
            [] => self.unanswered(race, there.version),
            many => Err(unusable(&format!("{} of {RACERS} {race} won", many.len()))),
        }
    }

    /// No racer was told that it won: right if an answer was lost and the repetition met its own object, which the counters show.
    fn unanswered(&self, race: &str, there: Version) -> Result<Version> {
        match self.stats().http_failures {
            0 => Err(unusable(&format!("none of {RACERS} {race} won, but there is an object"))),
            _ => Ok(there),
        }
    }
}

fn unusable(check: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("{check}: the store does not do conditional writes and cannot be used"))
        .hint("use a store with exact If-None-Match and If-Match (S3, GCS, versitygw, file://)")
}
