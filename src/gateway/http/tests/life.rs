//! Starting, serving, clients that leave, exiting.

use super::*;

#[actix_rt::test]
async fn it_listens_before_there_are_models() {
    let cell: StateCell = Arc::default();
    let (gateway, addresses) = start(cell, &listen(3)).unwrap();
    let address = addresses[0].tcp().unwrap();
    for (path, status, body) in [
        ("/v2/health/live", 200, ""),
        ("/v2/health/ready", 400, ""),
        ("/v2", 503, r#"{"error":"Server not ready"}"#),
        ("/v2/models/m", 503, r#"{"error":"Server not ready"}"#),
    ] {
        let answer = exchange(address, &message("GET", path, &[], b"")).await;
        assert_eq!((answer.status, &*answer.text()), (status, body), "{path}");
    }
    let answer = exchange(address, &message("POST", "/v2/models/m/infer", &[], b"{}")).await;
    assert_eq!(answer.error(), (503, "Server not ready".to_owned()));
    gateway.send(StopHttp).await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

fn silent_request() -> Vec<u8> {
    let body = r#"{"inputs":[{"name":"IN0","datatype":"FP32","shape":[1],"data":[1]}]}"#;
    message("POST", "/v2/models/silent/infer", &[], body.as_bytes())
}

#[actix_rt::test]
async fn a_client_that_leaves_cancels_its_request() {
    let mut bench = Bench::start().await;
    let mut stream = TcpStream::connect(bench.address).await.unwrap();
    stream.write_all(&silent_request()).await.unwrap();
    let (request, reply) = bench.asked.recv().await.unwrap();
    assert_eq!(bench.state.lifecycle.in_flight(), 1);
    assert!(!request.context.is_stopped());
    drop(stream);
    let left = async {
        while !request.context.is_stopped() || bench.state.lifecycle.in_flight() != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), left).await.unwrap();
    reply.answer(Ok(Response::default()));
    bench.stop().await;
}

#[actix_rt::test]
async fn an_exiting_server_finishes_what_it_accepted() {
    let mut bench = Bench::start().await;
    let waiting = tokio::spawn({
        let address = bench.address;
        async move { exchange(address, &silent_request()).await }
    });
    let (request, reply) = bench.asked.recv().await.unwrap();
    bench.state.lifecycle.exit();
    for path in ["/v2/health/live", "/v2/health/ready"] {
        assert_eq!(bench.get(path).await.error(), (503, "Server exiting".to_owned()));
    }
    let refused = bench.one("fp32", ("FP32", "[1]", "[1]")).await.error();
    let text =
        "Server is stopping, scheduler for model has stopped accepting new inference requests";
    assert_eq!(refused, (503, text.to_owned()));
    assert_eq!(bench.state.lifecycle.in_flight(), 1);
    let outputs = request.inputs.clone();
    reply.answer(Ok(Response { outputs, ..Default::default() }));
    bench.state.lifecycle.wait_idle().await;
    bench.gateway.send(StopHttp).await.unwrap();
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[actix_rt::test]
async fn readiness_is_strict_or_not() {
    let mut catalog = catalog(Vec::new());
    let failed = VersionEntry {
        model: None,
        state: VersionState::Unavailable,
        reason: "no file".to_owned(),
    };
    let entry = ModelEntry { versions: BTreeMap::from([(1, failed)]), ..ModelEntry::default() };
    catalog.entries.insert("failed".into(), entry);
    for (is_strict, status) in [(true, 400), (false, 200)] {
        let bench = Bench::start().await;
        let mut state = bench.state.clone();
        state.repository.catalog.store(Arc::new(catalog.clone()));
        state.settings.strict_readiness = is_strict;
        let cell = Arc::new(OnceLock::new());
        let _ = cell.set(state);
        let (gateway, addresses) = start(cell, &listen(1)).unwrap();
        let ready = message("GET", "/v2/health/ready", &[], b"");
        assert_eq!(exchange(addresses[0].tcp().unwrap(), &ready).await.status, status);
        gateway.send(StopHttp).await.unwrap();
        bench.stop().await;
    }
}

#[actix_rt::test]
async fn a_model_that_drops_a_request_answers_it() {
    let mut bench = Bench::start().await;
    let address = bench.address;
    let waiting = tokio::spawn(async move { exchange(address, &silent_request()).await });
    drop(bench.asked.recv().await.unwrap());
    let (status, text) = waiting.await.unwrap().error();
    assert_eq!((status, &*text), (503, "the model stopped before it answered"));
    bench.stop().await;
}
