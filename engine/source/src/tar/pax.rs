//! Extended headers: records `"length key=value\n"`, those of one entry over those of the archive.

use std::collections::BTreeMap;

use hiloop_types::{Error, Result};

use super::field::decimal;
use crate::xattr;

const XATTR: &[u8] = b"SCHILY.xattr.";

/// The records that this crate understands.
#[derive(Clone, Debug, Default)]
pub(super) struct Pax {
    values: BTreeMap<&'static str, Vec<u8>>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Sparse format 0.0: offsets and lengths, each a record of its own.
    pub(super) map: Vec<u64>,
}

/// Keys with one value. Names of owners, access times and comments are not kept by a tree.
const KEYS: [&str; 12] = [
    "path",
    "linkpath",
    "size",
    "uid",
    "gid",
    "mtime",
    "GNU.sparse.major",
    "GNU.sparse.minor",
    "GNU.sparse.name",
    "GNU.sparse.realsize",
    "GNU.sparse.size",
    "GNU.sparse.map",
];

impl Pax {
    /// Adds the records of one header; an empty value removes a key.
    pub(super) fn add(&mut self, mut records: &[u8]) -> Result<()> {
        let broken = || Error::corrupt("a pax header is damaged");
        while !records.is_empty() {
            let blank = records.iter().take(20).position(|b| *b == b' ').ok_or_else(broken)?;
            let length = decimal(&records[..blank]).and_then(|l| usize::try_from(l).ok()).ok_or_else(broken)?;
            if length <= blank + 1 || length > records.len() || records[length - 1] != b'\n' {
                return Err(broken());
            }
            let record = &records[blank + 1..length - 1];
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(broken)?;
            self.record(&record[..equals], &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if let Some(known) = KEYS.iter().find(|known| known.as_bytes() == key) {
            if value.is_empty() {
                self.values.remove(known);
            } else {
                self.values.insert(known, value.to_vec());
            }
        } else if let Some(name) = key.strip_prefix(XATTR).filter(|name| xattr::kept(name)) {
            self.xattrs.insert(name.to_vec(), value.to_vec());
        } else if matches!(key, b"GNU.sparse.offset" | b"GNU.sparse.numbytes") {
            let odd = key == b"GNU.sparse.numbytes";
            let number = decimal(value).filter(|_| (self.map.len() % 2 == 1) == odd);
            self.map.push(number.ok_or_else(|| Error::corrupt("a sparse map in a pax header is damaged"))?);
        } else if matches!(key, b"SCHILY.acl.access" | b"SCHILY.acl.default") && !trivial(value) {
            return Err(Error::invalid("the entry has an access control list in text form")
                .hint("make the archive with the list as an extended attribute (tar --xattrs --xattrs-include='*'), or without lists"));
        }
        Ok(())
    }

    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    /// A decimal value, if the key is there.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        decimal(value).map(Some).ok_or_else(|| Error::corrupt(format!("the pax header's {key} is not a number")))
    }

    /// These records over those of the whole archive.
    pub(super) fn over(mut self, global: &Self) -> Self {
        for (key, value) in &global.values {
            self.values.entry(key).or_insert_with(|| value.clone());
        }
        for (name, value) in &global.xattrs {
            self.xattrs.entry(name.clone()).or_insert_with(|| value.clone());
        }
        self
    }
}

/// Whether a text list says no more than the permission bits do.
fn trivial(list: &[u8]) -> bool {
    let lines = list.split(|b| matches!(b, b'\n' | b',')).filter(|line| !line.is_empty());
    lines.into_iter().all(|line| [&b"user::"[..], b"group::", b"other::"].iter().any(|base| line.starts_with(base)))
}
