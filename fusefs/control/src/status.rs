//! Errors on their way over the socket: a gRPC code for programs that know nothing of us, and metadata that keep the kind, the place and
//! the remedy whole for those that do.

use hiloop_types::{Error, ErrorKind};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

const KIND: &str = "hiloop-kind";
const PLACE: &str = "hiloop-place-bin";
const HINT: &str = "hiloop-hint-bin";

/// Longest sentence that goes over the wire, bytes: headers are bounded.
const TEXT_MAX: usize = 2048;

const KINDS: [(ErrorKind, Code); 10] = [
    (ErrorKind::NotFound, Code::NotFound),
    (ErrorKind::Invalid, Code::InvalidArgument),
    (ErrorKind::Conflict, Code::Aborted),
    (ErrorKind::Fenced, Code::FailedPrecondition),
    (ErrorKind::Unavailable, Code::Unavailable),
    (ErrorKind::Exhausted, Code::ResourceExhausted),
    (ErrorKind::Corrupt, Code::DataLoss),
    (ErrorKind::Closed, Code::Cancelled),
    (ErrorKind::Denied, Code::PermissionDenied),
    (ErrorKind::Internal, Code::Internal),
];

/// The status of an error.
pub fn from_error(e: &Error) -> Status {
    let code = KINDS.iter().find(|(k, _)| *k == e.kind()).map_or(Code::Internal, |(_, c)| *c);
    let mut metadata = MetadataMap::new();
    metadata.insert(KIND, MetadataValue::from_static(e.kind().as_str()));
    let hint = e.hint_text().unwrap_or_default();
    // Places are shown in front of the sentence, the remedy behind it in brackets.
    let shown = e.to_string();
    let place = shown.split_once(e.what()).and_then(|(p, _)| p.strip_suffix(": ")).unwrap_or_default();
    for (key, text) in [(PLACE, place), (HINT, hint)] {
        if !text.is_empty() {
            metadata.insert_bin(key, MetadataValue::from_bytes(cut(text).as_bytes()));
        }
    }
    Status::with_metadata(code, cut(e.what()), metadata)
}

/// True where the daemon itself says it, not the transport.
pub(crate) fn is_told(status: &Status) -> bool {
    status.metadata().contains_key(KIND)
}

/// The error of a status, also of one that did not come from us.
pub fn into_error(status: &Status) -> Error {
    let word = status.metadata().get(KIND).and_then(|v| v.to_str().ok());
    let told = word.and_then(|w| KINDS.iter().find(|(k, _)| k.as_str() == w));
    // Without a kind it is the transport that speaks, and whether the call was carried out is not known.
    let by_code = || KINDS.iter().find(|(_, c)| *c == status.code() && !matches!(c, Code::Cancelled));
    let kind = told.or_else(by_code).map_or(ErrorKind::Unavailable, |(k, _)| *k);
    let text = |key| {
        let bytes = status.metadata().get_bin(key).and_then(|v| v.to_bytes().ok());
        bytes.and_then(|b| String::from_utf8(b.to_vec()).ok())
    };
    let mut e = Error::new(kind, status.message());
    if let Some(place) = text(PLACE) {
        e = e.at(place);
    }
    match text(HINT) {
        Some(hint) => e.hint(hint),
        None => e,
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_back_with_place_and_remedy() {
        for (kind, code) in KINDS {
            let e = Error::new(kind, "what happened (ä)").at("inner").at("outer").hint("do this");
            let status = from_error(&e);
            assert_eq!(status.code(), code);
            assert_eq!(status.message(), "what happened (ä)");
            assert!(status.details().is_empty(), "CSI wants none");
            let back = into_error(&status);
            assert_eq!((back.kind(), back.to_string()), (kind, e.to_string()));
            let bare = Error::new(kind, "x");
            assert_eq!(into_error(&from_error(&bare)).to_string(), "x");
        }
    }

    #[test]
    fn what_the_transport_says_may_be_tried_again() {
        for code in [Code::Unavailable, Code::Unknown, Code::DeadlineExceeded, Code::Cancelled] {
            assert_eq!(into_error(&Status::new(code, "transport error")).kind(), ErrorKind::Unavailable);
        }
        assert_eq!(into_error(&Status::new(Code::Unimplemented, "x")).kind(), ErrorKind::Unavailable);
        assert_eq!(into_error(&Status::new(Code::ResourceExhausted, "x")).kind(), ErrorKind::Exhausted);
    }

    #[test]
    fn long_sentences_are_cut_and_any_metadata_are_read() {
        let e = Error::internal("ä".repeat(4000)).hint("h".repeat(9000));
        let status = from_error(&e);
        assert!(status.message().len() <= TEXT_MAX);
        let mut odd = MetadataMap::new();
        odd.insert(KIND, MetadataValue::from_static("of a later version"));
        odd.insert_bin(HINT, MetadataValue::from_bytes(&[0xff, 0xfe]));
        assert_eq!(into_error(&Status::with_metadata(Code::NotFound, "m", odd)).kind(), ErrorKind::NotFound);
    }
}
