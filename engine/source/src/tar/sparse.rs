//! Sparse maps: a list of data ranges that must ascend, stay apart and inside the file, and add up to the bytes in the archive.

use std::io::Read;

use hiloop_types::{Error, Result};

use super::archive::{BLOCK, read_block};
use super::field::{decimal, size};
use crate::limits::{RANGES_MAX, beyond};
use crate::tree::DataRange;

/// Bytes of one range in a GNU header.
const SLOT: usize = 24;

/// Collects the offsets and lengths of a map and checks them.
pub(super) fn ranges(numbers: &[u64], real: u64, stored: u64) -> Result<Option<Vec<DataRange>>> {
    let broken = |why: &str| Error::corrupt(format!("the sparse map is damaged: {why}"));
    let (pairs, rest) = numbers.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(broken("an offset without a length"));
    }
    let mut ranges: Vec<DataRange> = Vec::new();
    let (mut end, mut total) = (0_u64, 0_u64);
    for &[offset, length] in pairs {
        let stop = offset.checked_add(length).filter(|stop| *stop <= real).ok_or_else(|| broken("a range ends behind the file"))?;
        if offset < end {
            return Err(broken("ranges overlap"));
        }
        total += length;
        match ranges.last_mut() {
            _ if length == 0 => {}
            Some(last) if offset == end => last.length += length,
            _ => ranges.push(DataRange { offset, length }),
        }
        end = stop;
    }
    if total != stored {
        return Err(broken("the ranges do not add up to the bytes in the archive"));
    }
    let whole = real == stored;
    Ok((!whole).then_some(ranges))
}

/// The map in a GNU header (`S`) and the blocks after it.
pub(super) fn gnu(header: &[u8; BLOCK], stream: &mut impl Read) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    slots(&header[386..386 + 4 * SLOT], &mut numbers)?;
    let mut more = header[482] != 0;
    while more {
        let block = read_block(stream)?.ok_or_else(crate::path::truncated)?;
        slots(&block[..21 * SLOT], &mut numbers)?;
        more = block[504] != 0;
    }
    Ok(numbers)
}

fn slots(slots: &[u8], numbers: &mut Vec<u64>) -> Result<()> {
    for slot in slots.chunks_exact(SLOT).take_while(|slot| slot[0] != 0) {
        push(numbers, size(&slot[..12], "sparse offset")?)?;
        push(numbers, size(&slot[12..], "sparse length")?)?;
    }
    Ok(())
}

/// The map in one pax record (format 0.1): numbers with commas.
pub(super) fn listed(list: &[u8]) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for number in list.split(|b| *b == b',').filter(|n| !n.is_empty()) {
        push(&mut numbers, decimal(number).ok_or_else(|| Error::corrupt("the sparse map is damaged: not a number"))?)?;
    }
    Ok(numbers)
}

/// The map in front of the data (format 1.0): a count and that many pairs, one number a line, filled up to a block. Also gives the
/// bytes that it took of `stored`.
pub(super) fn leading(stream: &mut impl Read, stored: u64) -> Result<(Vec<u64>, u64)> {
    let broken = || Error::corrupt("the sparse map is damaged");
    let (mut numbers, mut wanted, mut line, mut taken) = (Vec::new(), None, Vec::new(), 0);
    loop {
        if taken + BLOCK as u64 > stored {
            return Err(broken());
        }
        let block = read_block(stream)?.ok_or_else(crate::path::truncated)?;
        taken += BLOCK as u64;
        for &byte in &block {
            if byte != b'\n' {
                line.push(byte);
                if line.len() > 20 {
                    return Err(broken());
                }
                continue;
            }
            let number = decimal(&line).ok_or_else(broken)?;
            line.clear();
            match wanted {
                None => wanted = Some(number.checked_mul(2).ok_or_else(broken)?),
                Some(_) => push(&mut numbers, number)?,
            }
            if wanted == Some(numbers.len() as u64) {
                return Ok((numbers, taken));
            }
        }
    }
}

fn push(numbers: &mut Vec<u64>, number: u64) -> Result<()> {
    if numbers.len() == 2 * RANGES_MAX {
        return Err(beyond("data ranges of a file", RANGES_MAX as u64, "ranges"));
    }
    numbers.push(number);
    Ok(())
}
