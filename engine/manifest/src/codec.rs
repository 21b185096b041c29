//! How one frame's bytes are stored: raw or one zstd frame.
//!
//! Limits: a frame's plain form is at most [`CHUNK_MAX`] bytes; a decoder allocates exactly the plain length that the reference
//! states and refuses a zstd frame that claims another one, so that no stored byte can make it allocate more.

use std::cell::RefCell;

use bytes::Bytes;
use hiloop_types::limits::CHUNK_MAX;
use hiloop_types::{Error, Result};
use zstd::bulk::{Compressor, Decompressor};

/// zstd level on the request and publish path.
pub const LEVEL_HOT: i32 = 1;
/// zstd level for published bases and repacked packs, which are written once and read often.
pub const LEVEL_COLD: i32 = 3;

/// Inputs below this are not worth a zstd frame header and a block.
const COMPRESS_MIN: usize = 64;
/// Windows of the entropy probe, and bytes in each: 4 KiB looked at, whatever the input's length.
const PROBE_WINDOWS: usize = 16;
const PROBE_WINDOW: usize = 256;
/// Every zstd frame starts with this; older formats that the library could still read are refused.
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528u32.to_le_bytes();

/// How a frame is stored. The numbers are part of every format that names a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Codec {
    /// The plain bytes.
    Raw = 0,
    /// One zstd frame that records its content size.
    Zstd = 1,
}

impl Codec {
    /// The number used in binary formats.
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// Reads the number back; [`ErrorKind::Corrupt`](hiloop_types::ErrorKind::Corrupt) for one that no version wrote.
    pub fn from_u8(n: u8) -> Result<Self> {
        match n {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Zstd),
            _ => Err(Error::corrupt(format!("unknown codec {n}"))),
        }
    }
}

struct Contexts {
    level: i32,
    compressor: Compressor<'static>,
    decompressor: Decompressor<'static>,
    scratch: Vec<u8>,
}

thread_local! {
    /// zstd contexts hold some hundred KiB of tables each: made once a thread, at first use.
    static CONTEXTS: RefCell<Option<Contexts>> = const { RefCell::new(None) };
}

fn with_contexts<T>(f: impl FnOnce(&mut Contexts) -> std::io::Result<T>) -> std::io::Result<T> {
    CONTEXTS.with_borrow_mut(|slot| {
        let contexts = match slot {
            Some(contexts) => contexts,
            None => slot.insert(Contexts {
                level: LEVEL_HOT,
                compressor: Compressor::new(LEVEL_HOT)?,
                decompressor: Decompressor::new()?,
                scratch: Vec::new(),
            }),
        };
        f(contexts)
    })
}

/// Compresses `plain` with zstd at `level`; keeps it raw when that would save less than 5 %.
pub(crate) fn compress(plain: &[u8], level: i32) -> (Codec, Bytes) {
    let limit = plain.len() - plain.len() / 20;
    if plain.len() >= COMPRESS_MIN && !looks_incompressible(plain) {
        let zstd = with_contexts(|c| {
            if c.level != level {
                c.compressor.set_compression_level(level)?;
                c.level = level;
            }
            // The vector's capacity bounds the output: what does not fit below the limit is not wanted.
            c.scratch.clear();
            c.scratch.reserve_exact(plain.len());
            let n = c.compressor.compress_to_buffer(plain, &mut c.scratch)?;
            Ok((n < limit).then(|| Bytes::copy_from_slice(&c.scratch[..n])))
        });
        // An error here means that the output did not fit (or that no context could be had): raw is always right.
        if let Ok(Some(stored)) = zstd {
            return (Codec::Zstd, stored);
        }
    }
    (Codec::Raw, Bytes::copy_from_slice(plain))
}

/// Restores the plain bytes of a frame. Allocates at most `plain_len` bytes, and nothing for a raw frame.
pub(crate) fn decompress(codec: Codec, stored: &Bytes, plain_len: u32) -> Result<Bytes> {
    let want = plain_len as usize;
    if u64::from(plain_len) > CHUNK_MAX {
        return Err(Error::corrupt(format!("frame claims {plain_len} plain bytes, the limit is {CHUNK_MAX}")));
    }
    match codec {
        Codec::Raw if stored.len() == want => Ok(stored.clone()),
        Codec::Raw => Err(Error::corrupt(format!("raw frame of {} bytes should hold {plain_len}", stored.len()))),
        Codec::Zstd => {
            if !stored.starts_with(&ZSTD_MAGIC) {
                return Err(Error::corrupt("not a zstd frame"));
            }
            if zstd::zstd_safe::get_frame_content_size(stored).ok().flatten() != Some(u64::from(plain_len)) {
                return Err(Error::corrupt(format!("zstd frame does not claim the {plain_len} bytes it should hold")));
            }
            let mut plain = Vec::with_capacity(want);
            with_contexts(|c| c.decompressor.decompress_to_buffer(stored, &mut plain))
                .map_err(|e| Error::corrupt(format!("zstd frame cannot be decompressed: {e}")))?;
            if plain.len() != want {
                return Err(Error::corrupt(format!("zstd frame holds {} bytes instead of {plain_len}", plain.len())));
            }
            Ok(Bytes::from(plain))
        }
    }
}

/// Looks at 4 KiB of spread windows: true when their order-2 Rényi entropy is above 7.8 bits a byte. Shannon entropy is never
/// below it, so that an entropy coder would save less than 2.5 %; only long matches could, and those are deduplication's work.
fn looks_incompressible(plain: &[u8]) -> bool {
    const SAMPLE: usize = PROBE_WINDOWS * PROBE_WINDOW;
    if plain.len() < SAMPLE {
        return false;
    }
    let mut histogram = [0u32; 256];
    let step = (plain.len() - PROBE_WINDOW) / (PROBE_WINDOWS - 1);
    for window in 0..PROBE_WINDOWS {
        for byte in &plain[window * step..][..PROBE_WINDOW] {
            histogram[usize::from(*byte)] += 1;
        }
    }
    let pairs: u64 = histogram.iter().map(|c| u64::from(*c) * u64::from(c.saturating_sub(1))).sum();
    // Chance that two bytes are equal: 2^-7.8 = 1 / 222.86; uniform bytes show 1 / 256 within 1 %.
    pairs * 223 < (SAMPLE * (SAMPLE - 1)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::noise;

    fn round_trip(plain: &[u8]) -> Codec {
        let (codec, stored) = compress(plain, LEVEL_HOT);
        assert!(stored.len() <= plain.len());
        assert_eq!(decompress(codec, &stored, plain.len() as u32).unwrap(), plain);
        codec
    }

    #[test]
    fn noise_is_raw_and_text_is_zstd() {
        assert_eq!(round_trip(&noise(1, 1 << 20)), Codec::Raw);
        assert_eq!(round_trip(&b"fn main() { println!(\"hello\"); }\n".repeat(500)), Codec::Zstd);
        assert_eq!(round_trip(b""), Codec::Raw);
        assert_eq!(round_trip(b"x"), Codec::Raw);
        assert_eq!(round_trip(&[0; 1 << 20]), Codec::Zstd);
    }

    #[test]
    fn the_probe_alone_decides_for_noise() {
        assert!(looks_incompressible(&noise(2, 4096)));
        assert!(looks_incompressible(&noise(3, 100_001)));
        let base64ish: Vec<u8> = noise(4, 65536).iter().map(|b| b'0' + b % 64).collect();
        assert!(!looks_incompressible(&base64ish), "6 bits a byte must be tried");
        assert_eq!(round_trip(&base64ish), Codec::Zstd);
    }

    #[test]
    fn a_bomb_is_refused_before_it_is_unpacked() {
        let bomb = Bytes::from(zstd::bulk::compress(&vec![0u8; 64 << 20], 1).unwrap());
        assert!(bomb.len() < 8192);
        for claim in [0, 1, 4096, CHUNK_MAX as u32, CHUNK_MAX as u32 + 1, 64 << 20, u32::MAX] {
            assert!(decompress(Codec::Zstd, &bomb, claim).is_err(), "{claim}");
        }
    }

    #[test]
    fn levels_alternate_on_one_thread() {
        let text: Vec<u8> = noise(6, 4000).iter().map(|b| b"etaoin shrdlu "[usize::from(b % 14)]).collect();
        let (_, hot) = compress(&text, LEVEL_HOT);
        let (_, cold) = compress(&text, 19);
        let (_, hot_again) = compress(&text, LEVEL_HOT);
        assert_eq!(hot, hot_again);
        assert_ne!(hot, cold);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(stored in proptest::collection::vec(any::<u8>(), 0..300), len in 0u32..5000, zstd: bool) {
            let codec = if zstd { Codec::Zstd } else { Codec::Raw };
            if let Ok(plain) = decompress(codec, &Bytes::from(stored), len) {
                prop_assert_eq!(plain.len(), len as usize);
            }
        }

        #[test]
        fn a_mutated_frame_never_yields_another_length(at in 0usize..2000, xor in 1u8..) {
            let plain = b"some text that repeats, some text that repeats; ".repeat(60);
            let (codec, stored) = compress(&plain, LEVEL_HOT);
            prop_assert_eq!(codec, Codec::Zstd);
            let mut stored = stored.to_vec();
            let at = at % stored.len();
            stored[at] ^= xor;
            if let Ok(out) = decompress(codec, &Bytes::from(stored), plain.len() as u32) {
                prop_assert_eq!(out.len(), plain.len());
            }
        }
    }
}
