//! One mount, served by readers of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use hiloop_env::Env;
use nix::errno::Errno;
use parking_lot::{Condvar, Mutex};

use crate::abi::MAJOR;
use crate::answer::Answer;
use crate::buffer::Buffer;
use crate::decode::decode;
use crate::encode::{Body, encode};
use crate::inhand::{InHand, NoTable, Registry};
use crate::init::{InitConfig, InitState, answer_with_our_major, negotiate};
use crate::link::{Link, Shared};
use crate::notify::Notifier;
use crate::reader::Reader;
use crate::reply::Reply;
use crate::request::{Operation, Request};
use crate::spin::{Spin, Spinners};
use crate::stats::{Counters, Stats};
use crate::{device, threads};

/// Readers where nobody says how many: one for each CPU, up to this.
const READERS: usize = 4;
/// INIT is the first message and short.
const INIT_BUFFER: usize = 8192;
/// Between two signals to a reader that has not heard the first: it may have been on its way into the kernel.
const WAKE_AGAIN: Duration = Duration::from_millis(1);
const WAKE_AGAIN_LONGEST: Duration = Duration::from_millis(50);

/// What serves the requests of a mount, over whichever transport. Called on readers, several at once: it must not wait.
pub trait FileSystem: Send + Sync {
    /// Does a request and answers it, at once or later from any thread.
    fn handle(&self, request: Request<'_>, reply: Reply);
    /// The kernel lets go of `nlookup` references to a node.
    fn forget(&self, nodeid: u64, nlookup: u64);
    /// What [`Notifier::retrieve`] asked for; `data` may be shorter than that.
    fn retrieved(&self, _id: u64, _nodeid: u64, _offset: u64, _data: &[u8]) {}
    /// The last request of a mount. Ordinary FUSE mounts end without it.
    fn destroy(&self) {}
}

/// How a session is served.
#[derive(Clone)]
pub struct Config {
    /// Start of the readers' thread names; the kernel shows 15 bytes.
    pub name: String,
    /// What to agree on with the kernel.
    pub init: InitConfig,
    /// Readers; 0 for one on each CPU, at most four.
    pub readers: usize,
    /// Whether each reader is bound to a CPU of its own.
    pub pin: bool,
    /// Whether readers poll before they sleep.
    pub spin: Spin,
    /// Bytes of each reader's buffer (`max_write` and a little) that are in memory from the start; the rest follows after the first
    /// request that needs it. A request whose reader is killed while the kernel copies it to a page that is not there is lost to every
    /// successor: its caller gets EIO. So all of it, unless memory for idle mounts matters more.
    pub resident: usize,
    /// Who polls where; the same for all sessions of a process.
    pub spinners: Spinners,
    /// Hears what is in hand.
    pub table: Arc<dyn InHand>,
    /// Clock.
    pub env: Env,
}

impl Config {
    /// The defaults, with a clock.
    pub fn new(env: Env) -> Self {
        Self {
            name: "fuse".into(),
            init: InitConfig::default(),
            readers: 0,
            pin: true,
            spin: Spin::default(),
            resident: usize::MAX,
            spinners: Spinners::default(),
            table: Arc::new(NoTable),
            env,
        }
    }
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The mount is gone.
    Unmounted,
    /// The connection was cut by hand; callers got an error.
    Aborted,
    /// [`Session::stop`]: the mount is there and waits for a successor.
    Stopped,
    /// A reader failed; the others stopped. The mount is there and answers no more.
    Failed(String),
}

struct Running {
    readers: usize,
    /// Readers that have begun; each takes itself out before it ends, so that these are alive.
    threads: Vec<libc::pthread_t>,
    ended: Ended,
}

struct Core {
    shared: Arc<Shared>,
    running: Mutex<Running>,
    changed: Condvar,
}

/// A mount that is served. Dropping it changes nothing: the readers go on until the mount ends.
pub struct Session {
    core: Arc<Core>,
    links: Vec<Arc<Link>>,
    init: InitState,
}

impl Session {
    /// Serves a mount from its beginning. `devices` are the descriptor that was mounted and, after it, clones of it; where there are
    /// fewer than readers, clones are made. `record` gets what was agreed and all descriptors before the kernel has the answer: what
    /// it fails to keep no successor can take over, so its error ends the start.
    ///
    /// # Errors
    /// InvalidInput without a descriptor; Unsupported where the kernel cannot do what is required; others as the system or `record`
    /// gives them.
    pub fn start(
        devices: Vec<OwnedFd>,
        fs: Arc<dyn FileSystem>,
        config: Config,
        record: impl FnOnce(&InitState, &[OwnedFd]) -> io::Result<()>,
    ) -> io::Result<Self> {
        let devices = with_clones(devices, &config)?;
        let (unique, state) = greet(&devices[0], &config.init)?;
        record(&state, &devices)?;
        nix::unistd::write(&devices[0], &state.answer(unique))?;
        let (core, links) = connect(devices, &config);
        Self::run(core, links, state, fs, config)
    }

    /// Takes over a mount whose INIT was answered, by this process or one that is gone. Nobody else may read from it any more. What
    /// was in hand comes again, marked ([`Request::resent`]); so does what a session before in this process still has in hand, whose
    /// replies then answer too: let [`Session::in_hand`] reach 0 first.
    ///
    /// # Errors
    /// InvalidInput without a descriptor; EINVAL where the kernel is older than 6.9; ENODEV where the mount is gone.
    pub fn resume(devices: Vec<OwnedFd>, state: InitState, fs: Arc<dyn FileSystem>, config: Config) -> io::Result<Self> {
        let devices = with_clones(devices, &config)?;
        let (core, links) = connect(devices, &config);
        Notifier(links[0].clone()).resend()?;
        Self::run(core, links, state, fs, config)
    }

    fn run(core: Arc<Core>, links: Vec<Arc<Link>>, init: InitState, fs: Arc<dyn FileSystem>, config: Config) -> io::Result<Self> {
        threads::install()?;
        let cpus = if config.pin { threads::allowed_cpus() } else { Vec::new() };
        let session = Self { core, links, init };
        for n in 0..readers(&config) {
            let reader = Reader {
                link: session.links[n].clone(),
                fs: fs.clone(),
                layout: init.layout(),
                buffer: Buffer::new(init.buffer_size(), config.resident),
                cpu: (!cpus.is_empty()).then(|| cpus[n % cpus.len()]),
                spin: config.spin,
                spinners: config.spinners.clone(),
                env: config.env.clone(),
            };
            let core = session.core.clone();
            core.running.lock().readers += 1;
            let spawned = std::thread::Builder::new().name(format!("{}-{n}", config.name)).spawn(move || core.read(reader));
            if let Err(e) = spawned {
                session.core.running.lock().readers -= 1;
                session.stop();
                return Err(e);
            }
        }
        Ok(session)
    }

    /// Has every reader leave before its next request and waits until they have. What they took is answered, or is still in the file
    /// system's hands ([`Session::in_hand`]); what they did not take waits in the kernel. The mount stays. Not to be called on a
    /// reader.
    pub fn stop(&self) -> Ended {
        self.core.shared.stop.store(true, SeqCst);
        self.core.changed.notify_all();
        self.wait()
    }

    /// Waits until the session is over.
    pub fn wait(&self) -> Ended {
        self.core.wait()
    }

    /// True while readers run.
    pub fn is_running(&self) -> bool {
        self.core.running.lock().readers > 0
    }

    /// Requests that were taken and not answered.
    pub fn in_hand(&self) -> usize {
        self.core.shared.in_hand.len()
    }

    /// What was agreed with the kernel.
    pub fn init(&self) -> &InitState {
        &self.init
    }

    /// The descriptor that was mounted, for ioctls.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.links[0].as_fd()
    }

    /// All descriptors once more, in the order that [`Session::resume`] wants.
    ///
    /// # Errors
    /// EMFILE and the like.
    pub fn devices(&self) -> io::Result<Vec<OwnedFd>> {
        self.links.iter().map(|l| l.duplicate()).collect()
    }

    /// To tell the kernel things.
    pub fn notifier(&self) -> Notifier {
        Notifier(self.links[0].clone())
    }

    /// What was done so far.
    pub fn stats(&self) -> Stats {
        self.core.shared.counters.snapshot()
    }
}

impl Core {
    fn read(&self, reader: Reader) {
        // SAFETY: no arguments, and it cannot fail.
        let me = unsafe { libc::pthread_self() };
        self.running.lock().threads.push(me);
        let mut leave = Leave { core: self, me, ended: Ended::Failed("a reader panicked".into()) };
        leave.ended = reader.run().unwrap_or_else(|e| Ended::Failed(format!("reading from {}: {e}", device::PATH)));
    }

    fn wait(&self) -> Ended {
        let mut running = self.running.lock();
        let mut pause = WAKE_AGAIN;
        while running.readers > 0 {
            if self.shared.stop.load(SeqCst) {
                running.threads.iter().for_each(|t| threads::wake(*t));
                self.changed.wait_for(&mut running, pause);
                pause = (pause * 2).min(WAKE_AGAIN_LONGEST);
            } else {
                self.changed.wait(&mut running);
            }
        }
        running.ended.clone()
    }
}

/// Takes a reader off the list, also where it panics.
struct Leave<'a> {
    core: &'a Core,
    me: libc::pthread_t,
    ended: Ended,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut running = self.core.running.lock();
        running.threads.retain(|t| *t != self.me);
        running.readers -= 1;
        let failed = matches!(self.ended, Ended::Failed(_));
        // A failure says most, a stop least.
        if failed || running.ended == Ended::Stopped {
            running.ended = self.ended.clone();
        }
        if failed {
            tracing::error!(why = ?self.ended, "a FUSE reader ended; the others stop");
            self.core.shared.stop.store(true, SeqCst);
        }
        drop(running);
        self.core.changed.notify_all();
    }
}

fn readers(config: &Config) -> usize {
    match config.readers {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get().min(READERS)),
        n => n,
    }
}

fn with_clones(mut devices: Vec<OwnedFd>, config: &Config) -> io::Result<Vec<OwnedFd>> {
    if devices.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a session needs the descriptor of its mount"));
    }
    while devices.len() < readers(config) {
        devices.push(device::clone(&devices[0])?);
    }
    Ok(devices)
}

fn connect(devices: Vec<OwnedFd>, config: &Config) -> (Arc<Core>, Vec<Arc<Link>>) {
    let shared = Arc::new(Shared {
        in_hand: Registry::default(),
        table: config.table.clone(),
        counters: Counters::default(),
        stop: AtomicBool::new(false),
    });
    let links = devices.into_iter().map(|device| Arc::new(Link { device, shared: shared.clone() })).collect();
    let running = Mutex::new(Running { readers: 0, threads: Vec::new(), ended: Ended::Stopped });
    (Arc::new(Core { shared, running, changed: Condvar::new() }), links)
}

/// Reads INIT and decides what to answer.
fn greet(device: &OwnedFd, config: &InitConfig) -> io::Result<(u64, InitState)> {
    let mut buffer = vec![0; INIT_BUFFER];
    loop {
        let n = match nix::unistd::read(device, &mut buffer) {
            Ok(n) => n,
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e.into()),
        };
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let request = decode(&buffer[..n]).map_err(|e| invalid(e.to_string()))?;
        let Operation::Init(offer) = request.op else {
            return Err(invalid(format!("the kernel began with {:?} instead of INIT", request.opcode)));
        };
        if offer.major > MAJOR {
            nix::unistd::write(device, &answer_with_our_major(request.unique))?;
            continue;
        }
        match negotiate(config, &offer) {
            Ok(state) => return Ok((request.unique, state)),
            Err(e) => {
                let (head, Body::None) = encode(request.unique, request.opcode, &Answer::Error(libc::EPROTO)) else {
                    return Err(e.into());
                };
                nix::unistd::write(device, head.bytes())?;
                return Err(e.into());
            }
        }
    }
}
