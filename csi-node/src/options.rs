//! The command line.

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use hiloop_types::{Error, Result};

/// CSI driver of a sandbox node: serves workspaces of the node's daemon to the kubelet
#[derive(Clone, Debug, Parser)]
#[command(name = "csi-node", version, max_term_width = 110)]
pub struct Options {
    /// Where the kubelet and the sidecars find it: unix:///PATH
    #[arg(long, value_name = "URL", env = "HILOOP_CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    pub endpoint: String,
    /// Control socket of the node's workspace daemon
    #[arg(long, value_name = "PATH", env = "HILOOP_CONTROL_SOCKET", default_value = hiloop_control::DEFAULT_SOCKET)]
    pub control_socket: PathBuf,
    /// State directory of the kubelet: all targets lie in it
    #[arg(long, value_name = "DIR", env = "HILOOP_KUBELET_ROOT", default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,
    /// Name of the node, as Kubernetes has it
    #[arg(long, value_name = "NAME", env = "HILOOP_NODE_ID", default_value = "", hide_default_value = true)]
    pub node_id: String,
    /// The only namespace whose claims are served
    #[arg(long, value_name = "NAME", env = "HILOOP_SANDBOX_NAMESPACE", default_value = "hiloop-sandboxes")]
    pub sandbox_namespace: String,
    /// Name of the driver
    #[arg(long, value_name = "NAME", env = "HILOOP_DRIVER_NAME", default_value = "workspace.sandbox.hiloop.ai")]
    pub driver_name: String,
    /// For suites that know no claims: the volume's name stands for the claim, and a base is not needed
    #[arg(long, env = "HILOOP_ALLOW_NAME_IDENTITY")]
    pub allow_name_identity: bool,
    /// Directory of the driver, outside of the kubelet's: which targets were made immutable
    #[arg(long, value_name = "DIR", env = "HILOOP_CSI_STATE_DIR", default_value = "/var/lib/hiloop/csi-node", global = true)]
    pub state_dir: PathBuf,
    /// What to log to standard error
    #[arg(long, value_name = "FILTER", env = "HILOOP_LOG", default_value = "info", global = true)]
    pub log: String,
    /// What to do instead of serving
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What the program does beside serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Make targets removable again that nothing is mounted on; needs no daemon. Before the driver is taken off a node
    CleanTargets,
}

impl Options {
    /// The path in the endpoint.
    ///
    /// # Errors
    /// `Invalid` for another scheme.
    pub fn socket(&self) -> Result<&Path> {
        match self.endpoint.strip_prefix("unix://").or_else(|| self.endpoint.strip_prefix("unix:")) {
            Some(path) => Ok(Path::new(path)),
            None => Err(Error::invalid(format!("the endpoint {:?} is not unix:///PATH", self.endpoint))),
        }
    }

    /// # Errors
    /// `Invalid`, naming the flag.
    pub fn check(&self) -> Result<()> {
        hiloop_control::check_path(self.socket()?)?;
        let bad = |what: &str| Err(Error::invalid(what.to_owned()));
        if self.node_id.is_empty() || self.node_id.len() > 256 {
            return bad("--node-id is not 1 to 256 bytes long");
        }
        if self.sandbox_namespace.is_empty() {
            return bad("--sandbox-namespace is empty: it is the only namespace that is served");
        }
        if !self.kubelet_root.is_absolute() {
            return bad("--kubelet-root is not an absolute path");
        }
        self.check_state_dir()?;
        let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        let edges = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let name = &self.driver_name;
        if name.len() > 63 || !name.chars().all(ok) || !edges(name.chars().next()) || !edges(name.chars().last()) {
            return bad("--driver-name is no domain name of at most 63 characters");
        }
        Ok(())
    }
}

impl Options {
    /// # Errors
    /// `Invalid`: relative, or where the kubelet may take it away.
    pub fn check_state_dir(&self) -> Result<()> {
        if !self.state_dir.is_absolute() || self.state_dir.starts_with(&self.kubelet_root) {
            return Err(Error::invalid("--state-dir is not an absolute path outside of --kubelet-root"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &str) -> Result<()> {
        let line = format!("csi-node --node-id n {more}");
        Options::try_parse_from(line.split_whitespace()).unwrap().check()
    }

    #[test]
    fn wrong_options_are_named() {
        assert!(parse("").is_ok());
        assert!(parse("--endpoint unix:/run/x.sock").is_ok());
        for (more, word) in [
            ("--endpoint tcp://x", "unix:///PATH"),
            ("--endpoint unix://relative", "absolute"),
            ("--kubelet-root here", "--kubelet-root"),
            ("--state-dir here", "--state-dir"),
            ("--state-dir /var/lib/kubelet/plugins/x", "--state-dir"),
            ("--driver-name=-x", "--driver-name"),
            ("--sandbox-namespace=", "--sandbox-namespace"),
        ] {
            let e = parse(more).expect_err(more);
            assert!(e.to_string().contains(word), "{more}: {e}");
        }
    }

    #[test]
    fn targets_are_cleaned_without_the_options_of_serving() {
        let o = Options::try_parse_from(["csi-node", "clean-targets", "--state-dir", "/s"]).unwrap();
        assert!(matches!(o.command, Some(Command::CleanTargets)) && o.state_dir == Path::new("/s"));
        assert!(Options::try_parse_from(["csi-node"]).unwrap().check().is_err(), "serving needs the node's name");
    }
}
