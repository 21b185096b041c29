//! Does the store do conditional writes? Asked with racing writers: some servers (S3Mock, s3proxy, s3s-fs) pass one writer after the
//! other and let several racing ones win, which would lose a published head without a word.

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use hiloop_types::{Error, ErrorKind, Result, ResultExt};

use crate::backend::Version;
use crate::settle::Settled;
use crate::store::{CreateOutcome, Store, SwapOutcome};

/// Rounds; a server that loses races loses most rounds (`floors.md` 6: 168 of 200 and more).
const ROUNDS: usize = 3;
/// Racing writers per round.
const RACERS: usize = 8;

/// What a racer was told. A request that broke off may or may not have been served: it proves nothing, and nothing is wrong with it.
enum Told {
    Won(Version),
    Lost,
    Unclear(Error),
}

impl Told {
    fn created(outcome: Result<CreateOutcome>) -> Result<Self> {
        match outcome {
            Ok(CreateOutcome::Done(version)) => Ok(Self::Won(version)),
            Ok(CreateOutcome::Lost) => Ok(Self::Lost),
            Ok(CreateOutcome::Ambiguous(e)) => Ok(Self::Unclear(e)),
            Err(e) => Self::broken(e),
        }
    }
    fn swapped(outcome: Result<SwapOutcome>) -> Result<Self> {
        match outcome {
            Ok(SwapOutcome::Done(version)) => Ok(Self::Won(version)),
            Ok(SwapOutcome::Lost) => Ok(Self::Lost),
            Ok(SwapOutcome::Ambiguous(e)) => Ok(Self::Unclear(e)),
            Err(e) => Self::broken(e),
        }
    }
    fn broken(e: Error) -> Result<Self> {
        if e.kind() == ErrorKind::Unavailable { Ok(Self::Unclear(e)) } else { Err(e) }
    }
}

impl Store {
    /// Checks that conditional writes are exact, by three rounds of eight racing creates and eight racing swaps below `probe/`. Costs
    /// about sixty small requests and cleans up after itself. A store that drops some of them is judged by the others.
    ///
    /// # Errors
    /// `Invalid` with the check that failed: the store must not be used. `Denied` and `Unavailable` as any request.
    pub fn probe(&self) -> BoxFuture<'_, Result<()>> {
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
                match result {
                    // Some bytes stay below `probe/`, which nobody reads.
                    Err(e) if e.kind() == ErrorKind::Unavailable => {}
                    other => _ = other?,
                }
            }
            Ok(())
        })
    }

    async fn probe_round(&self, key: &str) -> Result<()> {
        let bodies =
            |race: &str| -> Vec<Bytes> { (0..RACERS).map(|racer| Bytes::from(format!("hiloop probe {key} {race} {racer}"))).collect() };

        let created = bodies("create");
        let outcomes = join_all(created.iter().map(|body| self.create(key, body.clone()))).await;
        let told = outcomes.into_iter().map(Told::created).collect::<Result<Vec<_>>>()?;
        let first = self.winner("racing creates", key, &created, told).await?;
        if let Told::Won(_) = Told::created(self.create(key, Bytes::from_static(b"hiloop probe, late")).await)? {
            return Err(unusable("a create over an existing object was accepted"));
        }

        let swapped = bodies("swap");
        let outcomes = join_all(swapped.iter().map(|body| self.swap(key, &first, body.clone()))).await;
        let told = outcomes.into_iter().map(Told::swapped).collect::<Result<Vec<_>>>()?;
        let second = self.winner("racing swaps", key, &swapped, told).await?;
        if let Told::Won(_) = Told::swapped(self.swap(key, &first, Bytes::from_static(b"hiloop probe, stale")).await)? {
            return Err(unusable("a swap of a version that is gone was accepted"));
        }
        let last = format!("hiloop probe {key} last");
        match self.swap_settled(key, &second, Bytes::from(last.clone()), |b| *b == last).await? {
            Settled::Won(_) => Ok(()),
            Settled::Lost(_) => Err(unusable("a swap of the current version was refused")),
        }
    }

    /// The version of the one winner, whose bytes must be there.
    async fn winner(&self, race: &str, key: &str, bodies: &[Bytes], told: Vec<Told>) -> Result<Version> {
        let (mut won, mut unclear, mut broken) = (Vec::new(), Vec::new(), None);
        for (body, told) in bodies.iter().zip(told) {
            match told {
                Told::Won(version) => won.push((body, version)),
                Told::Lost => {}
                Told::Unclear(e) => {
                    unclear.push(body);
                    broken.get_or_insert(e);
                }
            }
        }
        if unclear.len() == bodies.len()
            && let Some(e) = broken
        {
            return Err(e);
        }
        let there = self.get(key).await?.ok_or_else(|| unusable(&format!("after {race} there is no object")))?;
        match won.as_slice() {
            [(body, version)] if **body == there.bytes && *version == there.version => Ok(there.version),
            [(body, _)] if **body == there.bytes => Err(unusable(&format!("after {race} a read shows another version than the put"))),
            [_] => Err(unusable(&format!("after {race} a loser's bytes are there"))),
            [] if unclear.iter().any(|body| **body == there.bytes) => Ok(there.version),
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
