//! What a cut took.

/// Counts over one power cut: a test asserts on them that its fault happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Directory operations that were not flushed and survived.
    pub names_kept: u64,
    /// Directory operations that were not flushed and are gone.
    pub names_lost: u64,
    /// Sectors of unflushed writes that survived (a sector counts once per write).
    pub sectors_kept: u64,
    /// Sectors of unflushed writes that are gone.
    pub sectors_lost: u64,
    /// Writes of which some sectors survived and some did not.
    pub writes_torn: u64,
}

impl Losses {
    /// Adds the counts of another cut.
    pub fn add(&mut self, other: &Self) {
        self.names_kept += other.names_kept;
        self.names_lost += other.names_lost;
        self.sectors_kept += other.sectors_kept;
        self.sectors_lost += other.sectors_lost;
        self.writes_torn += other.writes_torn;
    }
}

impl std::fmt::Display for Losses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { names_kept, names_lost, sectors_kept, sectors_lost, writes_torn } = self;
        write!(
            f,
            "names_kept={names_kept} names_lost={names_lost} sectors_kept={sectors_kept} sectors_lost={sectors_lost} writes_torn={writes_torn}"
        )
    }
}
