//! Sizes and durations as people write them.

use std::time::Duration;

/// Units by suffix, lower case. Those with an `i` are binary, the others decimal, as Kubernetes has it.
const UNITS: [(&str, u64); 20] = [
    ("", 1),
    ("b", 1),
    ("k", 1_000),
    ("kb", 1_000),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1_000_000_000_000),
    ("tb", 1_000_000_000_000),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
    ("pi", 1 << 50),
    ("pib", 1 << 50),
];

/// Parses a size in bytes: `64MiB`, `1.5 GiB`, `500MB`, `4096`.
///
/// # Errors
/// What is wrong, and how sizes are written.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let form = "write a number and a unit: 4096, 64MiB, 1GiB, 500MB";
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim().to_ascii_lowercase());
    let Some((_, factor)) = UNITS.iter().find(|(u, _)| *u == unit) else {
        return Err(format!("{:?} is no unit of size; {form}", text[split..].trim()));
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Twelve digits of fraction are beyond any unit; more would only overflow below.
    if whole.is_empty() || fraction.len() > 12 || (number.contains('.') && fraction.is_empty()) || fraction.contains('.') {
        return Err(format!("not a number; {form}"));
    }
    let whole: u128 = whole.parse().map_err(|_| format!("not a number; {form}"))?;
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| format!("not a number; {form}"))? };
    let scale = 10u128.pow(fraction.len() as u32);
    let factor = u128::from(*factor);
    let bytes = whole.checked_mul(factor).and_then(|w| w.checked_add(parts * factor / scale));
    bytes.and_then(|b| u64::try_from(b).ok()).ok_or_else(|| "larger than any size can be".to_owned())
}

/// Parses a duration: `5s`, `2m`, `1h 30m`, `250ms`.
///
/// # Errors
/// What is wrong, and how durations are written.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text.trim()).map_err(|e| format!("{e}; write a number and a unit: 250ms, 5s, 2m, 1h"))
}

/// `bytes` for people.
pub fn show_size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_and_decimal_units() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("1GiB", 1 << 30),
            ("500MB", 500_000_000),
            ("1.5 gib", 3 << 29),
            ("10Gi", 10 << 30),
            ("2k", 2000),
            ("0.5KiB", 512),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_form() {
        for text in ["", "MiB", "-1", "1XB", "1.", "1..2", "1.2.3", "ten", "18446744073709551616", "99999999999PiB", "1.0000000000001MiB"] {
            let e = parse_size(text).expect_err(text);
            assert!(e.contains("64MiB") || e.contains("larger"), "{text}: {e}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert!(parse_duration("5").expect_err("no unit").contains("5s"));
        assert!(parse_duration("soon").is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parsers_fail_otherwise(text in ".{0,24}") {
            let _ = parse_size(&text);
            let _ = parse_duration(&text);
        }
        #[test]
        fn a_plain_number_is_itself(n: u64) {
            proptest::prop_assert_eq!(parse_size(&n.to_string()), Ok(n));
        }
    }
}
