//! hiloop-fusefs.
