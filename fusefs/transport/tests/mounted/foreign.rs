//! Another transport drives the same file system: fuser's trait fills in requests and takes the answers.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, SessionACL, TimeOrNow, WriteFlags,
};
use hiloop_transport::abi::Opcode;
use hiloop_transport::null::{NullFs, init_config, mount};
use hiloop_transport::{Answer, Attr, Entry, FileSystem, Groups, Operation, Reply, Request, SetAttr, SetTime, Sink, Time};

use crate::rig::null;

/// fuser's replies under one roof.
enum Way {
    Empty(fuser::ReplyEmpty),
    Entry(fuser::ReplyEntry),
    Attr(fuser::ReplyAttr),
    Open(fuser::ReplyOpen),
    Create(fuser::ReplyCreate),
    Data(fuser::ReplyData),
    Write(fuser::ReplyWrite),
    StatFs(fuser::ReplyStatfs),
    Xattr(fuser::ReplyXattr),
    LSeek(fuser::ReplyLseek),
    Directory(fuser::ReplyDirectory),
    DirectoryPlus(fuser::ReplyDirectoryPlus),
}

fn system_time(t: Time) -> SystemTime {
    let whole = Duration::from_secs(t.secs.unsigned_abs());
    let at = if t.secs >= 0 { SystemTime::UNIX_EPOCH + whole } else { SystemTime::UNIX_EPOCH - whole };
    at + Duration::from_nanos(t.nanos.into())
}

/// fuser reads times before 1970 as `epoch - (|seconds| + nanoseconds)`.
fn time(t: SystemTime) -> Time {
    match t.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(d) => Time { secs: d.as_secs() as i64, nanos: d.subsec_nanos() },
        Err(e) => Time { secs: -(e.duration().as_secs() as i64), nanos: e.duration().subsec_nanos() },
    }
}

fn file_type(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn file_attr(nodeid: u64, a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(nodeid),
        size: a.size,
        blocks: a.blocks,
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: system_time(a.btime),
        kind: file_type(a.mode),
        perm: (a.mode & 0o7777) as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.blksize,
        flags: 0,
    }
}

impl Way {
    fn error(self, errno: i32) {
        let e = Errno::from_i32(errno);
        match self {
            Way::Empty(r) => r.error(e),
            Way::Entry(r) => r.error(e),
            Way::Attr(r) => r.error(e),
            Way::Open(r) => r.error(e),
            Way::Create(r) => r.error(e),
            Way::Data(r) => r.error(e),
            Way::Write(r) => r.error(e),
            Way::StatFs(r) => r.error(e),
            Way::Xattr(r) => r.error(e),
            Way::LSeek(r) => r.error(e),
            Way::Directory(r) => r.error(e),
            Way::DirectoryPlus(r) => r.error(e),
        }
    }
}

impl Sink for Way {
    fn send(self: Box<Self>, answer: &Answer<'_>) -> bool {
        match (*self, *answer) {
            (way, Answer::Error(errno)) => way.error(errno),
            (Way::Empty(r), Answer::Empty) => r.ok(),
            (Way::Entry(r), Answer::Entry(e)) => {
                r.entry_with_ttls(&e.attr_valid, &e.entry_valid, &file_attr(e.nodeid, &e.attr), Generation(e.generation));
            }
            (Way::Attr(r), Answer::Attr { valid, attr }) => r.attr(&valid, &file_attr(attr.ino, attr)),
            (Way::Open(r), Answer::Opened(o)) => r.opened(FileHandle(o.fh), FopenFlags::from_bits_retain(o.flags)),
            (Way::Create(r), Answer::Created(e, o)) => {
                let attr = file_attr(e.nodeid, &e.attr);
                r.created(&e.attr_valid, &attr, Generation(e.generation), FileHandle(o.fh), FopenFlags::from_bits_retain(o.flags));
            }
            (Way::Data(r), Answer::Data(data)) => r.data(data),
            (Way::Write(r), Answer::Written(n)) => r.written(n),
            (Way::Write(r), Answer::Copied(n)) => r.written(u32::try_from(n).unwrap()),
            (Way::StatFs(r), Answer::StatFs(s)) => r.statfs(s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize),
            (Way::Xattr(r), Answer::XattrSize(n)) => r.size(n),
            (Way::Xattr(r), Answer::Data(data)) => r.data(data),
            (Way::LSeek(r), Answer::LSeek(at)) => r.offset(at as i64),
            (Way::Directory(mut r), Answer::Listing(l)) => {
                let full = l.iter().any(|d| r.add(INodeNo(d.ino), d.cookie, file_type(d.kind << 12), OsStr::from_bytes(d.name)));
                assert!(!full, "a listing of this size always fits");
                r.ok();
            }
            (Way::DirectoryPlus(mut r), Answer::ListingPlus(l)) => {
                for (d, node) in l.iter() {
                    // fuser has no entry without a node; the kernel ignores that of these two.
                    let e = node.unwrap_or(Entry {
                        nodeid: d.ino,
                        attr: Attr { ino: d.ino, mode: d.kind << 12, ..Attr::default() },
                        ..Entry::default()
                    });
                    let attr = file_attr(e.nodeid, &e.attr);
                    let name = OsStr::from_bytes(d.name);
                    assert!(!r.add(INodeNo(e.nodeid), d.cookie, name, &e.entry_valid, &attr, Generation(e.generation)));
                }
                r.ok();
            }
            (way, _) => way.error(libc::EIO),
        }
        true
    }
}

/// fuser's trait over any file system of ours.
struct Bridge(Arc<NullFs>);

/// fuser does not tell how much a listing may hold; the kernel gives it a page at least.
const LISTING: u32 = 4096;

impl Bridge {
    fn run(&self, req: &fuser::Request, opcode: Opcode, node: INodeNo, op: Operation<'_>, way: Way) {
        let (uid, gid, pid) = (req.uid(), req.gid(), req.pid());
        let request = Request { unique: 0, opcode, nodeid: node.0, uid, gid, pid, groups: Groups::default(), op };
        self.0.handle(request, Reply::foreign(opcode, node.0, Box::new(way)));
    }
}

impl Filesystem for Bridge {
    fn init(&mut self, _req: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let want = InitFlags::from_bits_retain(init_config().want);
        want.iter().try_for_each(|flag| config.add_capabilities(flag)).map_err(|f| io::Error::other(format!("{f:?}")))?;
        config.set_max_write(init_config().max_write).map(drop).map_err(|n| io::Error::other(n.to_string()))
    }
    fn lookup(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        self.run(req, Opcode::LOOKUP, parent, Operation::Lookup { name: name.as_bytes() }, Way::Entry(reply));
    }
    fn forget(&self, _req: &fuser::Request, ino: INodeNo, nlookup: u64) {
        self.0.forget(ino.0, nlookup);
    }
    fn getattr(&self, req: &fuser::Request, ino: INodeNo, fh: Option<FileHandle>, reply: fuser::ReplyAttr) {
        self.run(req, Opcode::GETATTR, ino, Operation::GetAttr { fh: fh.map(|f| f.0) }, Way::Attr(reply));
    }
    fn setattr(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: fuser::ReplyAttr,
    ) {
        let set_time = |t| match t {
            TimeOrNow::Now => SetTime::Now,
            TimeOrNow::SpecificTime(t) => SetTime::At(time(t)),
        };
        let (atime, mtime, fh) = (atime.map(set_time), mtime.map(set_time), fh.map(|f| f.0));
        let set = SetAttr { mode, uid, gid, size, atime, mtime, ctime: ctime.map(time), fh, ..SetAttr::default() };
        self.run(req, Opcode::SETATTR, ino, Operation::SetAttr(set), Way::Attr(reply));
    }
    fn readlink(&self, req: &fuser::Request, ino: INodeNo, reply: fuser::ReplyData) {
        self.run(req, Opcode::READLINK, ino, Operation::ReadLink, Way::Data(reply));
    }
    fn mkdir(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: fuser::ReplyEntry) {
        self.run(req, Opcode::MKDIR, parent, Operation::MkDir { name: name.as_bytes(), mode, umask }, Way::Entry(reply));
    }
    fn symlink(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, target: &Path, reply: fuser::ReplyEntry) {
        let op = Operation::SymLink { name: name.as_bytes(), target: target.as_os_str().as_bytes() };
        self.run(req, Opcode::SYMLINK, parent, op, Way::Entry(reply));
    }
    fn unlink(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.run(req, Opcode::UNLINK, parent, Operation::Unlink { name: name.as_bytes() }, Way::Empty(reply));
    }
    fn rmdir(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.run(req, Opcode::RMDIR, parent, Operation::RmDir { name: name.as_bytes() }, Way::Empty(reply));
    }
    fn rename(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let op = Operation::Rename { name: name.as_bytes(), new_dir: newparent.0, new_name: newname.as_bytes(), flags: flags.bits() };
        self.run(req, Opcode::RENAME2, parent, op, Way::Empty(reply));
    }
    fn open(&self, req: &fuser::Request, ino: INodeNo, flags: OpenFlags, reply: fuser::ReplyOpen) {
        self.run(req, Opcode::OPEN, ino, Operation::Open { flags: flags.0, open_flags: 0 }, Way::Open(reply));
    }
    fn create(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: fuser::ReplyCreate) {
        let op = Operation::Create { name: name.as_bytes(), flags, mode, umask, open_flags: 0 };
        self.run(req, Opcode::CREATE, parent, op, Way::Create(reply));
    }
    fn read(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: fuser::ReplyData,
    ) {
        let op = Operation::Read { fh: fh.0, offset, size, flags: flags.0, lock_owner: lock_owner.map(|o| o.0) };
        self.run(req, Opcode::READ, ino, op, Way::Data(reply));
    }
    fn write(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let (write_flags, lock_owner) = (write_flags.bits(), lock_owner.map(|o| o.0));
        let op = Operation::Write { fh: fh.0, offset, data, write_flags, flags: flags.0, lock_owner };
        self.run(req, Opcode::WRITE, ino, op, Way::Write(reply));
    }
    fn opendir(&self, req: &fuser::Request, ino: INodeNo, flags: OpenFlags, reply: fuser::ReplyOpen) {
        self.run(req, Opcode::OPENDIR, ino, Operation::OpenDir { flags: flags.0, open_flags: 0 }, Way::Open(reply));
    }
    fn readdir(&self, req: &fuser::Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: fuser::ReplyDirectory) {
        self.run(req, Opcode::READDIR, ino, Operation::ReadDir { fh: fh.0, offset, size: LISTING, flags: 0 }, Way::Directory(reply));
    }
    fn readdirplus(&self, req: &fuser::Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: fuser::ReplyDirectoryPlus) {
        let op = Operation::ReadDirPlus { fh: fh.0, offset, size: LISTING, flags: 0 };
        self.run(req, Opcode::READDIRPLUS, ino, op, Way::DirectoryPlus(reply));
    }
    fn statfs(&self, req: &fuser::Request, ino: INodeNo, reply: fuser::ReplyStatfs) {
        self.run(req, Opcode::STATFS, ino, Operation::StatFs, Way::StatFs(reply));
    }
    fn getxattr(&self, req: &fuser::Request, ino: INodeNo, name: &OsStr, size: u32, reply: fuser::ReplyXattr) {
        self.run(req, Opcode::GETXATTR, ino, Operation::GetXattr { name: name.as_bytes(), size }, Way::Xattr(reply));
    }
    fn lseek(&self, req: &fuser::Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: fuser::ReplyLseek) {
        self.run(req, Opcode::LSEEK, ino, Operation::LSeek { fh: fh.0, offset, whence }, Way::LSeek(reply));
    }
    fn copy_file_range(
        &self,
        req: &fuser::Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: fuser::ReplyWrite,
    ) {
        let (fh_in, fh_out, node_out) = (fh_in.0, fh_out.0, ino_out.0);
        let op = Operation::CopyFileRange { fh_in, offset_in, node_out, fh_out, offset_out, len, flags: flags.bits() };
        self.run(req, Opcode::COPY_FILE_RANGE, ino_in, op, Way::Write(reply));
    }
}

#[test]
fn fuser_drives_the_same_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let (device, mounted) = mount(dir.path()).unwrap();
    let session = fuser::Session::from_fd(Bridge(Arc::new(null())), device, SessionACL::All, fuser::Config::default()).unwrap();
    let served = std::thread::spawn(move || session.run());
    let at = |name: &str| mounted.path().join(name);
    fs::create_dir(at("d")).unwrap();
    let data: Vec<u8> = (0..3u32 << 20).map(|n| n as u8).collect();
    fs::write(at("a"), &data).unwrap();
    fs::rename(at("a"), at("d/b")).unwrap();
    symlink("d/b", at("link")).unwrap();
    assert!(fs::read(at("link")).unwrap() == data);
    assert_eq!(fs::copy(at("link"), at("copy")).unwrap(), data.len() as u64);
    (0..500).for_each(|n| drop(fs::File::create(at(&format!("d/{n:0100}"))).unwrap()));
    assert_eq!(fs::read_dir(at("d")).unwrap().filter(|e| e.as_ref().unwrap().metadata().unwrap().is_file()).count(), 501);
    let old = SystemTime::UNIX_EPOCH - Duration::from_millis(1200);
    fs::File::open(at("copy")).unwrap().set_times(fs::FileTimes::new().set_modified(old)).unwrap();
    assert_eq!(fs::metadata(at("copy")).unwrap().modified().unwrap(), old);
    assert_eq!(fs::metadata(at("d")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(fs::remove_dir(at("d")).unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
    fs::remove_dir_all(at("d")).unwrap();
    assert_eq!(nix::sys::statvfs::statvfs(mounted.path()).unwrap().name_max(), 255);
    mounted.unmount().unwrap();
    served.join().unwrap().unwrap();
}
