//! `troupe replay`: captured requests run again, and their tensors are compared.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{
    observe::tap::{BRANCHES, STEPS, SUMS, decoupled_chain, saved, tap},
    support::{
        Model, Repository, Server, ensemble,
        grpc::{self, Grpc},
        http::{finish, floats, input},
        models::execute,
        native,
        server::Ended,
        troupe,
    },
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// Multiplies.
fn scale(expression: &str) -> Model {
    execute(
        FLOATS,
        &format!(
            "
            x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
            return [pb_utils.InferenceResponse([pb_utils.Tensor('y', {expression})])]"
        ),
    )
}

/// Two branches that meet, the second of them in Python.
fn branches() -> Server {
    let repository = Repository::new()
        .with("left", native("add_sub", SUMS))
        .with("right", scale("x * 1"))
        .with("join", native("add_sub", SUMS))
        .with("e", ensemble(BRANCHES, &STEPS));
    explicit(repository, &["e"])
}

fn explicit(repository: Repository, models: &[&str]) -> Server {
    let load: Vec<String> = models.iter().map(|it| format!("--load-model={it}")).collect();
    let mut flags = vec!["--allow-tap", "--model-control-mode=explicit"];
    flags.extend(load.iter().map(String::as_str));
    Server::with(repository, &flags)
}

/// A capture of requests, each sent once the tap has begun.
fn captured(server: &Server, model: &str, body: Value, requests: &[Value]) -> PathBuf {
    let mut body = body;
    body["requests"] = requests.len().into();
    let stream = tap(server, model, &body);
    for request in requests {
        server.infer(model, request);
    }
    saved(server, "capture.npz", &finish(stream))
}

fn request(x: f32) -> Value {
    floats(&[("IN", &[x, 2.0]), ("ONE", &[1.0, 1.0])])
}

fn replay(server: &Server, file: &Path, arguments: &[&str]) -> Ended {
    let (file, url) = (file.display().to_string(), server.grpc.to_string());
    troupe(&[&["replay", &file, "--url", &url], arguments].concat())
}

#[track_caller]
fn ends(ended: &Ended, code: i32, expected: &str) {
    let text = &ended.output;
    assert_eq!(ended.code, Some(code), "{text}");
    assert!(text.contains(expected), "no `{expected}` in\n{text}");
}

/// `step tensor result` of each line.
fn results(ended: &Ended) -> Vec<String> {
    let report: Value = serde_json::from_str(&ended.output).expect(&ended.output);
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    let line =
        |it: &Value| format!("{} {} {}", it["step"], text(&it["tensor"]), text(&it["result"]));
    report["tensors"].as_array().unwrap().iter().map(line).collect()
}

/// Writes a model anew, and loads it.
fn change(server: &Server, model: &str, to: &Model) {
    server.repository.write_file(&format!("{model}/1/model.py"), to.source.as_ref().unwrap());
    server.load(model).ok();
}

#[test]
fn what_has_not_changed_is_equal() {
    let server = branches();
    let file = captured(&server, "e", json!({}), &[request(5.0), request(6.0)]);
    let ended = replay(&server, &file, &["--request=1"]);
    assert_eq!(
        ended.output,
        "\
+---------+------+---------+--------+----------+----------+--------+
| Request | Step | Model   | Tensor | Captured | Now      | Result |
+---------+------+---------+--------+----------+----------+--------+
| 1       | 0    | left 1  | more   | FP32 [2] | FP32 [2] | equal  |
| 1       | 0    | left 1  | less   | FP32 [2] | FP32 [2] | equal  |
| 1       | 1    | right 1 | same   | FP32 [2] | FP32 [2] | equal  |
| 1       | 2    | join 1  | OUT    | FP32 [2] | FP32 [2] | equal  |
| 1       | 2    | join 1  | REST   | FP32 [2] | FP32 [2] | equal  |
+---------+------+---------+--------+----------+----------+--------+
equal: 5 of 5
"
    );
    assert_eq!(ended.code, Some(0));
    ends(&replay(&server, &file, &[]), 0, "equal: 10 of 10\n");
    ends(&replay(&server, &file, &["--from=right"]), 0, "equal: 6 of 6\n");
    let ended = replay(&server, &file, &["--from=2", "--request=0", "--json", "--isolated"]);
    assert_eq!(results(&ended), ["2 OUT equal", "2 REST equal"]);
    server.is_well();
}

#[test]
fn a_model_that_has_changed_is_named() {
    let server = branches();
    let file = captured(&server, "e", json!({}), &[request(5.0)]);
    change(&server, "right", &scale("x * np.array([1, 1.5], np.float32)"));
    let ended = replay(&server, &file, &[]);
    let last = "different: 3 of 5, the first is 'same' of step 1 (model 'right') in request 0\n";
    ends(&ended, 1, last);
    for line in
        ["| different: 1 of 2 ", "| first at [1]: 2.0, now 3.0 ", "| max abs difference 1.0 "]
    {
        ends(&ended, 1, line);
    }
    let ended = replay(&server, &file, &["--json"]);
    let expected =
        ["0 more equal", "0 less equal", "1 same different", "2 OUT different", "2 REST different"];
    assert_eq!(results(&ended), expected);
    let report: Value = serde_json::from_str(&ended.output).unwrap();
    let same = &report["tensors"][2];
    assert_eq!(report["equal"], false);
    assert_eq!(
        (&same["first_difference"], &same["max_abs_difference"]),
        (&json!([1]), &json!(1.0))
    );
    assert_eq!((&same["different_elements"], &same["elements"]), (&json!(1), &json!(2)));
    // Each on its own: only the one that changed differs.
    let ended = replay(&server, &file, &["--json", "--isolated"]);
    assert_eq!(results(&ended)[2..], ["1 same different", "2 OUT equal", "2 REST equal"]);
    assert_eq!(ended.code, Some(1));
    ends(&replay(&server, &file, &["--from=2"]), 0, "equal: 2 of 2\n");
    // Another shape, and no answer at all.
    change(&server, "right", &scale("x[:1]"));
    let ended = replay(&server, &file, &["--from=1", "--isolated"]);
    ends(&ended, 1, "| FP32 [2] | FP32 [1] | different: another kind |");
    change(&server, "right", &scale("1 / 0"));
    let ended = replay(&server, &file, &[]);
    ends(&ended, 1, "different: now it fails: ");
    ends(&ended, 1, "different: it is not made any more: a step before fails");
}

#[test]
fn a_failure_that_stays_is_equal() {
    let server = branches();
    change(&server, "right", &scale("np.array([[1]], np.float32)[x.size]"));
    let file = captured(&server, "e", json!({}), &[request(5.0)]);
    let ended = replay(&server, &file, &["--json"]);
    let failure = "1 (failure) equal".to_owned();
    assert!(results(&ended).contains(&failure), "{}", ended.output);
    assert_eq!(ended.code, Some(0));
    change(&server, "right", &scale("x"));
    ends(&replay(&server, &file, &[]), 1, "different: it failed: ");
}

#[test]
fn batches_are_fitted_as_the_ensemble_fits_them() {
    let rows = "x:FP32[2] -> y:FP32[2]";
    let steps = ["batching: x=IN -> y=mid", "plain: x=mid -> y=OUT"];
    let repository = Repository::new()
        .with("batching", native("identity", rows).batch(2))
        .with("plain", native("identity", "x:FP32[-1,2] -> y:FP32[-1,2]"))
        .with("e", ensemble("IN:FP32[-1,2] -> OUT:FP32[-1,2]", &steps))
        .with("vector", native("identity", rows))
        .with("single", ensemble(rows, &["batching: x=x -> y=mid", "vector: x=mid -> y=y"]));
    let server = explicit(repository, &["e", "single"]);
    let request = |name, shape: &[i64], count: usize| json!({"inputs": [input(name, "FP32", shape, vec![1.5; count])]});
    let requests = [request("IN", &[5, 2], 10), request("IN", &[0, 2], 0)];
    let file = captured(&server, "e", json!({}), &requests);
    ends(&replay(&server, &file, &[]), 0, "equal: 4 of 4\n");
    ends(&replay(&server, &file, &["--isolated"]), 0, "equal: 4 of 4\n");
    let file = captured(&server, "single", json!({}), &[request("x", &[2], 2)]);
    ends(&replay(&server, &file, &[]), 0, "equal: 2 of 2\n");
    ends(&replay(&server, &file, &["--from=1"]), 0, "equal: 1 of 1\n");
}

#[test]
fn the_responses_of_a_decoupled_step_are_compared_in_their_order() {
    let server = explicit(decoupled_chain(), &["chain"]);
    let stream = tap(&server, "chain", &json!({}));
    let sent = grpc::floats("chain", &[("IN", &[2.0, 3.0, 4.0])]);
    Grpc::connect(server.grpc).stream(vec![sent]).unwrap();
    let file = saved(&server, "capture.npz", &finish(stream));
    for arguments in [&[][..], &["--isolated"]] {
        ends(&replay(&server, &file, arguments), 0, "equal: 6 of 6\n");
    }
    ends(&replay(&server, &file, &["--from=square"]), 0, "equal: 3 of 3\n");
    let source = server.repository.models().join("repeats/1/model.py");
    let source = std::fs::read_to_string(source).unwrap();
    let fewer = source.replace(".as_numpy():", ".as_numpy()[:2]:");
    server.repository.write_file("repeats/1/model.py", fewer);
    server.load("repeats").ok();
    let ended = replay(&server, &file, &[]);
    ends(&ended, 1, "different: there is no such response any more");
    ends(&ended, 1, "different: 1 of 5, the first is 'mid' of step 0");
}

#[test]
fn what_the_capture_does_not_have_is_told() {
    let server = branches();
    let file = captured(&server, "e", json!({"edges": ["IN", "ONE", "OUT"]}), &[request(5.0)]);
    ends(&replay(&server, &file, &[]), 0, "equal: 1 of 1\n");
    let expected = "request 0: step 2 (model 'join') reads 'more', which was not to be captured";
    ends(&replay(&server, &file, &["--from=2"]), 2, expected);
    let ended = replay(&server, &file, &["--from=2", "--isolated"]);
    ends(&ended, 2, "nothing to compare");
    let requests = [floats(&[("IN", &[1.0; 1000]), ("ONE", &[1.0; 1000])])];
    let file = captured(&server, "e", json!({"max_bytes": 7000}), &requests);
    ends(&replay(&server, &file, &[]), 2, "reads 'ONE', which did not fit into the capture");
}

#[test]
fn a_replay_that_cannot_be_ends_with_2() {
    let server = branches();
    let file = captured(&server, "e", json!({}), &[request(5.0)]);
    let beside = |name: &str, contents: &[u8]| {
        let path = server.repository.beside(name);
        std::fs::write(&path, contents).unwrap();
        path
    };
    let whole = std::fs::read(&file).unwrap();
    let cut = beside("cut.npz", &whole[..whole.len() / 2]);
    let other = beside("other.npz", b"not an archive");
    let refused = beside("refused.npz", b"{\"error\":\"not allowed\"}");
    for (file, arguments, expected) in [
        (&cut, &[][..], "cut.npz: it does not end as a .npz file does"),
        (&other, &[], "other.npz: it does not end as a .npz file does"),
        (&refused, &[], r#"refused.npz: the server refused the tap: {"error":"not allowed"}"#),
        (&server.repository.beside("none"), &[], "none: No such file"),
        (&file, &["--from=3"], "--from 3: there is no such step; those of `e` are 0 (left), 1"),
        (&file, &["--from=nope"], "--from nope: there is no such step"),
        (&file, &["--request=1"], "the capture has 1, the first is 0"),
        (&file, &["--request=x"], "expected a request's number or `all`, got `x`"),
        (&file, &["--header=x"], "expected `NAME:VALUE`"),
        (&file, &["--nonsense"], "--nonsense"),
    ] {
        ends(&replay(&server, file, arguments), 2, expected);
    }
    server.unload("e").ok();
    server.unload("join").ok();
    let expected = "request 0: step 2 (model 'join'): Request for unknown model: 'join'";
    ends(&replay(&server, &file, &[]), 2, expected);
}
