//! The first request of a connection, and what both sides agreed on in it.
//!
//! INIT comes once in the life of a mount. A successor that takes a mount over gets no second one, so what was agreed is recorded
//! before it is answered: [`InitState`] has a byte form of its own, versioned and checksummed.

use std::io;

use crate::abi::{MAJOR, MINOR, MINOR_MIN, OUT_HEADER, init};
use crate::decode::Layout;
use crate::request::Init;

/// What a file system wants of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitConfig {
    /// Flags of [`init`] to ask for where the kernel offers them.
    pub want: u64,
    /// Flags without which it cannot be served.
    pub require: u64,
    /// Longest WRITE and READ, bytes, a multiple of the page size. The kernel's own limit without tuning is 1 MiB.
    pub max_write: u32,
    /// Requests in the background (read-ahead, write-back, releases) that may be in flight.
    pub max_background: u16,
    /// From how many on the kernel calls itself congested.
    pub congestion_threshold: u16,
    /// Resolution of file times, nanoseconds.
    pub time_gran: u32,
    /// Longest read-ahead, bytes; the kernel's offer limits it.
    pub max_readahead: u32,
    /// How many file systems may lie on one another below a passthrough file; 0 without [`init::PASSTHROUGH`].
    pub max_stack_depth: u32,
}

impl Default for InitConfig {
    fn default() -> Self {
        Self {
            want: 0,
            require: 0,
            max_write: 1 << 20,
            max_background: 256,
            congestion_threshold: 192,
            time_gran: 1,
            max_readahead: u32::MAX,
            max_stack_depth: 0,
        }
    }
}

/// What every connection of this crate has.
const ALWAYS: u64 = init::INIT_EXT | init::MAX_PAGES | init::BIG_WRITES | init::ASYNC_READ | init::ABORT_ERROR | init::HAS_RESEND;
/// Flags that change layouts or the transport in ways this crate does not serve.
const NEVER: u64 = init::SECURITY_CTX | init::OVER_IO_URING | init::REQUEST_TIMEOUT;

/// Why a connection cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// An old kernel.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.{MINOR_MIN} (Linux 5.17) is the oldest that is served")]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// Required flags that it does not offer.
    #[error("the kernel's FUSE lacks required features (flags {0:#x})")]
    Missing(u64),
    /// Flags were asked for that this crate cannot serve.
    #[error("features that this transport does not serve were asked for (flags {0:#x})")]
    Unserved(u64),
}

impl From<InitError> for io::Error {
    fn from(e: InitError) -> Self {
        io::Error::new(io::ErrorKind::Unsupported, e)
    }
}

/// What a connection agreed on: all that a successor needs to read its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitState {
    /// Minor version of the protocol that the kernel offered.
    pub kernel_minor: u32,
    /// Minor version that is spoken.
    pub minor: u32,
    /// Flags that the kernel offered.
    pub offered: u64,
    /// Flags in force.
    pub flags: u64,
    /// Longest read-ahead, bytes.
    pub max_readahead: u32,
    /// Longest WRITE, bytes.
    pub max_write: u32,
    /// Longest request, pages.
    pub max_pages: u16,
    /// As in [`InitConfig`].
    pub max_background: u16,
    /// As in [`InitConfig`].
    pub congestion_threshold: u16,
    /// As in [`InitConfig`].
    pub time_gran: u32,
    /// As in [`InitConfig`].
    pub max_stack_depth: u32,
}

const PAGE: u32 = 4096;

/// Chooses what is in force.
///
/// # Errors
/// Why the connection cannot be served.
pub fn negotiate(config: &InitConfig, offer: &Init) -> Result<InitState, InitError> {
    if offer.major < MAJOR || (offer.major == MAJOR && offer.minor < MINOR_MIN) {
        return Err(InitError::Version { major: offer.major, minor: offer.minor });
    }
    let asked = config.want | config.require;
    if asked & NEVER != 0 {
        return Err(InitError::Unserved(asked & NEVER));
    }
    let missing = (config.require | init::INIT_EXT) & !offer.flags;
    if missing != 0 {
        return Err(InitError::Missing(missing));
    }
    let max_write = config.max_write.max(PAGE);
    Ok(InitState {
        kernel_minor: offer.minor,
        minor: offer.minor.min(MINOR),
        offered: offer.flags,
        flags: (asked | ALWAYS) & offer.flags,
        max_readahead: config.max_readahead.min(offer.max_readahead),
        max_write,
        max_pages: u16::try_from(max_write.div_ceil(PAGE)).unwrap_or(u16::MAX),
        max_background: config.max_background,
        congestion_threshold: config.congestion_threshold,
        time_gran: config.time_gran,
        max_stack_depth: config.max_stack_depth,
    })
}

/// Bytes of the answer behind its header.
const INIT_OUT: usize = 64;
const MAGIC: [u8; 4] = *b"HLFI";
const VERSION: u16 = 1;
const BYTES: usize = 4 + 2 + 2 + 8 + 8 + 4 * 6 + 2 * 2 + 4;

/// Why recorded bytes are no [`InitState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitStateError {
    /// Not the bytes that were written.
    #[error("the recorded INIT answer is damaged")]
    Damaged,
    /// Written by another version of this program.
    #[error("the recorded INIT answer has version {0}; this program reads version {VERSION}")]
    Version(u16),
}

impl InitState {
    /// Whether a flag of [`init`] is in force.
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// How requests are laid out.
    pub fn layout(&self) -> Layout {
        Layout { setxattr_ext: self.has(init::SETXATTR_EXT) }
    }

    /// Bytes that a reader's buffer needs for any request.
    pub(crate) fn buffer_size(&self) -> usize {
        // Besides WRITE, a SETXATTR of 64 KiB and a batch of forgets, which fills what it gets.
        self.max_write.max(128 << 10) as usize + 2 * PAGE as usize
    }

    /// The byte form, little-endian: magic, version, max_pages, offered and chosen flags, the rest, CRC-32C of all before it.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&self.max_pages.to_le_bytes());
        put(&self.offered.to_le_bytes());
        put(&self.flags.to_le_bytes());
        for n in [self.kernel_minor, self.minor, self.max_readahead, self.max_write, self.time_gran, self.max_stack_depth] {
            put(&n.to_le_bytes());
        }
        put(&self.max_background.to_le_bytes());
        put(&self.congestion_threshold.to_le_bytes());
        let (body, sum) = out.split_at_mut(BYTES - 4);
        sum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
        out
    }

    /// Reads what [`InitState::to_bytes`] wrote.
    ///
    /// # Errors
    /// Damaged, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InitStateError> {
        let head: &[u8; 6] = bytes.first_chunk().ok_or(InitStateError::Damaged)?;
        let version = u16::from_le_bytes([head[4], head[5]]);
        if head[..4] != MAGIC {
            return Err(InitStateError::Damaged);
        }
        if version != VERSION {
            return Err(InitStateError::Version(version));
        }
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| InitStateError::Damaged)?;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if crc32c::crc32c(&bytes[..BYTES - 4]) != u32_at(BYTES - 4) {
            return Err(InitStateError::Damaged);
        }
        Ok(Self {
            max_pages: u16_at(6),
            offered: u64_at(8),
            flags: u64_at(16),
            kernel_minor: u32_at(24),
            minor: u32_at(28),
            max_readahead: u32_at(32),
            max_write: u32_at(36),
            time_gran: u32_at(40),
            max_stack_depth: u32_at(44),
            max_background: u16_at(48),
            congestion_threshold: u16_at(50),
        })
    }

    /// The whole message that answers INIT request `unique`.
    pub(crate) fn answer(&self, unique: u64) -> Vec<u8> {
        let mut out = header(INIT_OUT, unique);
        for n in [MAJOR, self.minor, self.max_readahead, self.flags as u32] {
            out.extend(n.to_ne_bytes());
        }
        out.extend(self.max_background.to_ne_bytes());
        out.extend(self.congestion_threshold.to_ne_bytes());
        out.extend(self.max_write.to_ne_bytes());
        out.extend(self.time_gran.to_ne_bytes());
        out.extend(self.max_pages.to_ne_bytes());
        out.extend([0; 2]);
        out.extend(((self.flags >> 32) as u32).to_ne_bytes());
        out.extend(self.max_stack_depth.to_ne_bytes());
        out.resize(OUT_HEADER + INIT_OUT, 0);
        out
    }
}

/// Asks a kernel of a later major version to speak ours; it sends INIT again.
pub(crate) fn answer_with_our_major(unique: u64) -> Vec<u8> {
    let mut out = header(INIT_OUT, unique);
    out.extend(MAJOR.to_ne_bytes());
    out.extend(MINOR.to_ne_bytes());
    out.resize(OUT_HEADER + INIT_OUT, 0);
    out
}

fn header(body: usize, unique: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(OUT_HEADER + body);
    out.extend(((OUT_HEADER + body) as u32).to_ne_bytes());
    out.extend(0i32.to_ne_bytes());
    out.extend(unique.to_ne_bytes());
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer() -> Init {
        Init { major: 7, minor: 99, max_readahead: 131_072, flags: init::INIT_EXT | init::DONT_MASK | init::HAS_RESEND | init::ASYNC_READ }
    }

    #[test]
    fn only_what_both_want_is_in_force() {
        let config = InitConfig { want: init::DONT_MASK | init::POSIX_ACL, ..InitConfig::default() };
        let state = negotiate(&config, &offer()).unwrap();
        assert_eq!(state.flags, init::INIT_EXT | init::DONT_MASK | init::HAS_RESEND | init::ASYNC_READ);
        assert_eq!((state.minor, state.kernel_minor, state.max_pages, state.max_readahead), (MINOR, 99, 256, 131_072));
        let answer = state.answer(4);
        assert_eq!(answer.len(), OUT_HEADER + INIT_OUT);
        assert_eq!(answer[16 + 32..16 + 36], ((state.flags >> 32) as u32).to_ne_bytes());
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_name() {
        let require = |flag| InitConfig { require: flag, ..InitConfig::default() };
        assert_eq!(negotiate(&require(init::PASSTHROUGH), &offer()), Err(InitError::Missing(init::PASSTHROUGH)));
        assert_eq!(negotiate(&require(init::OVER_IO_URING), &offer()), Err(InitError::Unserved(init::OVER_IO_URING)));
        let old = Init { minor: 31, ..offer() };
        assert_eq!(negotiate(&InitConfig::default(), &old), Err(InitError::Version { major: 7, minor: 31 }));
    }

    proptest! {
        #[test]
        fn the_recorded_form_reads_back_and_damage_shows(
            (kernel_minor, minor, max_readahead, max_write) in any::<(u32, u32, u32, u32)>(),
            (offered, flags, time_gran, max_stack_depth) in any::<(u64, u64, u32, u32)>(),
            (max_pages, max_background, congestion_threshold) in any::<(u16, u16, u16)>(),
            (at, bit) in (6usize..BYTES, 0u32..8),
        ) {
            let state = InitState { kernel_minor, minor, offered, flags, max_readahead, max_write, max_pages, max_background, congestion_threshold, time_gran, max_stack_depth };
            let mut bytes = state.to_bytes();
            prop_assert_eq!(InitState::from_bytes(&bytes), Ok(state));
            prop_assert_eq!(InitState::from_bytes(&bytes[..BYTES - 1]), Err(InitStateError::Damaged));
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(InitState::from_bytes(&bytes), Err(InitStateError::Damaged));
        }

        #[test]
        fn any_bytes_are_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(InitState::from_bytes(&bytes).is_err());
        }
    }

    #[test]
    fn the_recorded_form_is_todays() {
        let state = InitState {
            kernel_minor: 45,
            minor: 44,
            offered: 0x0102_0304_0506_0708,
            flags: 0x1112_1314_1516_1718,
            max_readahead: 1,
            max_write: 1 << 20,
            max_pages: 256,
            max_background: 2,
            congestion_threshold: 3,
            time_gran: 4,
            max_stack_depth: 5,
        };
        let hex: String = state.to_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            ["484c464901000001080706050403020118171615141312112d0000002c0000000100000000001000040000000500000002000300", "8074759c"]
                .concat()
        );
    }

    #[test]
    fn another_version_is_named() {
        let config = InitConfig::default();
        let mut bytes = negotiate(&config, &offer()).unwrap().to_bytes();
        bytes[4] = 9;
        assert_eq!(InitState::from_bytes(&bytes), Err(InitStateError::Version(9)));
    }
}
