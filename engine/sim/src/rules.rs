//! The rules that can be switched off, each with the scenario that must then fail.
//!
//! A section marked *proposed* has the rule's subject but does not state the rule yet: the models need it to hold.

use std::fmt;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $key:literal, $section:literal, $scenario:literal;)*) => {
        /// A rule of `protocols.md`. Its documentation says what happens instead when it is dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// All rules, in order of their sections.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name on the command line.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }
            /// Its section in `protocols.md`.
            pub const fn section(self) -> &'static str {
                match self { $(Self::$name => $section,)* }
            }
            /// The scenario that fails without it.
            pub const fn scenario(self) -> &'static str {
                match self { $(Self::$name => $scenario,)* }
            }
        }
    };
}

rules! {
    /// Dropped: a commit reads the seqno that it claims after it flushed staging.
    ClaimBeforeStaging = "claim-before-staging", "2.4", "commit";
    /// Dropped: recovery believes a record above the last flushed seqno without the CRC of its staging.
    StagingChecked = "staging-checked", "2.4", "commit";
    /// Dropped: recovery takes what it reads from the page cache for durable.
    RewriteAtRecovery = "rewrite-at-recovery", "2.5", "failed-flush";
    /// Dropped: numbering resumes above the last whole record only.
    NumberingAbove = "numbering-above", "2.5", "index";
    /// Dropped: packs are made of records that are accepted and not flushed.
    OnlyFlushedShips = "only-flushed-ships", "2.6", "commit";
    /// Dropped: local bytes are released once they are shipped.
    ReleaseOnConfirm = "release-on-confirm", "2.6", "fenced-tail";
    /// Dropped: the index applies records before they are flushed.
    IndexBehind = "index-behind", "2.7", "index";
    /// Dropped: a copied directory goes on with the sessions it finds.
    CopiesDisown = "copies-disown", "2.8", "power-cuts";
    /// Dropped: deleting a workspace removes its head object.
    Tombstones = "tombstones", "3.1", "delete-open";
    /// Dropped: a swap is sent before its nonce is flushed.
    NonceFlushedFirst = "nonce-flushed-first", "3.2", "power-cuts";
    /// Dropped: any beat of the owner's node counts as life of the owner.
    BeatNamesHead = "beat-names-head", "3.3", "dead-owner";
    /// Dropped: a release says that nothing is left.
    ReleaseNamesTail = "release-names-tail", "3.4", "lost-window";
    /// Dropped: where no heartbeat shows more than was published, the lost window is `none`.
    NoneOnlyIfClean = "none-only-if-clean", "3.4", "lost-window";
    /// Dropped: a take-over leaves no cut-off behind.
    CutOff = "cut-off", "3.4", "late-snapshot";
    /// Dropped: a tail is recovered over the last root whose publish its node saw confirmed, not over the one that was cut off.
    RecoverOverCutOff = "recover-over-cut-off", "3.4", "recover";
    /// Dropped: an opening leaves the sequence of the opening before in the head.
    OwnSequence = "own-sequence", "3.6", "takeover-publish";
    /// Dropped: everything that the session uploaded once is referenced again.
    DedupOnlyToLive = "dedup-only-to-live", "4.2", "dedup";
    /// Dropped: the head passes a cut before its snapshot object stands.
    SnapshotBeforePassing = "snapshot-before-passing", "4.3", "late-snapshot";
    /// Dropped: pack keys have no session and no attempt, and whoever finds the key taken believes that it was its own earlier put.
    UniquePackKeys = "unique-pack-keys", "5.1", "pack-keys";
    /// Dropped: a rewriter puts the new pack without an intent.
    RepackIntent = "repack-intent", "5.3", "repack";
    /// Dropped: marking stops at the pack that a root names.
    FollowForwards = "follow-forwards", "5.3", "repack";
    /// Dropped: the rewriter removes its intent although it does not know whether its forward will still appear.
    RepackIntentUntilSettled = "repack-intent-until-settled", "5.3", "repack-unsettled";
    /// Dropped: a collector knows the forwards that stood before it listed packs and intents, and no later ones.
    ForwardsBehindIntents = "forwards-behind-intents", "7.1", "repack";
    /// Dropped: a collector does not mark the base roots that heads and intents record.
    BaseRootsMarked = "base-roots-marked", "7.1", "base-deleted";
    /// Dropped: intents that stood right behind the listing of packs protect new packs only, and are no roots.
    FirstIntentsMark = "first-intents-mark", "7.1", "fork-alone";
    /// Dropped: a collector looks at the names once.
    RepeatPasses = "repeat-passes", "7.2", "fork-moving";
    /// Dropped: a deletion removes the name and nothing else.
    DeletionObject = "deletion-object", "7.3", "fork-chain";
    /// Dropped: packs of a live session above its published sequence are collected like others.
    LimitGuard = "limit-guard", "7.4", "dedup";
    /// Dropped: a fork puts the child, reads the source again, and takes the child back where the source is gone.
    ForkIntent = "fork-intent", "7.5", "fork-delete";
    /// Dropped: the source is not read again behind the intent.
    ForkReread = "fork-reread", "7.5", "fork-delete";
    /// Dropped: a fork removes its intent although it does not know whether its child will still appear.
    ForkIntentUntilSettled = "fork-intent-until-settled", "7.5", "fork-unsettled";
    /// Dropped: a publisher does not read the bases that it reuses again behind its intent.
    ReuseReread = "reuse-reread", "7.6", "base-reuse";
    /// Dropped: a publisher puts the base over whatever has become of its intent.
    IntentBecomesBase = "intent-becomes-base", "7.6", "pack-keys";
    /// Dropped: a deletion forgets what the deleted head's owner may still name in a snapshot object.
    DeletionCutsOff = "deletion-cuts-off", "7.3", "deleted-snapshot";
}

impl Rule {
    /// The rule of that name.
    pub fn parse(key: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|r| r.key() == key)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

/// Which rules hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    dropped: u64,
}

impl Rules {
    /// All rules hold.
    pub const fn all() -> Self {
        Self { dropped: 0 }
    }
    /// All but one more.
    #[must_use]
    pub const fn without(self, rule: Rule) -> Self {
        Self { dropped: self.dropped | 1 << rule as u64 }
    }
    /// True where `rule` holds.
    pub const fn hold(self, rule: Rule) -> bool {
        self.dropped & (1 << rule as u64) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_fit_the_set() {
        assert!(Rule::ALL.len() <= 64);
        for (i, rule) in Rule::ALL.iter().enumerate() {
            assert_eq!(*rule as usize, i);
            assert_eq!(Rule::parse(rule.key()), Some(*rule));
        }
        assert_eq!(Rule::parse("no-such-rule"), None);
    }

    #[test]
    fn one_rule_is_dropped_at_a_time() {
        let rules = Rules::all().without(Rule::CutOff);
        assert!(!rules.hold(Rule::CutOff));
        assert!(Rule::ALL.iter().filter(|r| !rules.hold(**r)).count() == 1);
    }
}
