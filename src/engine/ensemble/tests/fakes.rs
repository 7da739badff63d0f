//! Models whose answers a test gives by hand, and a client that notes what it is told.

use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, error::TryRecvError, unbounded_channel},
    watch,
};

use super::*;
use troupe_base::{
    request::{Credit, Parameter, Part},
    statistics::Timing,
};

/// Hands every request to the test.
struct Fake(UnboundedSender<(Request, Reply)>);

impl Infer for Fake {
    fn infer(&self, request: Request, reply: Reply) {
        let _ = self.0.send((request, reply));
    }
}

/// The requests of one model.
pub(super) struct ModelRequests(UnboundedReceiver<(Request, Reply)>);

/// A request that waits for the test.
pub(super) struct OpenRequest {
    pub(super) request: Request,
    pub(super) reply: Reply,
}

impl ModelRequests {
    pub(super) async fn next(&mut self) -> OpenRequest {
        let (request, reply) = self.0.recv().await.unwrap();
        OpenRequest { request, reply }
    }

    /// So many requests.
    pub(super) async fn take(&mut self, count: usize) -> VecDeque<OpenRequest> {
        let mut all = VecDeque::new();
        while all.len() < count {
            all.push_back(self.next().await);
        }
        all
    }

    /// What has come.
    pub(super) fn all(&mut self) -> VecDeque<OpenRequest> {
        let next = || self.0.try_recv().ok();
        std::iter::from_fn(next).map(|(request, reply)| OpenRequest { request, reply }).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }
}

impl OpenRequest {
    /// The first elements of the first input.
    pub(super) fn values(&self) -> Vec<i32> {
        values(self.request.inputs[0].as_ref())
    }

    pub(super) fn part(&mut self, number: i32) {
        self.reply.part(Ok(response(&[number])));
    }

    /// A part whose credit counts down when it is given back.
    pub(super) fn counted_part(&mut self, number: i32, held: &UnreturnedCredit) {
        held.0.send_modify(|it| *it += 1);
        let held = held.clone();
        let credit = Credit::new(move || held.0.send_modify(|it| *it -= 1));
        self.reply.part(Part { result: Ok(response(&[number])), credit: Some(credit) });
    }

    pub(super) fn answer(self, number: i32) {
        self.reply.answer(Ok(response(&[number])));
    }

    /// Answers with what was asked.
    pub(super) fn echo(self) {
        let number = self.values()[0];
        self.answer(number);
    }

    /// The same, and so many zeros behind it.
    pub(super) fn swell(self, zeros: usize) {
        let mut data = vec![0; 4 * (1 + zeros)];
        data[..4].copy_from_slice(&self.values()[0].to_le_bytes());
        let shape = [1 + zeros as i64].into_iter().collect();
        let tensor = Tensor::new(DataType::Int32, shape, data.into()).unwrap();
        self.reply.answer(Ok(Response { outputs: vec![Some(tensor)], ..Response::default() }));
    }

    pub(super) fn fail(self, text: &str) {
        self.reply.answer(Err(Error::unavailable(text)));
    }

    pub(super) fn end(self) {
        self.reply.end(Timing::default());
    }
}

/// How much credit has not been given back.
#[derive(Clone, Default)]
pub(super) struct UnreturnedCredit(Arc<watch::Sender<usize>>);

impl UnreturnedCredit {
    /// Waits until it is so much.
    pub(super) async fn becomes(&self, count: usize) {
        self.0.subscribe().wait_for(|it| *it == count).await.unwrap();
    }

    pub(super) fn is(&self, count: usize) -> bool {
        *self.0.borrow() == count
    }
}

/// One output of one row.
pub(super) fn response(numbers: &[i32]) -> Response {
    Response { outputs: vec![Some(tensor(numbers))], ..Response::default() }
}

pub(super) fn tensor(numbers: &[i32]) -> Tensor {
    let data: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
    let shape = [numbers.len() as i64].into_iter().collect();
    Tensor::new(DataType::Int32, shape, data.into()).unwrap()
}

/// The first of a tensor's elements.
fn values(tensor: Option<&Tensor>) -> Vec<i32> {
    let data = tensor.map(|it| it.data().clone()).unwrap_or_default();
    data.as_chunks().0.iter().take(8).map(|it| i32::from_le_bytes(*it)).collect()
}

impl Fixture {
    /// A model that answers once.
    pub(super) fn fake(&mut self, name: &str, io: (&str, &str)) -> ModelRequests {
        self.faked(name, "", io)
    }

    /// A model that answers any number of times.
    pub(super) fn fake_decoupled(&mut self, name: &str, io: (&str, &str)) -> ModelRequests {
        self.faked(name, "model_transaction_policy { decoupled: true }", io)
    }

    pub(super) fn faked(&mut self, name: &str, fields: &str, io: (&str, &str)) -> ModelRequests {
        let text = format!(
            "name: '{name}' backend: 'python' {fields} {} {}",
            tensors("input", io.0),
            tensors("output", io.1)
        );
        let (sender, asked) = unbounded_channel();
        let (stats, health) = (Arc::<Statistics>::default(), Arc::<Health>::default());
        let parts =
            ModelParts { config: config(&text), version: 1, stats, health, steps: Vec::new() };
        self.models.insert(name.into(), Arc::new(Model::new(parts, Arc::new(Fake(sender)))));
        ModelRequests(asked)
    }

    /// Asks an ensemble with one input.
    pub(super) fn stream(&self, name: &str, number: i32) -> Client {
        self.stream_of(name, &[number])
    }

    pub(super) fn stream_of(&self, name: &str, numbers: &[i32]) -> Client {
        let (sender, told) = unbounded_channel();
        let context = Arc::new(Context::default());
        let inputs = vec![Some(tensor(numbers))];
        let request = Request { context: context.clone(), inputs, ..Request::default() };
        self.models[name].infer(request, Reply::new(Notes(sender)));
        Client { context, told, taken: Vec::new() }
    }
}

/// Notes what it is told; keeps responses until the test takes them.
struct Notes(UnboundedSender<Note>);

/// What was said, and what lets its maker go on.
type Note = (&'static str, Answered<Option<Response>>, Option<Arc<Credit>>);

impl Answer for Notes {
    fn answer(self: Box<Self>, result: Answered<Response>, _: Instant) {
        let _ = self.0.send(("last ", result.map(Some), None));
    }

    fn takes_many(&self) -> bool {
        true
    }

    fn part(&mut self, part: Part, _: Instant) {
        let _ = self.0.send(("", part.result.map(Some), part.credit));
    }

    fn end(self: Box<Self>, _: Timing, _: Instant) {
        let _ = self.0.send(("end", Ok(None), None));
    }
}

pub(super) struct Client {
    pub(super) context: Arc<Context>,
    told: UnboundedReceiver<Note>,
    /// Of responses the client has not let go of.
    pub(super) taken: Vec<Option<Arc<Credit>>>,
}

impl Client {
    /// The next thing it is told: `1 2`, `last 3`, `end`, or an error.
    pub(super) async fn next(&mut self) -> String {
        let note = self.told.recv().await.expect("an answer or the end");
        self.take_in(note)
    }

    /// What it was told by now, and whether nothing comes any more.
    pub(super) fn all(&mut self) -> (Vec<String>, bool) {
        let mut all = Vec::new();
        loop {
            match self.told.try_recv() {
                Ok(note) => all.push(self.take_in(note)),
                Err(error) => return (all, error == TryRecvError::Disconnected),
            }
        }
    }

    fn take_in(&mut self, (kind, said, credit): Note) -> String {
        match said {
            Ok(Some(response)) => {
                let flag = Parameter::Bool(false);
                assert!(response.parameters.contains(&("sequence_start".into(), flag)));
                let numbers = response.outputs.iter().flat_map(|it| values(it.as_ref()));
                let numbers: Vec<String> = numbers.map(|it| it.to_string()).collect();
                self.taken.push(credit);
                format!("{kind}{}", numbers.join(" "))
            }
            Ok(None) => kind.to_owned(),
            Err(error) => format!("{kind}{error}"),
        }
    }

    /// So many things.
    pub(super) async fn take(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        while all.len() < count {
            all.push(self.next().await);
        }
        all
    }

    pub(super) fn has_heard_nothing(&self) -> bool {
        self.told.is_empty()
    }

    /// Nothing comes after the end.
    pub(super) async fn ends(mut self) {
        assert!(self.told.recv().await.is_none());
    }
}
