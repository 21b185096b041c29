//! FUSE without a library: the kernel's protocol, and a transport over `/dev/fuse` that keeps requests short.
//!
//! A request costs a few microseconds where nothing has to wake another CPU and ten times that where something has. So a mount is
//! served by few readers, each on a CPU and a descriptor of its own, that poll for a moment after a request where that has proved to
//! pay ([`Spin`]). It also serves what a node needs of a mount that outlives its daemon: a stop at a request boundary, a take-over
//! without INIT and with RESEND ([`Session::resume`]), a hook that learns what is in hand ([`InHand`]), and interrupts, so that a
//! caller who waits can be killed ([`Reply::park`]).
//!
//! A file system is a [`FileSystem`]: it gets a [`Request`] and a [`Reply`], neither of which knows how they travel. The device loop
//! is one way ([`Session`]); another transport fills in requests itself and takes answers through [`Sink`].
//!
//! Nothing here reads the mounted tree or knows the engine.

pub mod abi;
mod answer;
mod buffer;
mod decode;
pub mod device;
mod dirbuf;
mod encode;
mod inhand;
mod init;
mod link;
mod notify;
pub mod null;
mod reader;
mod reply;
mod request;
mod session;
mod spin;
mod stats;
mod threads;

pub use answer::{Answer, Attr, Entry, Opened, StatFs};
pub use decode::{Layout, Malformed, decode};
pub use dirbuf::{Dirent, Listing, ListingPlus};
pub use inhand::{InHand, NoTable};
pub use init::{InitConfig, InitError, InitState, InitStateError, negotiate};
pub use notify::Notifier;
pub use reply::{Parked, Reply, Sink, Waiting};
pub use request::{Forgets, Groups, Init, Lock, Operation, Request, SetAttr, SetTime, Time};
pub use session::{Config, Ended, FileSystem, Session};
pub use spin::{Spin, Spinners, Turn};
pub use stats::Stats;
pub use threads::{allowed_cpus, bind};
