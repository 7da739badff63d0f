//! An executor in another process: hands requests over and answers as results come back.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Work, reshape};
use crate::{
    backend::{Done, Executed, Remote, Tensors},
    config::ModelConfig,
    error::{Error, Result},
    request::{Reply, Request, Response},
    statistics::{Statistics, Timing},
};

/// A worker process and what is needed to answer for it.
pub struct Outside {
    remote: Box<dyn Remote>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    reshapes: bool,
}

impl Outside {
    /// Wraps an attached worker.
    pub fn new(
        remote: Box<dyn Remote>,
        config: Arc<ModelConfig>,
        stats: Arc<Statistics>,
    ) -> Outside {
        let reshapes = reshape::is_needed(&config);
        Outside { remote, config, stats, reshapes }
    }

    /// Starts all groups; calls `idle` once the worker can take more.
    pub fn run(&mut self, work: Work, idle: impl FnOnce() + 'static) {
        let mut waiting = Vec::with_capacity(work.0.len());
        let mut groups = Vec::with_capacity(work.0.len());
        for group in work.0 {
            let mut replies = Vec::with_capacity(group.len());
            let mut requests = Vec::with_capacity(group.len());
            for mut pending in group {
                if self.reshapes
                    && let Err(error) = reshape::inputs(&self.config, &mut pending.request.inputs)
                {
                    pending.reply.answer(Err(error));
                    continue;
                }
                replies.push(pending.reply);
                requests.push(pending.request);
            }
            let rows = requests.iter().map(Request::rows).sum();
            waiting.push(Some(Group { replies, rows }));
            groups.push(requests);
        }
        let waiting = Waiting {
            groups: RefCell::new(waiting),
            config: self.config.clone(),
            stats: self.stats.clone(),
            begun: Instant::now(),
            reshapes: self.reshapes,
            idle: RefCell::new(Some(Box::new(idle))),
        };
        self.remote.start(groups, Rc::new(waiting));
    }
}

struct Group {
    replies: Vec<Reply>,
    rows: u32,
}

/// The replies of one `start`.
struct Waiting {
    groups: RefCell<Vec<Option<Group>>>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    begun: Instant,
    reshapes: bool,
    idle: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl Done for Waiting {
    fn executed(&self, executed: Executed) {
        let group = self.groups.borrow_mut().get_mut(executed.group).and_then(Option::take);
        let Some(Group { replies, rows }) = group else { return };
        match executed.results {
            Ok(results) => {
                self.stats.execution(rows, &executed.timing);
                let mut results = results.into_iter();
                for reply in replies {
                    let result = results.next().unwrap_or_else(|| Err(too_few(&self.config)));
                    self.answer(reply, result, executed.timing);
                }
            }
            Err(error) => replies.into_iter().for_each(|it| it.answer(Err(error.clone()))),
        }
    }
}

impl Waiting {
    fn answer(&self, reply: Reply, result: Result<Response>, timing: Timing) {
        let queue = self.begun.checked_duration_since(reply.since()).unwrap_or(Duration::ZERO);
        let result = result.and_then(|response| {
            let mut outputs: Tensors = response.outputs;
            if self.reshapes {
                reshape::outputs(&self.config, &mut outputs)?;
            }
            Ok(Response { outputs, timing: Timing { queue, ..timing }, ..response })
        });
        reply.answer(result);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(idle) = self.idle.borrow_mut().take() {
            idle();
        }
    }
}

fn too_few(config: &ModelConfig) -> Error {
    Error::internal(format!("the worker of model '{}' gave too few responses", config.name))
}
