//! hiloop-sim.
