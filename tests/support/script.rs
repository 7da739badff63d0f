//! A Python model that runs what a test sends it, so that a test of `pb_utils` is a few lines.

use serde_json::json;

use super::{
    Model, Server,
    models::{python, undent},
};

/// What scripts can use beside `pb_utils` and `np`.
const TOOLS: &str = "
    import asyncio
    import gc
    import threading


    def make(model, x=(1,), **more):
        x = pb_utils.Tensor('x', np.asarray(x, np.float32))
        more.setdefault('requested_output_names', ['y'])
        return pb_utils.InferenceRequest(model_name=model, inputs=[x], **more)


    def y(response):
        if response.has_error():
            return f'{response.error().code()}: {response.error().message()}'
        return pb_utils.get_output_tensor_by_name(response, 'y').as_numpy().tolist()


    def raised(call, *arguments, **more):
        try:
            return call(*arguments, **more)
        except Exception as error:
            return f'{type(error).__name__}: {error}'


    def answer(request):
        script = request.inputs()[0].as_numpy()[0].decode()
        scope = dict(globals(), request=request)
        exec(compile(script, 'script', 'exec'), scope)
        return scope['run']()


    def response(said):
        said = [str(it).encode() for it in said]
        said = pb_utils.Tensor('said', np.array(said, dtype=np.object_))
        return pb_utils.InferenceResponse([said])
";

/// Runs scripts one after another.
pub(crate) fn scripts() -> Model {
    with_tools(
        "
    class TritonPythonModel:
        def execute(self, requests):
            return [response(answer(it)) for it in requests]
    ",
    )
}

/// Runs scripts that are coroutines.
pub(crate) fn coroutines() -> Model {
    with_tools(
        "
    class TritonPythonModel:
        async def execute(self, requests):
            return [response(await answer(it)) for it in requests]
    ",
    )
}

fn with_tools(source: &str) -> Model {
    python("script:BYTES[1] -> said:BYTES[-1]", &format!("{}{}", undent(TOOLS), undent(source)))
}

impl Server {
    /// What the body of a function returns, each element as text.
    #[track_caller]
    pub(crate) fn run(&self, model: &str, body: &str) -> Vec<String> {
        let is_async = if model == "coroutines" { "async " } else { "" };
        let body: String = undent(body).lines().map(|it| format!("    {it}\n")).collect();
        let script = format!("{is_async}def run():\n{body}");
        let input = json!({"name": "script", "datatype": "BYTES", "shape": [1], "data": [script]});
        let said = self.infer(model, &json!({"inputs": [input]})).ok().output("said");
        let text = |it: &serde_json::Value| it.as_str().unwrap().to_owned();
        said.as_array().unwrap().iter().map(text).collect()
    }
}
