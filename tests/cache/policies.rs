//! How long answers of one model are kept, and in how many bytes.

use super::{LOCAL, cached, execution, gauge, hits_and_misses, request};
use crate::support::{Repository, Server, models::same, until};

#[test]
fn an_answer_is_forgotten_when_it_is_too_old() {
    let repository = Repository::new()
        .with("m", cached("ttl_seconds: 1"))
        .with("long", cached("ttl_seconds: 999"));
    let server = Server::with(repository, &[LOCAL]);
    assert_eq!(execution(&server, "long", &request(&[1.0])), 1.0);
    assert_eq!(execution(&server, "m", &request(&[1.0])), 1.0);
    until("the answer to be too old", || execution(&server, "m", &request(&[1.0])) == 2.0);
    assert_eq!(execution(&server, "long", &request(&[1.0])), 1.0);
    assert!(gauge(&server, "nv_cache_num_evictions").is_some_and(|it| 1.0 <= it));
}

#[test]
fn a_model_keeps_no_more_than_its_config_allows() {
    let repository = Repository::new().with("m", cached("max_byte_size: 1500"));
    let server = Server::with(repository, &[LOCAL]);
    let ask = |value: f32| execution(&server, "m", &request(&[value]));
    assert_eq!([1.0, 2.0, 3.0, 4.0, 5.0].map(ask), [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(ask(5.0), 5.0, "the youngest is there");
    assert_eq!(ask(1.0), 6.0, "the oldest has gone");
}

#[test]
fn an_answer_without_room_is_executed_each_time_and_told_once() {
    let model = same("x:FP32[-1] -> y:FP32[-1]").batch(4).with("response_cache { enable: true }");
    let flag = "--cache-config=local,size=2000";
    let server = Server::with(Repository::new().with("m", model), &[flag]);
    let large = super::json!({"inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 1000], "data": vec![0.5; 1000]}
    ]});
    for _ in 0..3 {
        assert_eq!(server.infer("m", &large).numbers("y"), [0.5; 1000]);
    }
    server.logged("into response cache: Requested byte_size: ");
    assert_eq!(server.log().matches("is greater than total cache size: 2000").count(), 1);
    assert_eq!((server.executions("m"), hits_and_misses(&server, "m")), (3, (0, 3)));
    server.is_well();
}
