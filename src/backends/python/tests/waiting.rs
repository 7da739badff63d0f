//! Core sharing: where a worker waits for requests that come one after the other, and what its model
//! sees of it.

use std::time::Duration;

use troupe_options::Spin;

use super::*;

/// Answers with its process, and the cores it may run on; chooses one of them first if it is asked to.
const CORES: &str = "
    import os
    import numpy as np
    class TritonPythonModel:
        def execute(self, requests):
            chosen = int(requests[0].inputs()[0].as_numpy()[0])
            if 0 <= chosen:
                os.sched_setaffinity(0, {chosen})
            seen = np.array([os.getpid(), len(os.sched_getaffinity(0))], 'f4')
            return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT0', seen)])]
    ";

/// More requests than it takes until this thread spins between them.
const MANY: usize = 5000;

fn spinning(spin: Spin) -> Model {
    let mut model = model(CORES, &[(FP32, &[1])], &[(FP32, &[2])]);
    model.settings.spin = spin;
    model
}

/// The cores that a thread may run on, as the kernel lists them.
fn cores_of(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("Cpus_allowed_list:")).unwrap();
    line.trim().to_owned()
}

fn is_one(cores: &str) -> bool {
    cores.parse::<u32>().is_ok()
}

/// The worker's process, and how many cores its model sees.
async fn look(remote: &mut dyn Remote, chosen: f32) -> (u32, usize) {
    let seen = floats(&output(remote, request(vec![fp32(&[1], &[chosen])])).await);
    (seen[0] as u32, seen[1] as usize)
}

#[actix_rt::test]
async fn a_worker_waits_on_one_core_and_its_model_runs_on_all() {
    let ours = cores_of(std::process::id());
    let model = spinning(Spin::For(Duration::from_millis(100)));
    let mut remote = model.open_in(&Runtime::default(), &Arc::default()).unwrap();
    let (_, all) = look(&mut *remote, -1.0).await;
    let mut was_seen = false;
    for _ in 0..MANY {
        let (pid, cores) = look(&mut *remote, -1.0).await;
        assert_eq!(cores, all, "cores in `execute`");
        was_seen = is_one(&cores_of(pid));
        if was_seen {
            break;
        }
    }
    assert!(was_seen || is_one(&ours), "it never waited on one core");
}

#[actix_rt::test]
async fn what_a_model_says_about_its_cores_stays() {
    let ours = cores_of(std::process::id());
    let one: f32 = ours.split([',', '-']).next().unwrap().parse().unwrap();
    let model = spinning(Spin::For(Duration::from_millis(100)));
    let mut remote = model.open_in(&Runtime::default(), &Arc::default()).unwrap();
    for _ in 0..100 {
        look(&mut *remote, -1.0).await;
    }
    assert_eq!(look(&mut *remote, one).await.1, 1);
    for _ in 0..100 {
        assert_eq!(look(&mut *remote, -1.0).await.1, 1, "it chose one core");
    }
}

#[actix_rt::test]
async fn a_worker_of_a_server_that_does_not_spin_waits_anywhere() {
    let ours = cores_of(std::process::id());
    let model = spinning(Spin::Off);
    let mut remote = model.open_in(&Runtime::default(), &Arc::default()).unwrap();
    for _ in 0..100 {
        let (pid, _) = look(&mut *remote, -1.0).await;
        assert_eq!(cores_of(pid), ours);
    }
}
