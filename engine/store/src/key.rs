//! Which keys exist: one rule for every backend, checked before any I/O, so that a key that works on S3 works in a directory too.
//!
//! A key is 1 to 700 bytes of `/`-separated segments. A segment has 1 to 255 bytes, holds no control character and does not start
//! with a dot (so `.` and `..` are refused, and a directory store can keep its own files beside the objects). A prefix is empty or
//! a key of at most 256 bytes; prefix, `/` and key together stay below the 1024 bytes that S3 and GCS allow.

use hiloop_types::{Error, Result};

/// Longest key, bytes, without the store's prefix.
pub const KEY_MAX: usize = 700;
/// Longest prefix, bytes.
pub const PREFIX_MAX: usize = 256;
/// Longest segment, bytes (NAME_MAX of a directory store).
const SEGMENT_MAX: usize = 255;

/// Refuses what is no key.
pub(crate) fn check_key(key: &str) -> Result<()> {
    check(key, KEY_MAX).map_err(|why| Error::invalid(format!("{why} in a store key")).at(shown(key)))
}

/// A prefix without its trailing slash, or why it is none.
pub(crate) fn check_prefix(prefix: &str) -> Result<&str, String> {
    let trimmed = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        return Ok(prefix);
    }
    check(trimmed, PREFIX_MAX)?;
    Ok(trimmed)
}

/// A prefix within the store to list below.
pub(crate) fn check_list_prefix(prefix: &str) -> Result<&str> {
    let trimmed = prefix.strip_suffix('/').unwrap_or(prefix);
    if !prefix.is_empty() {
        check(trimmed, KEY_MAX).map_err(|why| Error::invalid(format!("{why} in a prefix to list")).at(shown(prefix)))?;
    }
    Ok(trimmed)
}

fn check(key: &str, max: usize) -> Result<(), String> {
    if key.len() > max {
        return Err(format!("more than {max} bytes"));
    }
    for segment in key.split('/') {
        if segment.is_empty() {
            return Err("an empty segment (leading, trailing or double /)".into());
        }
        if segment.len() > SEGMENT_MAX {
            return Err(format!("a segment of more than {SEGMENT_MAX} bytes"));
        }
        if segment.starts_with('.') {
            return Err("a segment that starts with a dot".into());
        }
        if segment.chars().any(char::is_control) {
            return Err("a control character".into());
        }
    }
    Ok(())
}

/// A key for messages: escaped and cut.
fn shown(key: &str) -> String {
    key.chars().take(80).flat_map(char::escape_debug).collect()
}

/// `prefix/key`, or whichever of the two is not empty.
pub(crate) fn join(prefix: &str, key: &str) -> String {
    match (prefix.is_empty(), key.is_empty()) {
        (true, _) => key.to_owned(),
        (false, true) => prefix.to_owned(),
        (false, false) => format!("{prefix}/{key}"),
    }
}

/// Whether `key` lies below `prefix` by whole segments; the empty prefix holds everything.
pub(crate) fn is_below(prefix: &str, key: &str) -> bool {
    prefix.is_empty() || key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiloop_types::ErrorKind;

    #[test]
    fn keys_are_refused_by_name_of_the_fault() {
        for bad in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.tmp", "a\nb", "a\u{85}"] {
            assert_eq!(check_key(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
        assert!(check_key(&"x".repeat(256)).is_err());
        assert!(check_key(&vec!["x".repeat(200); 4].join("/")).is_err());
        for good in ["a", "a/b", "heads/ws-1", "a b/ü/100%+?#*", "a.b/c..d"] {
            check_key(good).unwrap();
        }
    }

    #[test]
    fn prefixes_lose_one_trailing_slash() {
        assert_eq!(check_prefix("a/b/").unwrap(), "a/b");
        assert_eq!(check_prefix("").unwrap(), "");
        assert!(check_prefix("/").is_err());
        assert!(check_prefix("a//").is_err());
        assert!(check_prefix("../x").is_err());
    }

    #[test]
    fn below_means_whole_segments() {
        assert!(is_below("a", "a/b"));
        assert!(!is_below("a", "ab/c"));
        assert!(!is_below("a", "a"));
        assert!(is_below("", "a"));
    }
}
