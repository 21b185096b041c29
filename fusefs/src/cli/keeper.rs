//! `keeper`: what a keeper holds, also where no daemon lives.

use hiloop_keeper::Client;
use hiloop_keeper::protocol::Row;
use hiloop_types::{Error, ResultExt};
use serde_json::json;

use super::args::{Keeper, KeeperCall};
use super::failure::Done;
use super::output::Output;

pub(super) fn run(args: &Keeper, out: Output) -> Done {
    let at = args.keeper.display();
    let client =
        Client::connect(&args.keeper).at(at.to_string()).map_err(|e| e.hint("no keeper listens there: --keeper names its socket"))?;
    let (daemon, mounts) = client.list().at(at.to_string())?;
    match &args.call {
        KeeperCall::List => {
            let cells = |r: &Row| vec![r.connection.to_string(), r.mountpoint.clone(), r.descriptors.to_string()];
            out.rows(&mounts, &["connection", "mount point", "descriptors"], cells)?;
            out.note(&daemon.map_or("no daemon serves them".to_owned(), |pid| format!("daemon {pid} serves them")));
            Ok(())
        }
        KeeperCall::Abort { target } => {
            let meant = |r: &&Row| r.mountpoint == *target || target.parse() == Ok(r.connection);
            let row = mounts.iter().find(meant).ok_or_else(|| {
                Error::not_found("the keeper holds no such mount").at(target).hint("`keeper list` shows mount points and numbers")
            })?;
            client.abort(row.connection).at(at.to_string())?;
            let said = format!("{} is cut off: its users get errors; umount -l it, then mount the workspace again", row.mountpoint);
            Ok(out.result(&json!({ "connection": row.connection, "mountpoint": row.mountpoint }), |_| said)?)
        }
    }
}
