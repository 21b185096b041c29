//! Reading and writing the integers of our formats: little-endian, and minimal LEB128 for lengths.

use hiloop_types::{Error, Result};

/// Appends `n` as minimal LEB128 (1 to 5 bytes).
pub(crate) fn put_varint(out: &mut Vec<u8>, mut n: u32) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Takes fields from the front of a slice; every method fails with `Corrupt` instead of reading past the end.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or_else(|| Error::corrupt("ends in the middle of a field"))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| Error::corrupt("ends in the middle of a field"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Only the minimal form, so that a value has one encoding.
    pub(crate) fn varint(&mut self) -> Result<u32> {
        let mut n = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.u8()?;
            let bits = u32::from(byte & 0x7f);
            if shift == 28 && bits > 0xf {
                break;
            }
            n |= bits << shift;
            if byte < 0x80 {
                if byte == 0 && shift > 0 {
                    break;
                }
                return Ok(n);
            }
        }
        Err(Error::corrupt("bad variable-length integer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_one_form() {
        for n in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, 1 << 21, u32::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, n);
            let mut r = Reader::new(&out);
            assert_eq!(r.varint().unwrap(), n);
            assert!(r.is_empty());
        }
        for bad in [&[0x80, 0x00][..], &[0x80], &[0xff, 0xff, 0xff, 0xff, 0x1f], &[0xff; 9], &[]] {
            assert!(Reader::new(bad).varint().is_err(), "{bad:?}");
        }
    }
}
