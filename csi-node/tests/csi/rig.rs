//! Nodes over one store: each with a daemon, a driver, a kubelet's directory. Ends what it started.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hiloop_control::Client;
use hiloop_control::mountinfo;
use hiloop_csi::v1::controller_client::ControllerClient;
use hiloop_csi::v1::node_client::NodeClient;
use hiloop_csi::v1::volume_capability::{AccessMode, AccessType, access_mode::Mode};
use hiloop_csi::v1::*;
use nix::sys::signal::Signal;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub const NAMESPACE: &str = "boxes";
/// Looks at a condition before a test gives up, and the pause between two.
const LOOKS: u32 = 6000;
const PAUSE: Duration = Duration::from_millis(10);
/// A call that takes longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(150);

pub fn csi_node() -> PathBuf {
    env!("CARGO_BIN_EXE_csi-node").into()
}
/// Cargo builds it beside ours where the whole workspace is tested.
pub fn sandbox_workspace() -> PathBuf {
    let path = csi_node().with_file_name("sandbox-workspace");
    assert!(path.exists(), "{} is missing: cargo build --workspace --bins", path.display());
    path
}

pub struct Rig {
    dir: tempfile::TempDir,
}

impl Rig {
    /// A store with the base `b1`.
    pub fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests mount: run them as root");
        // Short: socket paths end at 107 bytes.
        let rig = Self { dir: tempfile::Builder::new().prefix("hc").tempdir_in("/var/tmp").unwrap() };
        fs::create_dir_all(rig.path("tree/etc")).unwrap();
        fs::write(rig.path("tree/etc/hosts"), "127.0.0.1 localhost\n").unwrap();
        fs::write(rig.path("tree/big"), vec![7; 300_000]).unwrap();
        fs::create_dir(rig.path("store")).unwrap();
        let published = Command::new(sandbox_workspace())
            .args(["publish-base", "--store", &rig.store(), "--build-id", "b1"])
            .arg(rig.path("tree"))
            .output()
            .unwrap();
        assert!(published.status.success(), "{}", String::from_utf8_lossy(&published.stderr));
        rig
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    pub fn store(&self) -> String {
        format!("file://{}", self.path("store").display())
    }
    /// Takes the store away: a link to itself stands in its place, so that every call fails, reading too.
    pub fn store_away(&self) {
        fs::rename(self.path("store"), self.path("store-away")).unwrap();
        std::os::unix::fs::symlink("store", self.path("store")).unwrap();
    }
    pub fn store_back(&self) {
        fs::remove_file(self.path("store")).unwrap();
        fs::rename(self.path("store-away"), self.path("store")).unwrap();
    }
    /// Takes away where the store has its packs: it can be read and its heads move, but no content can be put.
    pub fn packs_away(&self) {
        fs::rename(self.path("store/packs"), self.path("packs-away")).unwrap();
        fs::write(self.path("store/packs"), "away").unwrap();
    }
    pub fn packs_back(&self) {
        fs::remove_file(self.path("store/packs")).unwrap();
        fs::rename(self.path("packs-away"), self.path("store/packs")).unwrap();
    }
    /// A node with quick heartbeats, and one second for a newcomer to watch.
    pub async fn node(&self, name: &str) -> Node {
        self.node_watching(name, "1s").await
    }
    pub async fn node_watching(&self, name: &str, watch: &str) -> Node {
        let dir = self.path(name);
        fs::create_dir_all(dir.join("kubelet/pods")).unwrap();
        let config = format!(
            "store = \"{}\"\ncache-dir = \"{d}/cache\"\nkubelet-root = \"{d}/kubelet\"\ncontrol-socket = \"{d}/run/control.sock\"\n\
             node-name = \"{name}\"\nheartbeat-interval = \"100ms\"\nheartbeat-watch = \"{watch}\"\ngrace = \"10s\"\n",
            self.store(),
            d = dir.display(),
        );
        fs::write(dir.join("daemon.toml"), config).unwrap();
        let mut node = Node { name: name.into(), dir, daemon: None, driver: None };
        node.start_daemon().await;
        node.start_driver().await;
        node
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for m in mountinfo::mounts().unwrap_or_default() {
            if m.is_ours() && m.mountpoint.starts_with(self.dir.path()) {
                let _ = nix::mount::umount2(&m.mountpoint, nix::mount::MntFlags::MNT_DETACH);
            }
        }
        // Else what they made could not be removed.
        for node in fs::read_dir(self.dir.path()).into_iter().flatten().flatten().filter(|e| e.path().join("state").exists()) {
            let _ = clean_targets(&node.path());
        }
    }
}

/// `csi-node clean-targets` of the node in `dir`.
pub fn clean_targets(dir: &Path) -> std::process::Output {
    Command::new(csi_node()).args(["clean-targets", "--state-dir"]).arg(dir.join("state")).output().unwrap()
}

pub struct Node {
    pub name: String,
    pub dir: PathBuf,
    daemon: Option<Child>,
    driver: Option<Child>,
}

impl Node {
    fn spawn(&self, mut command: Command, log: &str) -> Child {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join(log)).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).env_remove("HILOOP_LOG").spawn().unwrap()
    }
    pub async fn start_daemon(&mut self) {
        let mut command = Command::new(sandbox_workspace());
        command.args(["daemon", "--foreground", "--config"]).arg(self.dir.join("daemon.toml"));
        self.daemon = Some(self.spawn(command, "daemon.log"));
        self.answers(|| async { self.control().info(Default::default(), Duration::from_secs(5)).await.is_ok() }).await;
    }
    pub async fn start_driver(&mut self) {
        let mut command = Command::new(csi_node());
        command.arg("--endpoint").arg(format!("unix://{}", self.dir.join("csi.sock").display()));
        command.arg("--control-socket").arg(self.control_socket()).arg("--kubelet-root").arg(self.dir.join("kubelet"));
        command.args(["--node-id", &self.name, "--sandbox-namespace", NAMESPACE]).arg("--state-dir").arg(self.dir.join("state"));
        self.driver = Some(self.spawn(command, "csi.log"));
        self.answers(|| async { self.node_client().node_get_info(NodeGetInfoRequest {}).await.is_ok() }).await;
    }
    async fn answers<F: Future<Output = bool>>(&self, ask: impl Fn() -> F) {
        for _ in 0..LOOKS {
            if ask().await {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("{} never answered:\n{}", self.name, self.logs());
    }
    pub fn control_socket(&self) -> PathBuf {
        self.dir.join("run/control.sock")
    }
    pub fn control(&self) -> Client {
        Client::new(&self.control_socket()).unwrap()
    }
    fn channel(&self) -> Channel {
        Endpoint::try_from(format!("unix:{}", self.dir.join("csi.sock").display())).unwrap().timeout(PATIENCE).connect_lazy()
    }
    pub fn node_client(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel())
    }
    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel())
    }
    pub fn target(&self, pod: &str) -> PathBuf {
        self.dir.join("kubelet/pods").join(pod).join("mount")
    }
    fn logs(&self) -> String {
        let log = |n: &str| fs::read_to_string(self.dir.join(n)).unwrap_or_default();
        format!("--- {} daemon\n{}--- {} driver\n{}", self.name, log("daemon.log"), self.name, log("csi.log"))
    }

    pub fn daemon_pid(&self) -> i32 {
        self.daemon.as_ref().unwrap().id() as i32
    }
    pub fn driver_pid(&self) -> i32 {
        self.driver.as_ref().unwrap().id() as i32
    }
    pub fn signal_daemon(&self, signal: Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.daemon_pid()), signal).unwrap();
    }
    /// Ends the daemon by `signal` and waits for its end.
    pub fn end_daemon(&mut self, signal: Signal) {
        self.signal_daemon(signal);
        self.daemon.take().unwrap().wait().unwrap();
    }
    /// Ends the driver, as an upgrade does.
    pub fn end_driver(&mut self, signal: Signal) {
        let mut driver = self.driver.take().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(driver.id() as i32), signal).unwrap();
        driver.wait().unwrap();
    }
    pub async fn restart_driver(&mut self) {
        self.end_driver(Signal::SIGKILL);
        self.start_driver().await;
    }

    pub async fn create(&self, claim: &str) -> Result<Volume, Status> {
        self.create_with(create_request(claim)).await
    }
    pub async fn create_with(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        Ok(self.controller().create_volume(request).await?.into_inner().volume.unwrap())
    }
    pub async fn delete(&self, volume: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: volume.into(), ..Default::default() };
        self.controller().delete_volume(request).await.map(drop)
    }
    pub async fn publish(&self, volume: &str, pod: &str) -> Result<(), Status> {
        let target = self.target(pod);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        self.node_client().node_publish_volume(publish_request(volume, &target)).await.map(drop)
    }
    pub async fn unpublish(&self, volume: &str, pod: &str) -> Result<(), Status> {
        let target_path = self.target(pod).display().to_string();
        self.node_client().node_unpublish_volume(NodeUnpublishVolumeRequest { volume_id: volume.into(), target_path }).await.map(drop)
    }
    pub async fn stats(&self, volume: &str, pod: &str) -> Result<Vec<VolumeUsage>, Status> {
        let volume_path = self.target(pod).display().to_string();
        let request = NodeGetVolumeStatsRequest { volume_id: volume.into(), volume_path, ..Default::default() };
        Ok(self.node_client().node_get_volume_stats(request).await?.into_inner().usage)
    }
    /// Neither a mount nor a directory of a pod is left.
    #[track_caller]
    pub fn nothing_left(&self, pod: &str) {
        let target = self.target(pod);
        assert_eq!(mountinfo::find(&target).unwrap(), None, "{}", self.logs());
        assert!(!target.exists(), "{} is left", target.display());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        for child in [&mut self.driver, &mut self.daemon].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn create_request(claim: &str) -> CreateVolumeRequest {
    let parameters = [
        ("csi.storage.k8s.io/pvc/namespace", NAMESPACE),
        ("csi.storage.k8s.io/pvc/name", claim),
        ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ("baseBuild", "b1"),
    ];
    CreateVolumeRequest {
        name: format!("pvc-{claim}"),
        capacity_range: Some(CapacityRange { required_bytes: 64 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        parameters: parameters.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        ..Default::default()
    }
}
pub fn capability() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(Default::default())),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeSingleWriter.into() }),
    }
}
pub fn publish_request(volume: &str, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume.into(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability()),
        volume_context: HashMap::from([("csi.storage.k8s.io/pod.namespace".to_owned(), NAMESPACE.to_owned())]),
        ..Default::default()
    }
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, word: &str) {
    let e = result.unwrap_err();
    assert!(e.code() == code && e.message().contains(word), "wanted {code:?} and {word:?}, got {e:?}");
    assert!(e.details().is_empty(), "CSI wants no details");
}

/// Until it holds; what the test waits for happens by itself.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..LOOKS {
        if holds().await {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("never came true: {what}");
}
