//! What object_store says, in the engine's kinds, without what must not be repeated.
//!
//! object_store keeps the HTTP status and body in a type that it does not export, so they are read from its words ("Server returned
//! non-2xx status code: 503 Service Unavailable: BODY"); a test with a real answer pins them. Of a body only the `<Code>` enters a
//! message: bodies quote key ids and signatures. Of a transport error only the innermost cause does: the outer ones quote URLs.

use std::error::Error as StdError;

use hiloop_types::{Error, ErrorKind};
use object_store::client::{HttpError, HttpErrorKind};

const STATUS_WORDS: &str = "Server returned non-2xx status code: ";

/// An answer that was no success.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    code: String,
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |e: &&'a (dyn StdError + 'static)| (*e).source())
}

fn answer(error: &(dyn StdError + 'static)) -> Option<Answer> {
    chain(error).find_map(|e| {
        let text = e.to_string();
        let rest = text.strip_prefix(STATUS_WORDS)?;
        let status = rest.get(..3)?.parse().ok()?;
        let code = rest.split_once("<Code>").and_then(|(_, r)| r.split_once("</Code>")).map_or("", |(code, _)| code);
        let code = code.chars().filter(char::is_ascii_alphanumeric).take(60).collect();
        Some(Answer { status, code })
    })
}

/// The innermost cause.
pub(super) fn root_cause(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

/// Whether the store refused a put because its condition does not hold.
pub(super) fn refused_condition(error: &object_store::Error) -> bool {
    use object_store::Error as E;
    match error {
        E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. } => true,
        // If-Match on an object that is gone.
        E::NotFound { source, .. } => !names_bucket(&**source),
        _ => false,
    }
}

/// Whether the call's only attempt was refused for good, so that nothing was written by it.
pub(super) fn is_refusal(error: &object_store::Error) -> bool {
    let repeated = chain(error).any(|e| e.to_string().contains(" retries, max_retries: "));
    !repeated && matches!(answer(error), Some(Answer { status: 400 | 401 | 403 | 404 | 405 | 411 | 413 | 501, .. }))
}

/// Whether a 404 is about the bucket, not the object.
pub(super) fn names_bucket(error: &(dyn StdError + 'static)) -> bool {
    answer(error).is_some_and(|a| a.code == "NoSuchBucket")
}

/// The one translation.
pub(super) fn store_error(error: &object_store::Error) -> Error {
    if let Some(Answer { status, code }) = answer(error) {
        let what = match code.is_empty() {
            true => format!("the store answered {status}"),
            false => format!("the store answered {status} {code}"),
        };
        let hinted = |kind, hint: &str| Error::new(kind, what.clone()).hint(hint);
        return match (status, code.as_str()) {
            (_, "RequestTimeTooSkewed" | "RequestExpired") => {
                hinted(ErrorKind::Denied, "the clocks of this machine and the store differ: set this one's")
            }
            (_, "NoSuchBucket") => hinted(ErrorKind::NotFound, "the bucket does not exist"),
            (401 | 403, _) => hinted(ErrorKind::Denied, "check the credentials in the environment and what they may do in this bucket"),
            (404, _) => Error::not_found(what),
            (409 | 412, _) => Error::conflict(what),
            (416, _) => Error::corrupt("the object is shorter than what was asked for"),
            (507, _) => Error::new(ErrorKind::Exhausted, what),
            (408 | 429 | 500..=599, _) => Error::unavailable(what),
            (301 | 307 | 308, _) => {
                hinted(ErrorKind::Invalid, "the bucket is in another region or at another endpoint: give region= or endpoint=")
            }
            _ => Error::invalid(what),
        };
    }
    let cause = root_cause(error);
    if let Some(http) = chain(error).find_map(|e| e.downcast_ref::<HttpError>()) {
        let lower = cause.to_ascii_lowercase();
        if ["certificate", "unknownissuer", "unknown issuer"].iter().any(|w| lower.contains(w)) {
            return Error::unavailable(format!("the store's TLS certificate is not trusted: {cause}"))
                .hint("--ca-file names the PEM file of a private authority");
        }
        let what = match http.kind() {
            HttpErrorKind::Connect => "cannot connect to the store",
            HttpErrorKind::Timeout => "the store did not answer in time",
            HttpErrorKind::Interrupted | HttpErrorKind::Request => "the connection to the store broke",
            HttpErrorKind::Decode => "the store's answer cannot be read",
            _ => "the request to the store failed",
        };
        return Error::unavailable(format!("{what}: {cause}"));
    }
    if cause.contains("non-partial response")
        || cause.starts_with("Requested ")
        || cause.contains("Content-Range")
        || cause.contains("CONTENT_RANGE")
    {
        return Error::corrupt(format!("the store answered another range than was asked for: {cause}"));
    }
    if cause.starts_with("Received redirect") {
        return Error::invalid(cause).hint("the bucket is in another region or at another endpoint: give region= or endpoint=");
    }
    Error::unavailable(format!("the request to the store failed: {cause}"))
}
