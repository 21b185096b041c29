use super::*;

fn world(seed: u64) -> (Executor, Env, Group) {
    let exec = Executor::new(seed, true);
    let group = exec.group();
    let env = exec.env(&group, seed, Arc::default());
    (exec, env, group)
}

/// Tasks, jobs that wait in the middle, and sleeps, in one order per seed.
fn busy(seed: u64) -> (u64, Vec<u64>) {
    let (exec, env, _group) = world(seed);
    let order = Arc::new(Mutex::new(Vec::new()));
    let (inner, out) = (env.clone(), order.clone());
    let main = async move {
        let mut all = Vec::new();
        for i in 0..8u64 {
            let (env, order) = (inner.clone(), out.clone());
            all.push(inner.blocking(move || {
                for round in 0..4 {
                    let pause = Duration::from_millis(env.random_u64() % 3);
                    env.block_on(env.sleep(pause));
                    order.lock().push(i * 10 + round);
                }
            }));
            let (env, order) = (inner.clone(), out.clone());
            all.push(inner.spawn(async move {
                env.sleep(Duration::from_millis(2)).await;
                order.lock().push(100 + i);
            }));
        }
        for t in all {
            t.await.unwrap();
        }
    };
    exec.run(main).unwrap();
    let order = order.lock().clone();
    (exec.digest(), order)
}

#[test]
fn a_seed_is_one_schedule() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let first = busy(seed);
        assert_eq!(first, busy(seed), "seed {seed}");
        assert_eq!(first.1.len(), 40);
        orders.insert(first.1);
    }
    assert_eq!(orders.len(), 20, "seeds differ");
}

#[test]
fn time_passes_only_where_all_wait() {
    let (exec, env, _group) = world(1);
    let (hour, inner) = (Duration::from_secs(3600), env.clone());
    let main = async move {
        inner.sleep(hour).await;
        assert_eq!(inner.timeout(hour, std::future::pending::<()>()).await, Err(hiloop_env::Elapsed));
        inner.monotonic()
    };
    assert_eq!(exec.run(main), Ok(2 * hour));
    assert!(exec.steps() < 20);
}

#[test]
fn a_killed_group_ends_where_it_stands() {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (exec, env, group) = world(2);
    let (task_ended, job_ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (flag, killer) = (Flag(task_ended.clone()), exec.clone());
    let task = env.spawn(async move {
        let _flag = flag;
        std::future::pending::<()>().await;
    });
    let (flag, inner) = (Flag(job_ended.clone()), env.clone());
    let job = env.blocking(move || {
        let _flag = flag;
        inner.block_on(std::future::pending::<()>());
    });
    let world = exec.group();
    let outside = exec.env(&world, 3, Arc::default());
    let main = async move {
        outside.sleep(Duration::from_secs(1)).await;
        killer.kill(&group);
        assert!(group.is_dead());
        (task.await, job.await)
    };
    assert_eq!(exec.run(main), Ok((Err(hiloop_env::Died), Err(hiloop_env::Died))));
    assert!(task_ended.load(Ordering::SeqCst) && job_ended.load(Ordering::SeqCst));
    let late = env.spawn(async {});
    assert_eq!(exec.run(late), Ok(Err(hiloop_env::Died)), "a dead group starts nothing");
}

#[test]
fn who_waits_for_nobody_is_told() {
    let (exec, ..) = world(3);
    assert_eq!(exec.run(std::future::pending::<()>()), Err(Stuck::Deadlock));
}
