//! Who owns a head: openings, journalled nonces, releases, heartbeats (`protocols.md` 2.8, 3.2 - 3.4; `engine/src/node`).
//!
//! Two node directories and one workspace. Directory 0 writes; directory 1 is a copy of it, or another node that wants to take over.

use std::collections::BTreeSet;

use crate::explore::{Machine, Step, Steps, Violation};
use crate::rules::{Rule, Rules};

/// What may happen in a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    writes: u8,
    power_cuts: u8,
    copies: u8,
    beats: u8,
    /// Directory 0 may open again after a power cut.
    reopens: bool,
    /// Directory 0 may unmount.
    unmounts: bool,
    /// Directory 1 opens as another node.
    rival: bool,
}

/// Two power cuts and a copy of the directory.
pub const POWER_CUTS: Config = Config { writes: 2, power_cuts: 2, copies: 1, beats: 0, reopens: true, unmounts: false, rival: false };
/// A release or a death, a heartbeat of any age, and a successor.
pub const LOST_WINDOW: Config = Config { writes: 2, power_cuts: 1, copies: 0, beats: 2, reopens: false, unmounts: true, rival: true };
/// A node that was restarted and beats on, without the workspace.
pub const DEAD_OWNER: Config = Config { writes: 0, power_cuts: 1, copies: 0, beats: 3, reopens: false, unmounts: false, rival: true };

/// Directory and count.
type Nonce = (u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Head {
    session: Option<u8>,
    nonce: Nonce,
    sequence: u8,
    /// The tail that a release named.
    release: Option<u8>,
    /// The directory that moved it last: what is checked, not what anybody may look at.
    mover: u8,
}

/// What a directory's journal holds of one opening.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stream {
    session: u8,
    /// Nonces, and whether they are flushed.
    nonces: BTreeSet<(Nonce, bool)>,
    /// Last record that is accepted and flushed.
    flushed: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// No such directory yet.
    Nowhere,
    Down,
    Idle,
    /// Watches the owner: its node's beats, the beats of its entry, and (to be checked) whether the owner lived then and beat for it.
    Watching {
        node: u8,
        entry: u8,
        lived: bool,
        attached: bool,
    },
    /// The nonce of a swap is in the journal; opening or publishing.
    Journalled {
        opening: bool,
    },
    /// The swap may be sent.
    Ready {
        opening: bool,
    },
    /// The swap was sent; `won` is in the answer under way.
    Sent {
        opening: bool,
        won: bool,
    },
    Live,
    Released,
    Fenced,
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Dir {
    at: At,
    stream: Option<Stream>,
    /// True where the directory is a copy, which its device and inode tell.
    copied: bool,
    /// Nonce of the head that the next swap replaces.
    version: Nonce,
    nonces: u8,
    sessions: u8,
}

impl Dir {
    /// True where its daemon runs.
    fn up(&self) -> bool {
        !matches!(self.at, At::Nowhere | At::Down)
    }
    /// True where its heartbeats name the workspace.
    fn attached(&self) -> bool {
        matches!(self.at, At::Live | At::Journalled { opening: false } | At::Ready { opening: false } | At::Sent { opening: false, .. })
    }
    /// True where it runs the opening that the head names, also if it does not know yet.
    fn owns(&self, head: &Head) -> bool {
        let sent = matches!(self.at, At::Sent { won: true, .. });
        (self.attached() || sent) && head.session.is_some() && self.stream.as_ref().map(|t| t.session) == head.session
    }
}

/// The heartbeat of directory 0's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Heartbeat {
    beat: u8,
    /// The beat at which it last named the head's session, and the accepted sequence it named.
    entry: u8,
    accepted: u8,
}

/// See [the module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    head: Head,
    dirs: [Dir; 2],
    heartbeat: Heartbeat,
    writes: u8,
    power_cuts: u8,
    copies: u8,
    broken: Option<&'static str>,
}

impl State {
    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }
}

/// The machine.
pub struct Opening {
    config: Config,
    rules: Rules,
}

const NAMES: [&str; 2] = ["directory 0", "directory 1"];

impl Opening {
    /// A machine of this scenario.
    pub fn new(config: Config, rules: Rules) -> Self {
        Self { config, rules }
    }

    /// True where directory `d` takes the head for its own opening.
    fn resumes(&self, s: &State, d: usize) -> bool {
        let dir = &s.dirs[d];
        let own = !dir.copied || !self.rules.hold(Rule::CopiesDisown);
        own && s.head.release.is_none()
            && dir.stream.as_ref().is_some_and(|t| Some(t.session) == s.head.session && t.nonces.iter().any(|(n, _)| *n == s.head.nonce))
    }

    /// A look at the head by a directory that wants to write.
    fn look(&self, s: &State, d: usize) -> (&'static str, State) {
        if self.resumes(s, d) {
            let resumed = s.with(|n| {
                n.dirs[d].at = At::Live;
                n.dirs[d].version = n.head.nonce;
            });
            return ("finds its own opening and goes on with it", resumed);
        }
        if d == 1 && self.config.rival && s.head.session.is_some() && s.head.release.is_none() {
            let h = s.heartbeat;
            let (lived, attached) = (s.dirs[0].owns(&s.head), s.dirs[0].attached());
            return ("watches the owner", s.with(|n| n.dirs[d].at = At::Watching { node: h.beat, entry: h.entry, lived, attached }));
        }
        ("prepares to take the head", self.prepare_opening(s, d))
    }

    /// Journals an opening; says what it knows about the window before it.
    fn prepare_opening(&self, s: &State, d: usize) -> State {
        let head = s.head;
        s.with(|n| {
            let tail = n.dirs[d].stream.as_ref().is_some_and(|t| Some(t.session) == head.session && t.flushed > head.sequence);
            if tail && usize::from(head.mover) == d && head.release.is_none() {
                n.broken = Some("a node takes its own head for somebody else's, and leaves its flushed tail behind");
            }
            let none = match (head.session, head.release) {
                (None, _) => true,
                (Some(_), Some(tail)) => tail == 0,
                (Some(_), None) => !self.rules.hold(Rule::NoneOnlyIfClean) && n.heartbeat.accepted <= head.sequence,
            };
            let left =
                n.dirs.iter().filter_map(|o| o.stream.as_ref()).any(|t| Some(t.session) == head.session && t.flushed > head.sequence);
            if none && left {
                n.broken = Some("an opening reports no lost window, though the one before left accepted writes unpublished");
            }
            let dir = &mut n.dirs[d];
            dir.sessions += 1;
            dir.nonces += 1;
            dir.version = head.nonce;
            let nonces = BTreeSet::from([((d as u8, dir.nonces), false)]);
            dir.stream = Some(Stream { session: 10 * (d as u8 + 1) + dir.sessions, nonces, flushed: 0 });
            dir.copied = false;
            dir.at = self.after_journalling(true);
        })
    }

    fn after_journalling(&self, opening: bool) -> At {
        if self.rules.hold(Rule::NonceFlushedFirst) { At::Journalled { opening } } else { At::Ready { opening } }
    }

    fn send(s: &State, d: usize, opening: bool) -> State {
        s.with(|n| {
            let dir = &mut n.dirs[d];
            let Some(stream) = &dir.stream else { return };
            let won = n.head.nonce == dir.version;
            if won {
                let sequence = if opening { 0 } else { stream.flushed };
                n.head = Head { session: Some(stream.session), nonce: (d as u8, dir.nonces), sequence, release: None, mover: d as u8 };
                if usize::from(stream.session) / 10 != d + 1 {
                    n.broken = Some("a copied directory publishes under the original's session");
                }
            }
            dir.at = At::Sent { opening, won };
        })
    }

    fn answer(&self, s: &State, d: usize, won: bool) -> State {
        s.with(|n| {
            let dir = &mut n.dirs[d];
            dir.at = if won { At::Live } else { At::Fenced };
            dir.version = (d as u8, dir.nonces);
            flush(dir);
        })
    }

    fn live(&self, s: &State, d: usize, go: &mut impl FnMut(&'static str, State)) {
        let Some(stream) = &s.dirs[d].stream else { return };
        if s.head.nonce != s.dirs[d].version {
            go("finds that it is fenced", s.with(|n| n.dirs[d].at = At::Fenced));
        } else if stream.flushed > s.head.sequence {
            let attempt = |n: &mut State| {
                let dir = &mut n.dirs[d];
                dir.nonces += 1;
                let nonce = (d as u8, dir.nonces);
                dir.stream.as_mut().into_iter().for_each(|t| {
                    t.nonces.insert((nonce, false));
                });
                dir.at = self.after_journalling(false);
            };
            go("journals the nonce of a publish", s.with(attempt));
        }
        if self.config.unmounts && s.head.nonce == s.dirs[d].version {
            let left = if stream.flushed > s.head.sequence { stream.flushed } else { 0 };
            let release = |n: &mut State| {
                let dir = &mut n.dirs[d];
                dir.nonces += 1;
                n.head.nonce = (d as u8, dir.nonces);
                n.head.release = Some(if self.rules.hold(Rule::ReleaseNamesTail) { left } else { 0 });
                dir.at = At::Released;
            };
            go(if left == 0 { "releases the head" } else { "gives up publishing and releases the head" }, s.with(release));
        }
    }

    /// The end of a watch: the owner had time for a beat, if it lives.
    fn decide(&self, s: &State, d: usize, (node, entry, lived, attached): (u8, u8, bool, bool)) -> Option<(&'static str, State)> {
        if s.dirs[0].up() && s.heartbeat.beat == node {
            return None;
        }
        let moved = if self.rules.hold(Rule::BeatNamesHead) { s.heartbeat.entry != entry } else { s.heartbeat.beat != node };
        if moved {
            let refuse = |n: &mut State| {
                n.dirs[d].at = At::Refused;
                if !lived {
                    n.broken = Some("a newcomer is refused though nobody owns the head any more");
                }
            };
            return Some(("refuses: the owner lives", s.with(refuse)));
        }
        let taken = s.with(|n| {
            if attached && n.dirs[0].attached() {
                n.broken = Some("a living owner is taken over");
            }
        });
        Some(("thinks the owner dead and prepares to take the head", self.prepare_opening(&taken, d)))
    }
}

fn flush(dir: &mut Dir) {
    if let Some(stream) = &mut dir.stream {
        stream.nonces = stream.nonces.iter().map(|(n, _)| (*n, true)).collect();
    }
}

/// What a power cut leaves: an opening whose first nonce is not flushed was never there.
fn cut(dir: &mut Dir) {
    dir.at = At::Down;
    if let Some(stream) = &mut dir.stream {
        stream.nonces.retain(|(_, flushed)| *flushed);
    }
    dir.stream = dir.stream.take().filter(|t| !t.nonces.is_empty());
}

impl Machine for Opening {
    type State = State;

    fn start(&self) -> State {
        let dir = |at| Dir { at, stream: None, copied: false, version: (9, 0), nonces: 0, sessions: 0 };
        let other = if self.config.rival { At::Idle } else { At::Nowhere };
        State {
            head: Head { session: None, nonce: (9, 0), sequence: 0, release: None, mover: 9 },
            dirs: [dir(At::Idle), dir(other)],
            heartbeat: Heartbeat::default(),
            writes: self.config.writes,
            power_cuts: self.config.power_cuts,
            copies: self.config.copies,
            broken: None,
        }
    }

    fn steps(&self, s: &State, out: &mut Steps<State>) {
        for (d, who) in NAMES.into_iter().enumerate() {
            let mut go = |what, next| out.push((Step { who, what }, next));
            let dir = &s.dirs[d];
            match dir.at {
                At::Nowhere if s.copies > 0 && s.dirs[0].stream.is_some() => {
                    let copy = |n: &mut State| {
                        n.copies -= 1;
                        n.dirs[1] = Dir { copied: true, ..n.dirs[0].clone() };
                        cut(&mut n.dirs[1]);
                    };
                    go("comes to be, a copy of directory 0", s.with(copy));
                }
                At::Nowhere | At::Released | At::Fenced | At::Refused => {}
                At::Down => go("starts its daemon", s.with(|n| n.dirs[d].at = At::Idle)),
                At::Idle if dir.sessions == 0 || self.config.reopens => {
                    let (what, next) = self.look(s, d);
                    go(what, next);
                }
                At::Idle => {}
                At::Watching { node, entry, lived, attached } => {
                    if let Some((what, next)) = self.decide(s, d, (node, entry, lived, attached)) {
                        go(what, next);
                    }
                }
                At::Journalled { opening } => {
                    let flushed = |n: &mut State| {
                        flush(&mut n.dirs[d]);
                        n.dirs[d].at = At::Ready { opening };
                    };
                    go("flushes the nonce", s.with(flushed));
                }
                At::Ready { opening } => {
                    let what = if opening { "sends the swap that takes the head" } else { "sends the swap that publishes" };
                    go(what, Self::send(s, d, opening));
                }
                At::Sent { won, .. } => go("gets its answer", self.answer(s, d, won)),
                At::Live => self.live(s, d, &mut go),
            }
            if s.writes > 0 && dir.attached() {
                let write = |n: &mut State| {
                    n.writes -= 1;
                    n.dirs[d].stream.as_mut().into_iter().for_each(|t| t.flushed += 1);
                };
                go("accepts and flushes a record", s.with(write));
            }
            if s.power_cuts > 0 && d == 0 && !matches!(dir.at, At::Down | At::Nowhere) {
                let power = |n: &mut State| {
                    n.power_cuts -= 1;
                    cut(&mut n.dirs[d]);
                };
                go("loses its power", s.with(power));
            }
            if d == 0 && dir.up() && s.heartbeat.beat < self.config.beats {
                let beat = |n: &mut State| {
                    n.heartbeat.beat += 1;
                    if n.dirs[0].attached() {
                        n.heartbeat.entry = n.heartbeat.beat;
                        n.heartbeat.accepted = n.dirs[0].stream.as_ref().map_or(0, |t| t.flushed);
                    }
                };
                go("beats", s.with(beat));
            }
        }
    }

    fn check(&self, s: &State) -> Result<(), Violation> {
        s.broken.map_or(Ok(()), |what| Err(Violation(what.into())))
    }

    fn check_end(&self, s: &State) -> Result<(), Violation> {
        // A watcher may wait for a beat that the scenario no longer allows; nothing else may hang.
        match s.dirs.iter().position(|d| matches!(d.at, At::Journalled { .. } | At::Ready { .. } | At::Sent { .. })) {
            Some(d) => Err(Violation(format!("{} never ends", NAMES[d]))),
            None => Ok(()),
        }
    }
}
