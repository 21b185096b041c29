//! Sources as callers see them: real trees, archives made by `tar`, hostile headers, and image layouts built here.

#![allow(clippy::unwrap_used, reason = "a test ends where something does not hold")]

mod archive;
mod directory;
mod hostile;
mod image;
mod support;
