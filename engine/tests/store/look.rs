use hiloop_engine::catalog::{DeletedKind, FORMAT, LineageEvent, LineageKind, LostWindow, ParentKind};
use hiloop_engine::delete::delete;
use hiloop_engine::look::{lineage, list_bases, list_snapshots, list_workspaces, resolve};
use hiloop_types::ErrorKind;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_name_resolves_where_it_is_unambiguous() {
    let bench = Bench::memory(500);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    snapshot(&ctx, "w", "snap").await;
    for (source, qualified) in [("base", "base:base"), ("w", "workspace:w"), ("snapshot:snap", "snapshot:snap")] {
        assert_eq!(resolve(&ctx, source).await.unwrap().qualified(), qualified);
    }
    fork_one(&ctx, "snapshot:snap", "snap").await;
    let e = resolve(&ctx, "snap").await.unwrap_err();
    assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("snapshot:snap and workspace:snap"), "{e}");
    assert_eq!(resolve(&ctx, "workspace:snap").await.unwrap().kind, ParentKind::Workspace);
    for (bad, kind) in
        [("nobody", ErrorKind::NotFound), ("tail:w", ErrorKind::Invalid), ("base:", ErrorKind::Invalid), ("A b", ErrorKind::Invalid)]
    {
        assert_eq!(resolve(&ctx, bad).await.unwrap_err().kind(), kind, "{bad}");
    }
    delete(&ctx, DeletedKind::Workspace, "w", false).await.unwrap();
    assert_eq!(resolve(&ctx, "w").await.unwrap_err().kind(), ErrorKind::NotFound);
    let names = |rows: Vec<String>| rows.join(" ");
    assert_eq!(names(list_bases(&ctx).await.unwrap().iter().map(|r| r.name.to_string()).collect()), "base");
    assert_eq!(names(list_workspaces(&ctx).await.unwrap().iter().map(|r| r.name.to_string()).collect()), "snap");
    assert_eq!(names(list_snapshots(&ctx).await.unwrap().iter().map(|r| r.name.to_string()).collect()), "snap");
}

#[tokio::test(flavor = "multi_thread")]
async fn lineage_outlives_deletion() {
    let bench = Bench::memory(501);
    let ctx = bench.ctx();
    small_base(&ctx, "base").await;
    fork_one(&ctx, "base:base", "w").await;
    let writer = Writer::open(&ctx, "w").await;
    let event = |event| LineageEvent {
        format: FORMAT,
        workspace: name("w"),
        epoch: writer.head.epoch,
        event,
        parent: writer.head.parent.clone(),
        at: ctx.catalog.now(),
    };
    let opened = LineageKind::Opened { lost_window: LostWindow::Known { accepted: 9, published: 4 }, node: name("node-1") };
    ctx.catalog.put(&event(opened)).await.unwrap();
    ctx.catalog.put(&event(LineageKind::Snapshot { name: name("snap"), sequence: writer.head.sequence })).await.unwrap();
    snapshot(&ctx, "w", "snap").await;
    writer.release().await;
    fork_one(&ctx, "snapshot:snap", "child").await;

    let shape = |steps: &[hiloop_engine::look::LineageStep]| -> Vec<(ParentKind, String, bool)> {
        steps.iter().map(|s| (s.kind, s.name.to_string(), s.deleted)).collect()
    };
    use ParentKind::{Base, Snapshot, Workspace};
    let whole = |gone: bool| {
        let step = |kind, name: &str| (kind, name.to_owned(), gone);
        vec![(Workspace, "child".to_owned(), false), step(Snapshot, "snap"), step(Workspace, "w"), step(Base, "base")]
    };
    let steps = lineage(&ctx, "child").await.unwrap();
    assert_eq!(shape(&steps), whole(false));
    assert_eq!((steps[2].lost_windows.len(), steps[2].events.len()), (1, 2));

    delete(&ctx, DeletedKind::Snapshot, "snap", false).await.unwrap();
    delete(&ctx, DeletedKind::Workspace, "w", false).await.unwrap();
    delete(&ctx, DeletedKind::Base, "base", false).await.unwrap();
    let steps = lineage(&ctx, "child").await.unwrap();
    assert_eq!(shape(&steps), whole(true));
    assert_eq!(steps[2].lost_windows.len(), 1);
    // Another workspace takes the name; the chain still tells of the first.
    small_base(&ctx, "base2").await;
    fork_one(&ctx, "base:base2", "w").await;
    assert_eq!(shape(&lineage(&ctx, "child").await.unwrap()), whole(true));
    assert_eq!(lineage(&ctx, "workspace:w").await.unwrap()[1].name, name("base2"));
    delete(&ctx, DeletedKind::Workspace, "child", false).await.unwrap();
    assert_eq!(lineage(&ctx, "child").await.unwrap().len(), 4, "a deleted workspace is found by its name");
}
