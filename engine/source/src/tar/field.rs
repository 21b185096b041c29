//! Numbers and texts in a tar header.

use hiloop_types::{Error, Result};

/// A text up to its first zero byte.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

/// A number: octal with blanks around it, or base 256 (two's complement behind a set top bit).
pub(super) fn number(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => {
            // The bit below the marker is the sign.
            let start = if first & 0x40 == 0 { i128::from(first & 0x3f) } else { i128::from(*first) - 0x100 };
            let value = field[1..].iter().try_fold(start, |value, byte| Some(value.checked_mul(256)? + i128::from(*byte)));
            i64::try_from(value?).ok()
        }
        _ => {
            let digits = text(field).trim_ascii();
            digits.iter().try_fold(0_i64, |value, digit| match digit {
                b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
                _ => None,
            })
        }
    }
}

/// A number that is not negative.
pub(super) fn size(field: &[u8], what: &str) -> Result<u64> {
    let value = number(field).and_then(|value| u64::try_from(value).ok());
    value.ok_or_else(|| Error::corrupt(format!("the header's {what} is not a number")))
}

/// A decimal number in a pax record or a sparse map.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 20 {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// `[-]seconds[.fraction]`; what is below a nanosecond is cut off downwards.
pub(super) fn time(value: &[u8]) -> Option<(i64, u32)> {
    let (negative, value) = match value.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let dot = value.iter().position(|b| *b == b'.').unwrap_or(value.len());
    let seconds = i64::try_from(decimal(&value[..dot])?).ok()?;
    let fraction = value.get(dot + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nanos = (0..9).fold(0_u32, |nanos, i| nanos * 10 + u32::from(fraction.get(i).map_or(0, |digit| digit - b'0')));
    let rest = fraction.get(9..).unwrap_or_default().iter().any(|digit| *digit != b'0');
    Some(match (negative, nanos) {
        (false, _) => (seconds, nanos),
        (true, 0) if !rest => (-seconds, 0),
        // -1.25 is 0.75 above -2.
        (true, _) => {
            let below = nanos + u32::from(rest);
            if below == 1_000_000_000 { (-seconds - 1, 0) } else { (-seconds - 1, 1_000_000_000 - below) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"77777777777"), Some(0o77_777_777_777));
        assert_eq!(number(b"0000648\0"), None);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]), Some(2 << 32));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        assert_eq!(number(&[0x80, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
        assert!(size(&[0xff; 12], "size").is_err());
    }

    #[test]
    fn times_have_signs_and_fractions() {
        assert_eq!(time(b"12"), Some((12, 0)));
        assert_eq!(time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(time(b"12.1234567899"), Some((12, 123_456_789)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time(b"-3"), Some((-3, 0)));
        assert_eq!(time(b"-0.9999999999"), Some((-1, 0)));
        for bad in [&b""[..], b"-", b"x", b"1.x", b"99999999999999999999", b"--1"] {
            assert_eq!(time(bad), None, "{}", bad.escape_ascii());
        }
    }
}
