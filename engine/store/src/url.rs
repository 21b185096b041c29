//! Store URLs: the one parser for what an operator writes, checked whole before any I/O.
//!
//! ```text
//! s3://bucket?prefix=&endpoint=&region=&use_path_style=true|false&disable_https=true|false
//! gs://bucket?prefix=&endpoint=&disable_https=true|false
//! file:///absolute/directory?prefix=
//! ```
//!
//! `s3ForcePathStyle` is the older spelling of `use_path_style`. An endpoint is `https://host[:port][/path]`, or `host[:port]`; an
//! `http://` endpoint needs `disable_https=true`. Credentials come from the surroundings, never from the URL, so a valid URL holds no
//! secret and may be printed; a refused one is never printed, only the name of what is wrong with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hiloop_types::{Error, Result};
use url::{Url, form_urlencoded};

use crate::key;

const S3_PARAMETERS: &str = "prefix, endpoint, region, use_path_style (or s3ForcePathStyle), disable_https";
const GS_PARAMETERS: &str = "prefix, endpoint, disable_https";
const FILE_PARAMETERS: &str = "prefix";
const FORMS: &str = "s3://bucket?prefix=.., gs://bucket?prefix=.., file:///absolute/directory?prefix=..";

/// A store's address. Two URLs are equal if they name the same store by the same means; [`fmt::Display`] is the canonical spelling.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    place: Place,
    prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    S3 { bucket: String, endpoint: Option<Endpoint>, region: Option<String>, path_style: Option<bool> },
    Gs { bucket: String, endpoint: Option<Endpoint> },
    File { dir: PathBuf },
}

/// Where an S3- or GCS-compatible service answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    /// `scheme://host[:port][/path]` without a trailing slash.
    pub(crate) url: String,
    /// Plain HTTP, which the operator allowed by name.
    pub(crate) plain: bool,
}

impl StoreUrl {
    /// Parses and checks a URL.
    ///
    /// # Errors
    /// `Invalid`, naming the part or parameter at fault and what is accepted; the URL itself is not repeated.
    pub fn parse(text: &str) -> Result<Self> {
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(refused("white space or a control character").hint("write a space within a value as %20"));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(refused("no scheme").hint(format!("accepted: {FORMS}")));
        };
        if rest.contains('#') {
            return Err(refused("a fragment (#)"));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        match scheme {
            "s3" => s3(bucket(place)?, &mut Parameters::of(query, S3_PARAMETERS)?),
            "gs" => gs(bucket(place)?, &mut Parameters::of(query, GS_PARAMETERS)?),
            "file" => {
                let mut parameters = Parameters::of(query, FILE_PARAMETERS)?;
                let (dir, prefix) = (directory(place)?, parameters.prefix()?);
                parameters.finish()?;
                Ok(Self { place: Place::File { dir }, prefix })
            }
            _ => Err(refused("an unknown scheme").hint(format!("accepted: {FORMS}"))),
        }
    }

    /// A directory as a store.
    ///
    /// # Errors
    /// `Invalid` if the path is not absolute, not UTF-8 or the root directory.
    pub fn file(dir: &Path) -> Result<Self> {
        let text = dir.to_str().ok_or_else(|| refused("a directory name that is not UTF-8"))?;
        Ok(Self { place: Place::File { dir: absolute(text)? }, prefix: String::new() })
    }

    /// `s3`, `gs` or `file`.
    pub fn scheme(&self) -> &'static str {
        match self.place {
            Place::S3 { .. } => "s3",
            Place::Gs { .. } => "gs",
            Place::File { .. } => "file",
        }
    }
    /// What stands before every key, without slashes at its ends; may be empty.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
    /// The directory of a `file://` store.
    pub fn directory(&self) -> Option<&Path> {
        match &self.place {
            Place::File { dir } => Some(dir),
            _ => None,
        }
    }
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }
}

impl FromStr for StoreUrl {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut query = form_urlencoded::Serializer::new(String::new());
        if !self.prefix.is_empty() {
            query.append_pair("prefix", &self.prefix);
        }
        let endpoint = match &self.place {
            Place::S3 { endpoint, .. } | Place::Gs { endpoint, .. } => endpoint.as_ref(),
            Place::File { .. } => None,
        };
        if let Some(e) = endpoint {
            query.append_pair("endpoint", &e.url);
        }
        if let Place::S3 { region, path_style, .. } = &self.place {
            if let Some(r) = region {
                query.append_pair("region", r);
            }
            if let Some(p) = path_style {
                query.append_pair("use_path_style", if *p { "true" } else { "false" });
            }
        }
        if endpoint.is_some_and(|e| e.plain) {
            query.append_pair("disable_https", "true");
        }
        match &self.place {
            Place::S3 { bucket, .. } => write!(f, "s3://{bucket}")?,
            Place::Gs { bucket, .. } => write!(f, "gs://{bucket}")?,
            Place::File { dir } => {
                f.write_str("file://")?;
                for byte in dir.as_os_str().as_encoded_bytes() {
                    match byte {
                        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => write!(f, "{}", *byte as char)?,
                        other => write!(f, "%{other:02X}")?,
                    }
                }
            }
        }
        let query = query.finish();
        if query.is_empty() { Ok(()) } else { write!(f, "?{query}") }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn refused(what: &str) -> Error {
    Error::invalid(format!("store URL has {what}"))
}

fn s3(bucket: String, parameters: &mut Parameters) -> Result<StoreUrl> {
    let prefix = parameters.prefix()?;
    let endpoint = parameters.endpoint()?;
    let region = parameters.take("region");
    if let Some(r) = &region
        && (r.is_empty() || r.len() > 64 || !r.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'))
    {
        return Err(refused("a bad value of region").hint("letters, digits, - and _"));
    }
    let path_style = match (parameters.boolean("use_path_style")?, parameters.boolean("s3ForcePathStyle")?) {
        (Some(a), Some(b)) if a != b => {
            return Err(refused("use_path_style and s3ForcePathStyle that contradict each other").hint("give one"));
        }
        (a, b) => a.or(b),
    };
    parameters.finish()?;
    Ok(StoreUrl { place: Place::S3 { bucket, endpoint, region, path_style }, prefix })
}

fn gs(bucket: String, parameters: &mut Parameters) -> Result<StoreUrl> {
    let prefix = parameters.prefix()?;
    let endpoint = parameters.endpoint()?;
    parameters.finish()?;
    Ok(StoreUrl { place: Place::Gs { bucket, endpoint }, prefix })
}

fn bucket(place: &str) -> Result<String> {
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    if authority.contains('@') {
        return Err(refused("a user name or password").hint("credentials come from the environment, never from the URL"));
    }
    if !path.is_empty() {
        return Err(refused("a path after the bucket").hint("use ?prefix=.."));
    }
    if authority.contains(':') {
        return Err(refused("a port after the bucket").hint("use ?endpoint=https://host:port"));
    }
    if authority.is_empty() {
        return Err(refused("no bucket"));
    }
    let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    if authority.len() > 222 || !authority.bytes().all(ok) || !authority.as_bytes()[0].is_ascii_alphanumeric() {
        return Err(refused("a bad bucket name").hint("lower-case letters, digits, -, _ and ., beginning with a letter or digit"));
    }
    Ok(authority.to_owned())
}

fn directory(place: &str) -> Result<PathBuf> {
    if !place.starts_with('/') {
        return Err(refused("a host name or a relative path").hint("accepted: file:///absolute/directory?prefix=.."));
    }
    absolute(&percent_decode(place)?)
}

fn absolute(path: &str) -> Result<PathBuf> {
    if !path.starts_with('/') {
        return Err(refused("a relative path").hint("accepted: file:///absolute/directory?prefix=.."));
    }
    if path.chars().any(char::is_control) {
        return Err(refused("a control character in its path"));
    }
    let mut dir = PathBuf::from("/");
    for segment in path.split('/').filter(|s| !s.is_empty()) {
        if segment == "." || segment == ".." {
            return Err(refused("a . or .. in its path"));
        }
        dir.push(segment);
    }
    if dir.parent().is_none() {
        return Err(refused("the root directory as its path").hint("name a directory of its own"));
    }
    Ok(dir)
}

fn percent_decode(text: &str) -> Result<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| (b as char).to_digit(16));
        match (digit(bytes.next()), digit(bytes.next())) {
            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
            _ => return Err(refused("a % without two hexadecimal digits")),
        }
    }
    String::from_utf8(out).map_err(|_| refused("a path that is not UTF-8"))
}

/// The query, each parameter once.
struct Parameters {
    pairs: Vec<(String, String)>,
    accepted: &'static str,
}

impl Parameters {
    fn of(query: &str, accepted: &'static str) -> Result<Self> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let shown: String = name.chars().take(40).flat_map(char::escape_debug).collect();
            if pairs.iter().any(|(n, _)| *n == name) {
                return Err(refused(&format!("the parameter {shown} twice")));
            }
            if value.contains(char::REPLACEMENT_CHARACTER) {
                return Err(refused(&format!("a value of {shown} that is not UTF-8")));
            }
            pairs.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self { pairs, accepted })
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.pairs.iter().position(|(n, _)| n == name)?;
        Some(self.pairs.swap_remove(at).1)
    }

    fn boolean(&mut self, name: &str) -> Result<Option<bool>> {
        match self.take(name).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(refused(&format!("a bad value of {name}")).hint("true or false")),
        }
    }

    fn prefix(&mut self) -> Result<String> {
        let given = self.take("prefix").unwrap_or_default();
        key::check_prefix(&given).map(str::to_owned).map_err(|why| refused(&format!("a bad value of prefix: {why}")).hint("like a/b"))
    }

    fn endpoint(&mut self) -> Result<Option<Endpoint>> {
        let plain = self.boolean("disable_https")?;
        let Some(given) = self.take("endpoint") else {
            return match plain {
                Some(true) => Err(refused("disable_https without endpoint")),
                _ => Ok(None),
            };
        };
        let plain = plain.unwrap_or(false);
        let bad = |why: &str| refused(&format!("a bad value of endpoint: {why}")).hint("like https://host:port");
        let full = match given.contains("://") {
            true => given,
            false => format!("{}://{given}", if plain { "http" } else { "https" }),
        };
        let url = Url::parse(&full).map_err(|e| bad(&e.to_string()))?;
        match (url.scheme(), plain) {
            ("https", false) | ("http", true) => {}
            ("http", false) => return Err(bad("http:// without disable_https=true")),
            ("https", true) => return Err(bad("https:// contradicts disable_https=true")),
            _ => return Err(bad("neither https:// nor http://")),
        }
        if !url.username().is_empty() || url.password().is_some() || full.contains('@') {
            return Err(bad("a user name or password"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("a query or fragment"));
        }
        Ok(Some(Endpoint { url: url.as_str().trim_end_matches('/').to_owned(), plain }))
    }

    fn finish(&self) -> Result<()> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().take(40).flat_map(char::escape_debug).collect();
                Err(refused(&format!("the unknown parameter {shown}")).hint(format!("accepted: {}", self.accepted)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiloop_types::ErrorKind;
    use proptest::prelude::*;

    #[test]
    fn accepted_forms_have_one_spelling() {
        for (given, canonical) in [
            ("s3://b", "s3://b"),
            ("s3://b/", "s3://b"),
            ("s3://b?prefix=a/c/", "s3://b?prefix=a%2Fc"),
            ("s3://b?s3ForcePathStyle=true", "s3://b?use_path_style=true"),
            ("s3://b?s3ForcePathStyle=false&use_path_style=false", "s3://b?use_path_style=false"),
            (
                "s3://b?disable_https=true&endpoint=127.0.0.1:7070&region=us-east-1",
                "s3://b?endpoint=http%3A%2F%2F127.0.0.1%3A7070&region=us-east-1&disable_https=true",
            ),
            ("s3://b?endpoint=https://h:9000/", "s3://b?endpoint=https%3A%2F%2Fh%3A9000"),
            ("s3://b?endpoint=h.example", "s3://b?endpoint=https%3A%2F%2Fh.example"),
            ("gs://b?prefix=x", "gs://b?prefix=x"),
            ("gs://b?endpoint=http://[::1]:1&disable_https=true", "gs://b?endpoint=http%3A%2F%2F%5B%3A%3A1%5D%3A1&disable_https=true"),
            ("file:///var//lib/x/", "file:///var/lib/x"),
            ("file:///a%20b/%C3%BC?prefix=p", "file:///a%20b/%C3%BC?prefix=p"),
        ] {
            let url = StoreUrl::parse(given).unwrap();
            assert_eq!(url.to_string(), canonical, "{given}");
            assert_eq!(StoreUrl::parse(canonical).unwrap(), url);
        }
        assert_eq!(StoreUrl::file(Path::new("/x y")).unwrap(), StoreUrl::parse("file:///x%20y").unwrap());
    }

    #[test]
    fn refusals_name_the_fault_and_the_remedy_but_not_the_url() {
        for (given, named) in [
            ("b", "scheme"),
            ("http://hunter2", "scheme"),
            ("s3://", "bucket"),
            ("s3:///x", "path"),
            ("s3://B", "bucket name"),
            ("s3://b%2fc", "bucket name"),
            ("s3://b:80", "port"),
            ("s3://key:hunter2@b", "user name"),
            ("s3://key@b/x", "user name"),
            ("s3://b/x", "path"),
            ("s3://b#x", "fragment"),
            ("s3://b?prefix=x#hunter2", "fragment"),
            ("s3://b?prefx=hunter2", "prefx"),
            ("s3://b?prefx=x", "use_path_style"),
            ("gs://b?region=x", "region"),
            ("file:///d?endpoint=x", "endpoint"),
            ("s3://b?prefix=a&prefix=b", "prefix twice"),
            ("s3://b?prefix=../a", "prefix"),
            ("s3://b?prefix=/a", "prefix"),
            ("s3://b?prefix=a//b", "prefix"),
            ("s3://b?prefix=%FF", "UTF-8"),
            ("s3://b?use_path_style=yes", "use_path_style"),
            ("s3://b?use_path_style=true&s3ForcePathStyle=false", "contradict"),
            ("s3://b?endpoint=http://h", "disable_https"),
            ("s3://b?endpoint=https://h&disable_https=true", "contradicts"),
            ("s3://b?disable_https=true", "disable_https"),
            ("s3://b?endpoint=", "endpoint"),
            ("s3://b?endpoint=https://u:hunter2@h", "endpoint"),
            ("s3://b?endpoint=https://h?x=1", "endpoint"),
            ("s3://b?endpoint=ftp://h", "endpoint"),
            ("s3://b?region=", "region"),
            ("file://host/x", "host"),
            ("file://x", "host"),
            ("file://./x", "relative"),
            ("file:///", "root"),
            ("file:///a/../b", ".."),
            ("file:///a/%2e%2e/b", ".."),
            ("file:///a%2", "hexadecimal"),
            ("file:///a%00", "control"),
            ("s3://b?prefix=a b", "white space"),
        ] {
            let error = StoreUrl::parse(given).expect_err(given);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let text = error.to_string();
            assert!(text.contains(named), "{given}: {text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
        assert!(StoreUrl::file(Path::new("relative")).is_err());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "(s3|gs|file|S3|)(://|:)?[ -~\u{80}-\u{200}]{0,60}") {
            if let Ok(url) = StoreUrl::parse(&text) {
                prop_assert_eq!(StoreUrl::parse(&url.to_string()).unwrap(), url);
            }
        }

        #[test]
        fn a_printed_url_parses_back(
            bucket in "[a-z0-9][a-z0-9._-]{0,20}",
            prefix in "([a-zA-Z0-9 ü%+&=?#@:_-][a-z. %]{0,5}/){0,3}",
            region in proptest::option::of("[a-z0-9-]{1,12}"),
            host in proptest::option::of("[a-z]{1,8}(:[1-9][0-9]{0,3})?(/[a-z%0-9]{0,4})?"),
            plain: bool, style: Option<bool>, scheme in 0..3,
        ) {
            let mut q = form_urlencoded::Serializer::new(String::new());
            q.append_pair("prefix", &prefix);
            if scheme < 2 && let Some(h) = &host {
                q.append_pair("endpoint", h).append_pair("disable_https", if plain { "true" } else { "false" });
            }
            if scheme == 0 {
                if let Some(r) = &region { q.append_pair("region", r); }
                if let Some(s) = style { q.append_pair("s3ForcePathStyle", if s { "true" } else { "false" }); }
            }
            let text = match scheme { 0 => format!("s3://{bucket}?{}", q.finish()), 1 => format!("gs://{bucket}?{}", q.finish()), _ => format!("file:///{bucket}/é%25?{}", q.finish()) };
            let url = StoreUrl::parse(&text).unwrap();
            prop_assert_eq!(url.prefix(), prefix.trim_end_matches('/'));
            prop_assert_eq!(StoreUrl::parse(&url.to_string()).unwrap(), url);
        }
    }
}
