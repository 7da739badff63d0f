//! A model in this process: joins requests into a batch, executes it and splits the outputs.

use std::{
    mem, slice,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    join,
    light::{LightShapes, ShapeKey},
    panics::caught,
    work::InstanceWork,
};
use troupe_base::{
    backend::{Batch, Executor, Tensors},
    config::ModelConfig,
    error::{Error, ErrorKind, Result},
    failure_log::FailureLog,
    request::{Pending, Reply, Request, Response, Wanted},
    statistics::{ExecutedRows, Statistics, Timing, lap_time},
    trace::{BatchExecution, FinishedBatch, Span},
};

/// An open model: an executor, and what is needed to answer for it.
pub(super) struct LocalModel {
    executor: Box<dyn Executor>,
    name: Arc<str>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    failures: Arc<FailureLog>,
    /// Even a single request is joined: the executor sees other tensors than it has.
    has_batch_io: bool,
    /// Where executions may run wherever they are short.
    light: Option<LightShapes>,
}

/// What a request is to be answered with.
pub(super) struct DueAnswer {
    reply: Reply,
    result: Result<Response>,
    now: Instant,
}

impl DueAnswer {
    pub(super) fn give(self) {
        self.reply.answer_at(self.result, self.now);
    }
}

impl LocalModel {
    /// An open model of the instance called `name`.
    pub(super) fn new(
        executor: Box<dyn Executor>,
        name: Arc<str>,
        config: Arc<ModelConfig>,
        stats: Arc<Statistics>,
        failures: Arc<FailureLog>,
    ) -> LocalModel {
        let has_batch_io = config.has_batch_io();
        LocalModel { executor, name, config, stats, failures, has_batch_io, light: None }
    }

    /// From now on remembers of which shapes its executions are light.
    pub(super) fn watch_shapes(&mut self) {
        self.light = Some(LightShapes::unknown());
    }

    /// Are all executions of this work light, as far as is known?
    pub(super) fn finds_light(&self, work: &InstanceWork) -> bool {
        let Some(light) = &self.light else { return false };
        work.0.iter().all(|group| {
            let shape = light.key(group.iter().map(|pending| &pending.request));
            shape.is_some_and(|it| light.covers(it))
        })
    }

    /// Is this one by itself?
    pub(super) fn finds_request_light(&self, request: &Request) -> bool {
        let Some(light) = &self.light else { return false };
        light.key([request]).is_some_and(|it| light.covers(it))
    }

    /// Runs all groups, the first at `now`, and answers everyone, whatever happens.
    pub(super) fn run(&mut self, work: InstanceWork, now: Instant) {
        let mut clock = now;
        let mut groups = work.0.into_iter();
        while let Some(mut group) = groups.next() {
            match group.pop() {
                Some(alone) if group.is_empty() => self.execute_alone(alone, &mut clock),
                Some(last) => {
                    group.push(last);
                    self.execute(group, &mut clock);
                }
                None => (),
            }
            if groups.len() != 0 {
                // Whoever was answered may have run steps behind this model: they are not of the next
                // group.
                clock = Instant::now();
            }
        }
    }

    /// Does it run single requests as they are?
    pub(super) fn runs_alone(&self) -> bool {
        !self.has_batch_io
    }

    /// Takes and runs one request, if it `runs_alone`. Whoever calls gives the answer, which may
    /// lead back to this model, once it does not hold the model any more.
    pub(super) fn run_alone(&mut self, asked: &mut Option<Pending>) -> Option<DueAnswer> {
        let pending = asked.take()?;
        Some(self.compute_alone(pending, &mut Instant::now()))
    }

    fn execute_alone(&mut self, pending: Pending, clock: &mut Instant) {
        match self.has_batch_io {
            true => self.execute(vec![pending], clock),
            false => self.compute_alone(pending, clock).give(),
        }
    }

    /// One request: nothing to join, nothing to split. The clock is read once.
    fn compute_alone(&mut self, pending: Pending, clock: &mut Instant) -> DueAnswer {
        let Pending { mut request, reply } = pending;
        let queue = clock.saturating_duration_since(reply.since());
        let (rows, counted) = (request.rows(), request.executed_rows());
        let begun = *clock;
        let shape = self.shape(slice::from_ref(&request));
        let inputs = mem::take(&mut request.inputs);
        let result = self.call(inputs, rows, slice::from_ref(&request)).and_then(|outputs| {
            join::check_count(&self.config, &outputs)?;
            Ok(join::pick(&request.wanted, outputs))
        });
        let timing = Timing { queue, compute_infer: lap_time(clock), ..Timing::default() };
        self.took(shape, timing.compute_infer);
        if let Some(span) = &request.context.span {
            let (instance, requests) = (&self.name, 1);
            let ended = FinishedBatch { instance, requests, rows, begun, timing };
            BatchExecution::note(slice::from_ref(span), ended);
        }
        if let Err(error) = &result {
            self.log(error, slice::from_ref(&request));
        }
        let mut result = result.map(|outputs| {
            // Counted before the answer: a client that asks right after finds itself in there.
            self.stats.execution(counted, &timing, *clock);
            Response { outputs, timing, ..Response::default() }
        });
        match (&request.wanted, &mut result) {
            (Wanted::All, result) => Response::name_instance(result, &self.name),
            // It is no surprise that there are fewer.
            (Wanted::Only(_), Err(error)) => *error = error.clone().at_instance(&self.name),
            (Wanted::Only(_), Ok(_)) => (),
        }
        DueAnswer { reply, result, now: *clock }
    }

    fn execute(&mut self, group: Vec<Pending>, clock: &mut Instant) {
        let begun = *clock;
        let (requests, replies): (Vec<Request>, Vec<Reply>) =
            group.into_iter().map(|it| (it.request, it.reply)).unzip();
        let rows: u32 = requests.iter().map(Request::rows).sum();
        let counted: ExecutedRows = requests.iter().map(Request::executed_rows).sum();
        let spans: Vec<Span> = requests.iter().filter_map(|it| it.context.span.clone()).collect();
        let shape = self.shape(&requests);
        let mut timing = Timing::default();
        let result = join::join(&self.config, &requests).and_then(|inputs| {
            timing.compute_input = lap_time(clock);
            let outputs = self.call(inputs, rows, &requests);
            timing.compute_infer = lap_time(clock);
            join::split(&self.config, &requests, outputs?)
        });
        timing.compute_output = lap_time(clock);
        let now = *clock;
        self.took(shape, now.saturating_duration_since(begun));
        if !spans.is_empty() {
            let (instance, requests) = (&self.name, replies.len());
            BatchExecution::note(&spans, FinishedBatch { instance, requests, rows, begun, timing });
        }
        match result {
            Ok(outputs) => {
                self.stats.execution(counted, &timing, now);
                for (reply, outputs) in replies.into_iter().zip(outputs) {
                    let queue = begun.saturating_duration_since(reply.since());
                    let timing = Timing { queue, ..timing };
                    let response = Response { outputs, timing, ..Response::default() };
                    reply.answer_at(Ok(response), now);
                }
            }
            Err(error) => {
                self.log(&error, &requests);
                let error = error.at_instance(&self.name);
                replies.into_iter().for_each(|it| it.answer_at(Err(error.clone()), now));
            }
        }
    }

    /// What an execution of these will be remembered by.
    fn shape(&self, requests: &[Request]) -> Option<ShapeKey> {
        self.light.as_ref()?.key(requests)
    }

    fn took(&mut self, shape: Option<ShapeKey>, execution: Duration) {
        if let (Some(light), Some(shape)) = (&mut self.light, shape) {
            light.add(shape, execution);
        }
    }

    /// The model's failures; what is wrong with a request is told to its client alone.
    fn log(&self, error: &Error, requests: &[Request]) {
        if matches!(error.kind(), ErrorKind::Internal | ErrorKind::Unknown) {
            let ids = requests.iter().map(|request| &*request.context.id);
            self.failures.log(&self.name, ids, &error.to_string());
        }
    }

    fn call(&mut self, inputs: Tensors, rows: u32, requests: &[Request]) -> Result<Tensors> {
        let rows = if self.config.max_batch_size == 0 { 0 } else { rows };
        let batch = Batch::new(inputs, rows, requests);
        // A model that panics fails its own batch, not the server.
        caught(|| self.executor.execute(batch)).unwrap_or_else(|text| {
            Err(Error::internal(format!("'{}' panicked: {text}", self.config.name)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use troupe_base::{
        config::{ServerFeatures, read_text},
        request::Answer,
        tensor::{DataType, Tensor},
    };

    struct Quick;

    impl Executor for Quick {
        fn execute(&mut self, _: Batch<'_>) -> Result<Tensors> {
            Ok(vec![Some(byte())])
        }
    }

    fn byte() -> Tensor {
        Tensor::new(DataType::Uint8, [1].into_iter().collect(), vec![1].into()).unwrap()
    }

    struct Answered {
        /// When the execution had ended.
        ended: Instant,
        timing: Timing,
        /// When the answer was given.
        given: Instant,
    }

    struct Told(mpsc::Sender<Answered>);

    impl Answer for Told {
        fn answer(self: Box<Self>, result: Result<Response>, ended: Instant) {
            let timing = result.unwrap().timing;
            // Here is where steps behind would run.
            self.0.send(Answered { ended, timing, given: Instant::now() }).unwrap();
        }
    }

    #[test]
    fn what_runs_behind_an_answer_is_no_time_of_the_next_execution() {
        let text = "name: 'm' backend: 'native' \
                    input { name: 'x' data_type: TYPE_UINT8 dims: 1 } \
                    output { name: 'y' data_type: TYPE_UINT8 dims: 1 }";
        let config = read_text(text, "f").unwrap().finish(&ServerFeatures::default()).unwrap();
        let failures = FailureLog::new(&config.name, 1).into();
        let (name, config, stats) = ("m_0".into(), config.into(), Arc::default());
        let mut model = LocalModel::new(Box::new(Quick), name, config, stats, failures);
        let (sender, answers) = mpsc::channel();
        let pending = || {
            let request = Request { inputs: vec![Some(byte())], ..Request::default() };
            Pending { request, reply: Reply::new(Told(sender.clone())) }
        };
        model.run(InstanceWork(vec![vec![pending()], vec![pending()]]), Instant::now());
        let (first, second) = (answers.recv().unwrap(), answers.recv().unwrap());
        assert!(first.given <= second.ended - second.timing.compute_infer);
    }
}
