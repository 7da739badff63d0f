//! Backpressure: models that could send far more responses than their clients read.

use std::{
    fs,
    io::Read,
    path::PathBuf,
    sync::{Mutex, MutexGuard},
};

use serde_json::json;
use troupe_proto::inference::{ModelInferRequest, model_infer_request::InferInputTensor};

use crate::support::{
    Repository, Server,
    grpc::{Grpc, floats},
    http,
    models::{native, python},
    process::resident_mib,
    until,
};

/// Sends as many responses of 64 KiB as it is asked for, from a thread for each request. Writes
/// down how many it has sent, and how that ended. A request whose id says so gets errors of that
/// size.
const FLOODS: &str = "
    import threading

    class TritonPythonModel:
        def execute(self, requests):
            for it in requests:
                count = int(pb_utils.get_input_tensor_by_name(it, 'count').as_numpy()[0])
                notes = os.open('NOTES.' + it.request_id(), os.O_CREAT | os.O_WRONLY)
                sender = it.get_response_sender()
                make = self.error if 'errors' in it.request_id() else self.response
                threading.Thread(target=self.flood, args=(sender, count, notes, make)).start()

        def response(self):
            text = pb_utils.Tensor('text', np.array([b'x' * (64 << 10)], np.object_))
            return pb_utils.InferenceResponse([text])

        def error(self):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError('x' * (64 << 10)))

        def flood(self, sender, count, notes, make):
            end = b'through'
            for sent in range(1, count + 1):
                if sender.is_cancelled():
                    end = b'cancelled'
                    break
                sender.send(make())
                os.pwrite(notes, b'%8d' % sent, 0)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            os.pwrite(notes, end, 8)";

/// The same in coroutines: those of `execute`, or tasks that outlive it.
const FLOODS_BY_COROUTINES: &str = "
    import asyncio

    class TritonPythonModel:
        async def execute(self, requests):
            for it in requests:
                count = int(pb_utils.get_input_tensor_by_name(it, 'count').as_numpy()[0])
                notes = os.open('NOTES.' + it.request_id(), os.O_CREAT | os.O_WRONLY)
                flood = self.flood(it.get_response_sender(), count, notes)
                if it.request_id() == 'task':
                    self.task = asyncio.create_task(flood)
                else:
                    await flood

        async def flood(self, sender, count, notes):
            end = b'through'
            for sent in range(1, count + 1):
                if sender.is_cancelled():
                    end = b'cancelled'
                    break
                text = pb_utils.Tensor('text', np.array([b'x' * (64 << 10)], np.object_))
                sender.send(pb_utils.InferenceResponse([text]))
                os.pwrite(notes, b'%8d' % sent, 0)
                await asyncio.sleep(0)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            os.pwrite(notes, end, 8)";

/// 2 GiB.
const TOO_MANY: u32 = 32 << 10;
/// What sockets, windows and buffers of both sides may hold together: 40 MiB.
const ON_THE_WAY: u32 = 640;

struct Flood {
    server: Server,
    notes: PathBuf,
    /// Before there was any flood.
    resident: u64,
}

impl Flood {
    fn start() -> Flood {
        Flood::of(FLOODS)
    }

    fn of(source: &str) -> Flood {
        let repository = Repository::new();
        let notes = repository.beside("notes");
        let source = source.replace("NOTES", notes.to_str().unwrap());
        let model = python("count:UINT32[1] -> text:BYTES[1]", &source)
            .with("model_transaction_policy { decoupled: true }");
        let other = native("identity", "x:FP32[-1] -> y:FP32[-1]");
        let server = Server::start(repository.with("floods", model).with("other", other));
        let flood = Flood { resident: 0, server, notes };
        flood.serves_others();
        Flood { resident: resident_mib(flood.server.pid), ..flood }
    }

    /// How many responses the model has sent for a request, and how that ended, if it did.
    fn sent(&self, id: &str) -> (u32, String) {
        let text = fs::read_to_string(self.notes.with_extension(id)).unwrap_or_default();
        let (count, end) = text.split_at(text.len().min(8));
        (count.trim().parse().unwrap_or(0), end.to_owned())
    }

    /// Other models answer, and other requests of the same one.
    fn serves_others(&self) {
        for _ in 0..3 {
            let answer = self.server.infer("other", &http::floats(&[("x", &[1.0])]));
            assert_eq!(answer.ok().numbers("y"), [1.0]);
        }
        let path = "/v2/models/floods/generate_stream";
        let answer = self.server.http.post(path, json!({"count": 3, "id": "other"}));
        assert_eq!(answer.ok().events().len(), 3);
    }

    /// Waits until the model waits; others are served meanwhile. How many it has sent.
    fn stalls(&self, id: &str) -> u32 {
        let mut last = (0, 0);
        until("the model to wait for its client", || {
            self.serves_others();
            let (sent, end) = self.sent(id);
            assert_eq!(end, "", "after {sent} responses");
            last = if sent == last.0 { (sent, last.1 + 1) } else { (sent, 0) };
            sent != 0 && last.1 == 3
        });
        last.0
    }

    fn is_bounded(&self, id: &str, taken: u32) {
        let (sent, _) = self.sent(id);
        assert!(sent < taken + ON_THE_WAY, "{sent} were sent and {taken} taken");
        let resident = resident_mib(self.server.pid);
        assert!(resident < self.resident + 100, "{} MiB, then {resident}", self.resident);
    }

    fn is_cancelled(&self, id: &str) -> bool {
        let (_, end) = self.sent(id);
        assert_ne!(end, "through");
        end == "cancelled"
    }
}

/// One at a time: they look at the memory of their servers, and use all of a small machine.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|it| it.into_inner())
}

#[test]
fn an_http_client_that_does_not_read_stops_its_own_model_only() {
    let _alone = alone();
    let flood = Flood::start();
    let path = "/v2/models/floods/generate_stream";
    let mut stream = flood.server.http.start_at(path, &json!({"count": TOO_MANY, "id": "http"}));
    let before = flood.stalls("http");
    flood.is_bounded("http", 0);
    // As much as there was, and a part of what comes then.
    let taken = before + 64;
    let mut bytes = vec![0; 64 << 10];
    for _ in 0..taken {
        stream.read_exact(&mut bytes).unwrap();
    }
    assert!(before < flood.stalls("http"));
    flood.is_bounded("http", taken);
    drop(stream);
    until("the request to be cancelled", || flood.is_cancelled("http"));
    flood.is_bounded("http", taken);
    flood.serves_others();
    flood.server.is_well();
}

fn request(id: &str, count: u32) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "floods".to_owned(),
        id: id.to_owned(),
        inputs: vec![InferInputTensor {
            name: "count".to_owned(),
            datatype: "UINT32".to_owned(),
            shape: vec![1],
            ..Default::default()
        }],
        raw_input_contents: vec![count.to_le_bytes().to_vec().into()],
        ..Default::default()
    }
}

#[test]
fn a_grpc_client_that_does_not_read_stops_its_own_model_only() {
    let _alone = alone();
    let flood = Flood::start();
    let mut grpc = Grpc::connect(flood.server.grpc);
    let requests = tokio_stream::iter([request("grpc", TOO_MANY)]);
    let mut stream =
        grpc.run(async |client| client.model_stream_infer(requests).await.unwrap().into_inner());
    let before = flood.stalls("grpc");
    flood.is_bounded("grpc", 0);
    // The connection goes on beside the stream.
    let other = |grpc: &mut Grpc| {
        let answer = grpc.infer(floats("other", &[("x", &[1.0])])).unwrap();
        assert_eq!(answer.model_name, "other");
    };
    other(&mut grpc);
    let taken = before + 64;
    grpc.run(async |_| {
        for _ in 0..taken {
            let answer = stream.message().await.unwrap().unwrap();
            assert_eq!(answer.error_message, "");
        }
    });
    other(&mut grpc);
    assert!(before < flood.stalls("grpc"));
    flood.is_bounded("grpc", taken);
    drop(stream);
    until("the request to be cancelled", || {
        other(&mut grpc);
        flood.is_cancelled("grpc")
    });
    flood.is_bounded("grpc", taken);
    flood.server.is_well();
}

#[test]
fn a_client_that_wanted_one_response_cancels_the_others() {
    let _alone = alone();
    let flood = Flood::start();
    let path = "/v2/models/floods/generate";
    let answer = flood.server.http.post(path, json!({"count": TOO_MANY, "id": "one"}));
    answer.refuses(500, "generate expects model to produce exactly 1 response");
    until("the request to be cancelled", || flood.is_cancelled("one"));
    flood.is_bounded("one", 0);
}

#[test]
fn a_coroutine_that_sends_too_much_waits_and_the_others_go_on() {
    let _alone = alone();
    let flood = Flood::of(FLOODS_BY_COROUTINES);
    let path = "/v2/models/floods/generate_stream";
    for id in ["execute", "task"] {
        let mut stream = flood.server.http.start_at(path, &json!({"count": TOO_MANY, "id": id}));
        let before = flood.stalls(id);
        flood.is_bounded(id, 0);
        let taken = before + 64;
        let mut bytes = vec![0; 64 << 10];
        for _ in 0..taken {
            stream.read_exact(&mut bytes).unwrap();
        }
        assert!(before < flood.stalls(id));
        flood.is_bounded(id, taken);
        drop(stream);
        until("the request to be cancelled", || flood.is_cancelled(id));
    }
    flood.serves_others();
}

#[test]
fn errors_wait_for_their_client_as_responses_do_and_all_arrive() {
    let _alone = alone();
    let flood = Flood::start();
    let count = 4 * ON_THE_WAY;
    let mut grpc = Grpc::connect(flood.server.grpc);
    let requests = tokio_stream::iter([request("errors", count)]);
    let mut stream =
        grpc.run(async |client| client.model_stream_infer(requests).await.unwrap().into_inner());
    flood.stalls("errors");
    flood.is_bounded("errors", 0);
    grpc.run(async |_| {
        for number in 0..count {
            let answer = stream.message().await.unwrap().unwrap();
            assert_eq!(answer.error_message.len(), 64 << 10, "error {number}");
        }
    });
    until("the model to be through", || flood.sent("errors") == (count, "through".to_owned()));
    drop(stream);
    let path = "/v2/models/floods/generate_stream";
    let body = json!({"count": TOO_MANY, "id": "http errors"});
    let stream = flood.server.http.start_at(path, &body);
    flood.stalls("http errors");
    flood.is_bounded("http errors", 0);
    drop(stream);
    until("the request to be cancelled", || flood.is_cancelled("http errors"));
    flood.server.is_well();
}
