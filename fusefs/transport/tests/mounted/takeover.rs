//! The serving process is killed while clients work. This process keeps the descriptors, as the keeper will; successors take over.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;

use hiloop_env::Env;
use hiloop_transport::null::{init_config, mount};
use hiloop_transport::{Config, FileSystem, InitState, Operation, Reply, Request, Session, device};

use crate::rig::PATIENCE;
use crate::slate::{FILES, SIZE, Slate};

const FDS: &str = "HILOOP_TEST_FDS";
const DIR: &str = "HILOOP_TEST_DIR";
/// What a child says begins with this; the rest of its output is the test harness's.
const SAYS: &str = "child: ";

/// Keeps what looks up `hold` for ever, unless it comes back.
struct Holding(Slate);

impl FileSystem for Holding {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Operation::Lookup { name: b"hold" } if request.resent() => {
                say("resent");
                reply.error(libc::ENOENT);
            }
            Operation::Lookup { name: b"hold" } => {
                // Whoever waits for this line kills the process.
                std::mem::forget(reply);
                say("holding");
            }
            _ => self.0.handle(request, reply),
        }
    }
    fn forget(&self, nodeid: u64, nlookup: u64) {
        self.0.forget(nodeid, nlookup);
    }
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{SAYS}{what}").and_then(|()| out.flush()).unwrap();
}

/// Not a test: the process that serves.
#[test]
#[ignore = "a process of its own, started by the test below"]
fn serve() {
    let (Ok(fds), Ok(dir)) = (std::env::var(FDS), std::env::var(DIR)) else { return };
    let dir = Path::new(&dir);
    // SAFETY: descriptors that were left open for this process, which nobody else here uses.
    let devices = fds.split(',').map(|fd| unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) }).collect::<Vec<_>>();
    let state = OpenOptions::new().read(true).write(true).open(dir.join("state")).unwrap();
    let fs_ = Arc::new(Holding(Slate { state }));
    // Parallel look-ups among them: `hold` must not hold up the others.
    let config = Config { init: init_config(), readers: devices.len(), ..Config::new(Env::real()) };
    let recorded = dir.join("init");
    let session = match fs::read(&recorded) {
        Ok(bytes) => Session::resume(devices, InitState::from_bytes(&bytes).unwrap(), fs_, config).unwrap(),
        Err(_) => Session::start(devices, fs_, config, |state, _| fs::write(&recorded, state.to_bytes())).unwrap(),
    };
    say("serving");
    session.wait();
}

struct Server {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Server {
    fn start(dir: &Path, devices: &[OwnedFd]) -> Self {
        let numbers: Vec<RawFd> = devices.iter().map(|d| d.as_raw_fd()).collect();
        let list = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "takeover::serve", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(FDS, list).env(DIR, dir).stdout(Stdio::piped());
        let keep_open = move || {
            for fd in &numbers {
                // SAFETY: a plain call on a descriptor that this process owns.
                if unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) } != 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: the closure only makes system calls.
        unsafe { command.pre_exec(keep_open) };
        let mut process = command.spawn().unwrap();
        let (tx, lines) = mpsc::channel();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        // Ends with the process, or with whoever listens.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|l| tx.send(l)));
        Self { process, lines }
    }

    /// Reads on until the process says so.
    fn expect(&self, what: &str) {
        while self.lines.recv_timeout(PATIENCE).expect("the process goes on and says something").strip_prefix(SAYS) != Some(what) {}
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let killed = self.process.kill();
        let waited = self.process.wait();
        assert!(killed.is_ok() && waited.is_ok());
    }
}

#[test]
fn clients_of_a_killed_process_are_served_by_its_successors() {
    const KILLS: usize = 15;
    let dir = tempfile::tempdir().unwrap();
    File::create(dir.path().join("state")).unwrap().set_len(SIZE * FILES).unwrap();
    let mountpoint = dir.path().join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let (main, mounted) = mount(&mountpoint).unwrap();
    let devices = [main.try_clone().unwrap(), device::clone(&main).unwrap()];
    drop(main);

    let mut server = Server::start(dir.path(), &devices);
    server.expect("serving");
    let stop = Arc::new(AtomicBool::new(false));
    let (tx, progress) = mpsc::channel();
    let clients: Vec<_> = (0..FILES)
        .map(|n| {
            let (path, stop, tx) = (mounted.path().join(format!("f{n}")), stop.clone(), tx.clone());
            std::thread::spawn(move || {
                for round in 0u64.. {
                    if stop.load(SeqCst) {
                        break;
                    }
                    let f = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                    // Short and long ones: a long one is likelier to be on its way when its reader dies.
                    let len = if round % 3 == 0 { 256 << 10 } else { 4096 };
                    let block = vec![round as u8 ^ n as u8; len];
                    let at = round * len as u64 % SIZE;
                    f.write_all_at(&block, at).unwrap();
                    let mut back = vec![0; len];
                    f.read_exact_at(&mut back, at).unwrap();
                    assert!(back == block);
                    tx.send(()).unwrap();
                }
            })
        })
        .collect();
    for _ in 0..KILLS {
        let hold = mounted.path().join("hold");
        let held = std::thread::spawn(move || fs::metadata(hold));
        server.expect("holding");
        (0..20).for_each(|_| progress.recv_timeout(PATIENCE).unwrap());
        drop(server);
        server = Server::start(dir.path(), &devices);
        server.expect("resent");
        assert_eq!(held.join().unwrap().unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
    stop.store(true, SeqCst);
    clients.into_iter().for_each(|c| c.join().unwrap());
    mounted.unmount().unwrap();
}
