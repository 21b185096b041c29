//! Variable-length integers and bounded byte strings.

use hiloop_types::{Error, Result};

/// Appends encoded values to a buffer.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// A writer with room for `n` bytes.
    pub fn with_capacity(n: usize) -> Self {
        Self(Vec::with_capacity(n))
    }
    /// One byte.
    pub fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    /// LEB128.
    pub fn uint(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.0.push((v as u8) | 0x80);
            v >>= 7;
        }
        self.0.push(v as u8);
    }
    /// Zig-zag LEB128, for times before 1970.
    pub fn int(&mut self, v: i64) {
        self.uint(((v << 1) ^ (v >> 63)) as u64);
    }
    /// Bytes without a length.
    pub fn raw(&mut self, b: &[u8]) {
        self.0.extend_from_slice(b);
    }
    /// Length, then bytes.
    pub fn bytes(&mut self, b: &[u8]) {
        self.uint(b.len() as u64);
        self.raw(b);
    }
}

/// Reads what [`Writer`] wrote; every failure is [`hiloop_types::ErrorKind::Corrupt`] and names the field.
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`; `what` names the record in errors.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }
    fn short(&self, field: &str) -> Error {
        Error::corrupt(format!("{} ends within field {field}", self.what))
    }
    /// An error about a field of this record.
    pub fn bad(&self, field: &str, value: impl std::fmt::Display) -> Error {
        Error::corrupt(format!("{} has {field} {value}", self.what))
    }
    /// One byte.
    pub fn u8(&mut self, field: &str) -> Result<u8> {
        let (b, rest) = self.rest.split_first().ok_or_else(|| self.short(field))?;
        self.rest = rest;
        Ok(*b)
    }
    /// LEB128.
    pub fn uint(&mut self, field: &str) -> Result<u64> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.u8(field)?;
            if shift == 63 && b > 1 {
                break;
            }
            v |= u64::from(b & 0x7f) << shift;
            if b & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err(self.bad(field, "longer than 64 bits"))
    }
    /// LEB128 that fits 32 bits.
    pub fn u32(&mut self, field: &str) -> Result<u32> {
        let v = self.uint(field)?;
        u32::try_from(v).map_err(|_| self.bad(field, v))
    }
    /// Zig-zag LEB128.
    pub fn int(&mut self, field: &str) -> Result<i64> {
        let v = self.uint(field)?;
        Ok((v >> 1) as i64 ^ -((v & 1) as i64))
    }
    /// Exactly `n` bytes.
    pub fn raw(&mut self, n: usize, field: &str) -> Result<&'a [u8]> {
        if self.rest.len() < n {
            return Err(self.short(field));
        }
        let (a, b) = self.rest.split_at(n);
        self.rest = b;
        Ok(a)
    }
    /// Exactly `N` bytes.
    pub fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let mut out = [0u8; N];
        out.copy_from_slice(self.raw(N, field)?);
        Ok(out)
    }
    /// Length, then bytes, at most `max` of them.
    pub fn bytes(&mut self, max: usize, field: &str) -> Result<&'a [u8]> {
        let n = self.uint(field)?;
        if n > max as u64 {
            return Err(self.bad(field, format_args!("of {n} bytes, more than {max}")));
        }
        self.raw(n as usize, field)
    }
    /// What is left.
    pub fn remaining(&self) -> &'a [u8] {
        self.rest
    }
    /// Fails where bytes are left over.
    pub fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.bad("trailing bytes:", self.rest.len())) }
    }
}
