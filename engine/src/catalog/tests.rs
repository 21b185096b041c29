//! Fixtures: documents that running stores hold.

use super::*;

/// A head of the first version, before claims were bound with what they asked for.
const HEAD_V1: &str = include_str!("../../tests/fixtures/head-v1.json");
/// Today's.
const HEAD_CLAIMED: &str = include_str!("../../tests/fixtures/head-v1-claimed.json");

#[test]
fn a_head_without_what_its_claim_asked_for_is_read_and_kept() {
    let old: Head = serde_json::from_str(HEAD_V1).unwrap();
    assert_eq!((old.claim.as_ref(), &old.claimed), (None, &None));
    assert_eq!(serde_json::to_string_pretty(&old).unwrap(), HEAD_V1.trim_end(), "a field that is absent stays absent");
    let new: Head = serde_json::from_str(HEAD_CLAIMED).unwrap();
    assert_eq!(new.claim.as_ref().map(ToString::to_string).as_deref(), Some("ns/claim"));
    assert_eq!(new.claimed.as_ref().and_then(|c| c.size), Some(1 << 30));
    assert_eq!(serde_json::to_string_pretty(&new).unwrap(), HEAD_CLAIMED.trim_end());
}

#[test]
fn a_heartbeat_without_backlogs_is_read() {
    let text = r#"{"format":1,"node":"n","instance":"0000000000000001","beat":3,
        "heads":[{"name":"w","epoch":2,"session":"0000000000000002","accepted":9,"published":4}]}"#;
    let beat: Heartbeat = serde_json::from_str(text).unwrap();
    assert_eq!(beat.heads[0].backlog_bytes, 0);
}
