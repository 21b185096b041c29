//! WRITE: the one request whose data stay in the reader's buffer unless they have to wait.

use std::sync::Arc;
use std::time::Duration;

use hiloop_engine::stop::Stop;
use hiloop_engine::workspace::{Admission, Cost};
use hiloop_transport::Reply;
use hiloop_types::Ino;

use super::core::Core;
use super::park::{Answer, guarded};
use crate::fs::data::{WriteMode, write};
use crate::fs::{FsError, FsResult};

/// A write apart from its data.
#[derive(Clone, Copy)]
pub(super) struct Write {
    pub(super) ino: Ino,
    pub(super) offset: u64,
    pub(super) mode: WriteMode,
    /// O_SYNC or O_DSYNC: answered when durable.
    pub(super) durable: bool,
}

impl Write {
    fn run(&self, core: &Core, data: &[u8]) -> FsResult<u32> {
        core.update(&[self.ino], |tx| write(tx, self.ino, self.offset, data, self.mode))
    }

    /// Tries with the data where they are; copies them only if the write leaves the thread.
    pub(super) fn start(self, core: &Arc<Core>, data: &[u8], reply: Reply) {
        let cost = Cost { bytes: data.len() as u64, exempt: false };
        let delay = match core.ws.admit(cost) {
            Admission::Go => None,
            Admission::Delay(d) => Some(d),
            Admission::Wait => {
                let held = core.held_data.copy(data, self.mode.whole);
                return core.wait_for_room(cost, reply, move |c, reply| self.start(c, &held, reply));
            }
        };
        match guarded(|| self.run(core, data)) {
            Err(FsError::Stop(Stop::Miss(miss))) => {
                let held = core.held_data.copy(data, self.mode.whole);
                let answer = move |c: &Arc<Core>, reply, result| self.finish(c, reply, result, delay);
                core.fetch(miss, reply, move |c| self.run(c, &held), answer, None);
            }
            result => self.finish(core, reply, core.flatten(result), delay),
        }
    }

    fn finish(self, core: &Arc<Core>, reply: Reply, result: Answer<u32>, delay: Option<Duration>) {
        let answer = move |core: &Arc<Core>, reply: Reply, result: Answer<u32>| match result {
            Err(e) => drop(reply.error(e)),
            Ok(n) if !self.durable => drop(reply.written(n)),
            Ok(n) => {
                let c = core.clone();
                let done = move |result: hiloop_types::Result<()>| match c.flatten(result.map_err(FsError::from)) {
                    Ok(()) => drop(reply.written(n)),
                    Err(e) => drop(reply.error(e)),
                };
                core.ws.sync(core.touched.last(self.ino), Box::new(done));
            }
        };
        match delay {
            Some(d) => core.answer_later(d, reply, result, answer),
            None => answer(core, reply, result),
        }
    }
}
