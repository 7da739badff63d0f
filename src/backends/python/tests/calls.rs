//! Calls to other models: what lies where, for how long, and how much of it.

use std::sync::Weak;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::*;
use troupe_base::{
    error::Error,
    model::{self, Infer, LoadTarget, Lookup, ModelParts, Overrides},
    request::Reply,
    tensor::Lease,
};

const SIZE: usize = 1 << 20;
const ANY: (DataType, &[i64]) = (FP32, &[-1]);

type Answers = Box<dyn Fn(Request, Reply) + Send + Sync>;

/// There is one other model, `other`, from `IN0` or `OUT0` to `OUT0`; the test says what it does.
struct Other(Answers);

impl Infer for Other {
    fn infer(&self, request: Request, reply: Reply) {
        (self.0)(request, reply);
    }
}

struct Others(Arc<model::Model>);

impl std::fmt::Debug for Others {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("others")
    }
}

impl Lookup for Others {
    fn find(&self, name: &str, _: Option<i64>) -> Result<Arc<model::Model>> {
        if name == "other" { Ok(self.0.clone()) } else { Err(Error::not_found("nobody")) }
    }
    fn load(&self, target: LoadTarget, overrides: Overrides) -> BoxFuture<'static, Result<()>> {
        let files: Vec<_> = overrides.files.iter().map(|(path, it)| (path, it.len())).collect();
        let text = format!("{target:?} {:?} {files:?}", overrides.config);
        Box::pin(async move { Err(Error::invalid(text)) })
    }
    fn unload(&self, target: LoadTarget, dependents: bool) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { Err(Error::invalid(format!("{target:?} {dependents}"))) })
    }
}

const TOOLS: &str = "
import numpy as np

def call(x, more=False):
    x = x if isinstance(x, pb_utils.Tensor) else pb_utils.Tensor('IN0', x)
    return pb_utils.InferenceRequest(
        model_name='other', inputs=[x], requested_output_names=['OUT0']).exec(decoupled=more)

def out(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor('OUT0', array)])
";

/// A model whose `execute` has this body, and what the other one does.
pub(super) fn calling(body: &str, other: impl Fn(Request, Reply) + Send + Sync + 'static) -> Model {
    let body: String = dedent(body).lines().map(|it| format!("        {it}\n")).collect();
    let source = format!(
        "{TOOLS}\nclass TritonPythonModel:\n    kept = []\n    def execute(self, requests):\n{body}"
    );
    let mut model = model(&source, &[ANY], &[ANY]);
    let config = configured(
        "name: 'other' backend: 'fake' input { name: 'IN0' data_type: TYPE_FP32 dims: -1 optional: \
         true } input { name: 'OUT0' data_type: TYPE_FP32 dims: -1 optional: true } output { name: \
         'OUT0' data_type: TYPE_FP32 dims: -1 }",
    );
    let parts = ModelParts {
        config: Arc::new(config),
        version: 1,
        stats: Arc::default(),
        health: Arc::default(),
        steps: Vec::new(),
    };
    let other = model::Model::new(parts, Arc::new(Other(Box::new(other))));
    model.settings.lookup = Some(Arc::new(Others(Arc::new(other))));
    model
}

fn large(fill: f32) -> Tensor {
    let mut segment = SegmentPool::new(0).take(SIZE, Owner::default()).unwrap();
    let bytes = segment.bytes_mut();
    bytes[..SIZE].chunks_exact_mut(4).for_each(|it| it.copy_from_slice(&fill.to_le_bytes()));
    let lease = segment.freeze();
    Tensor::in_segment(FP32, Shape::from_slice(&[(SIZE / 4) as i64]), &lease, 0..SIZE).unwrap()
}

pub(super) fn response(tensor: Tensor) -> Response {
    Response { outputs: vec![Some(tensor)], ..Response::default() }
}

/// Where tensors lie that others saw.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(usize, bool)>>>);

impl Seen {
    fn note(&self, tensor: &Tensor) {
        self.0.lock().push((address(tensor), tensor.segment().is_some()));
    }
}

fn address(tensor: &Tensor) -> usize {
    tensor.data().as_ptr() as usize
}

/// Answers with its input, and notes where that lay.
fn echo(seen: &Seen) -> impl Fn(Request, Reply) + Send + Sync + use<> {
    let seen = seen.clone();
    move |request, reply| {
        let tensor = request.inputs.iter().flatten().next().cloned().unwrap();
        seen.note(&tensor);
        drop(request);
        reply.answer(Ok(response(tensor)));
    }
}

#[actix_rt::test]
async fn an_input_goes_through_two_models_and_back_without_a_copy() {
    let seen = Seen::default();
    let body = "
        first = call(requests[0].inputs()[0]).output_tensors()[0]
        return [call(first)]";
    let model = calling(body, echo(&seen));
    let mut remote = model.open();
    let input = large(3.0);
    let at = address(&input);
    let answer = output(&mut *remote, request(vec![input])).await;
    assert_eq!(*seen.0.lock(), [(at, true), (at, true)]);
    assert_eq!(address(&answer), at);
}

#[actix_rt::test]
async fn an_array_is_copied_once_on_its_way_to_a_model_and_not_on_its_way_back() {
    let seen = Seen::default();
    let body = "
        y = call(np.arange(1 << 18, dtype='f4')).output_tensors()[0].as_numpy()
        assert (y == np.arange(1 << 18)).all()
        z = call(y).output_tensors()[0].as_numpy()
        return [out(z[:])]";
    let model = calling(body, echo(&seen));
    let mut remote = model.open();
    let answer = output(&mut *remote, request(vec![fp32(&[1], &[0.0])])).await;
    let at = address(&answer);
    // The second call saw what the first one gave; it was held, so what came back is a copy.
    let seen = seen.0.lock().clone();
    assert!(seen.iter().all(|it| it.1) && seen[0].0 == seen[1].0 && seen[0].0 != at, "{seen:?}");
    assert_eq!(floats(&answer)[..3], [0.0, 1.0, 2.0]);
}

#[actix_rt::test]
async fn what_a_model_writes_to_an_output_is_copied_to_whom_it_is_sent() {
    let seen = Seen::default();
    let body = "
        kept = call(np.arange(1 << 18, dtype='f4')).output_tensors()[0].as_numpy()
        kept[0] = 7
        first = call(kept).output_tensors()[0].as_numpy()
        kept[0] = 8
        assert first[0] == 7
        return [out(kept[:])]";
    let model = calling(body, echo(&seen));
    let mut remote = model.open();
    for _ in 0..3 {
        let answer = output(&mut *remote, request(vec![fp32(&[1], &[0.0])])).await;
        assert_eq!(floats(&answer)[..3], [8.0, 1.0, 2.0]);
    }
    let seen = seen.0.lock().clone();
    assert!(seen.iter().all(|it| it.1) && seen[0].0 != seen[1].0, "{seen:?}");
}

#[actix_rt::test]
async fn outputs_are_the_models_own_to_write_to_unless_others_hold_them() {
    let kept: Arc<Mutex<Vec<Tensor>>> = Arc::default();
    let keep = kept.clone();
    let other = move |_: Request, reply: Reply| {
        let tensor = large(1.0);
        keep.lock().push(tensor.clone());
        reply.answer(Ok(response(tensor)));
    };
    let body = "
        y = call(np.zeros(1, 'f4')).output_tensors()[0].as_numpy()
        y += 1
        return [out(y[:2])]";
    let model = calling(body, other);
    let mut remote = model.open();
    let ask = || request(vec![fp32(&[1], &[0.0])]);
    assert_eq!(floats(&output(&mut *remote, ask()).await), [2.0, 2.0]);
    assert_eq!(floats(&kept.lock()[0])[..2], [1.0, 1.0]);

    let body = body.replace("y += 1", "assert not y.flags.owndata; y += 1");
    let model = calling(&body, |_, reply| reply.answer(Ok(response(large(1.0)))));
    let mut remote = model.open();
    assert_eq!(floats(&output(&mut *remote, ask()).await), [2.0, 2.0]);
}

#[actix_rt::test]
async fn memory_is_held_exactly_as_long_as_arrays_refer_to_it() {
    let leases: Arc<Mutex<Vec<Weak<Lease>>>> = Arc::default();
    let given = leases.clone();
    let other = move |_: Request, reply: Reply| {
        let tensor = large(5.0);
        given.lock().push(Arc::downgrade(tensor.segment().unwrap().0));
        reply.answer(Ok(response(tensor)));
    };
    let body = "
        what = requests[0].inputs()[0].as_numpy()[0]
        if what == 0:
            call(np.zeros(1, 'f4'))
        elif what == 1:
            self.kept.append(call(np.zeros(1, 'f4')).output_tensors()[0].as_numpy()[1:].reshape(3, -1))
        elif what == 2:
            self.kept[:] = [self.kept[0][1, :1]]
        else:
            self.kept.clear()
        return [out(np.array([it.ravel()[0] for it in self.kept] or [0], 'f4'))]";
    let model = calling(body, other);
    let mut remote = model.open();
    for (what, answer, held) in [
        (0, 0.0, vec![false]),
        (1, 5.0, vec![false, true]),
        (2, 5.0, vec![false, true]),
        (3, 0.0, vec![false, false]),
        (1, 5.0, vec![false, false, true]),
    ] {
        let input = request(vec![fp32(&[1], &[what as f32])]);
        assert_eq!(floats(&output(&mut *remote, input).await), [answer]);
        let is_held = |it: &Weak<Lease>| it.strong_count() != 0;
        assert_eq!(leases.lock().iter().map(is_held).collect::<Vec<_>>(), held, "{what}");
    }
    drop(remote);
}

#[actix_rt::test]
async fn who_calls_is_known_to_the_one_that_is_called() {
    let callers: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = callers.clone();
    let other = move |request: Request, reply: Reply| {
        let caller = request.context.call_chain.as_ref().unwrap();
        let found = ["m", "first"].map(|it| caller.check_recursion(it, 1).err());
        heard.lock().push(format!("{found:?}"));
        reply.answer(Ok(response(fp32(&[1], &[0.0]))));
    };
    let body = "
        import threading
        call(np.zeros(1, 'f4'))
        thread = threading.Thread(target=call, args=(np.zeros(1, 'f4'),))
        thread.start()
        thread.join()
        return [out(np.zeros(1, 'f4'))]";
    let model = calling(body, other);
    let mut remote = model.open();
    let first = troupe_base::request::CallChain::new("first".into(), 1, "m".into());
    let context = Context { call_chain: Some(Arc::new(first)), ..Context::default() };
    let input = Request { context: Arc::new(context), ..request(vec![fp32(&[1], &[0.0])]) };
    output(&mut *remote, input).await;
    let expected = r#"[Some("model 'm' would wait for itself: 'm' calls 'other', which runs 'm'"), Some("model 'first' would wait for itself: 'first' calls 'm', which calls 'other', which runs 'first'")]"#;
    assert_eq!(*callers.lock(), [expected, expected]);
}

#[actix_rt::test]
async fn what_is_asked_of_the_server_arrives() {
    let body = "
        said = []
        for ask in (
            lambda: pb_utils.load_model('q', '{}', {'file:1/a': b'x' * 9, 'file:b': b''}),
            lambda: pb_utils.load_model('q'),
            lambda: pb_utils.unload_model('q'),
            lambda: pb_utils.unload_model('q', unload_dependents=True),
            lambda: pb_utils.is_model_ready('other'),
            lambda: pb_utils.is_model_ready('other', '1'),
            lambda: pb_utils.is_model_ready('q'),
            lambda: pb_utils.is_model_ready('other', 'x'),
            lambda: pb_utils.load_model('q', files=['file:1/a']),
            lambda: pb_utils.load_model('q', files={'1/a': b''}),
            lambda: pb_utils.load_model('q', files={'file:1/a': 'text'}),
        ):
            try:
                said.append(str(ask()))
            except pb_utils.TritonModelException as error:
                said.append(str(error))
        raise ValueError('\\n'.join(said))";
    let model = calling(body, |_, _| ());
    let mut remote = model.open();
    let error = ask(&mut *remote, request(vec![fp32(&[1], &[0.0])])).await.unwrap_err().to_string();
    let said = error.split("ValueError: ").nth(1).unwrap().split("\n\nAt").next().unwrap();
    let target = r#"LoadTarget { name: "q", within: None }"#;
    let expected = [
        &format!(r#"Failed to load model: {target} Some("{{}}") [("1/a", 9), ("b", 0)]"#),
        &format!("Failed to load model: {target} None []"),
        &format!("Failed to unload model: {target} false"),
        &format!("Failed to unload model: {target} true"),
        "True",
        "True",
        "False",
        "failed to get model version from specified version string 'x' (details: stol), version \
         should be an integral value > 0",
        "failed to load model 'q', files should be a dictionary of file paths and file contents",
        "failed to load model 'q', the path of a file must begin with 'file:', got '1/a'",
        "failed to load model 'q', the contents of 'file:1/a' must be bytes, found type '<class \
         'str'>'",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}
