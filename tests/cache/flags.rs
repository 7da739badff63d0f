//! Flags and configs of the response cache that are refused, and what they say.

use super::{LOCAL, cached, counting, execution, gauge, request};
use crate::support::{Repository, Server, ensemble};

#[test]
fn without_a_cache_a_model_is_executed_each_time() {
    let server = Server::start(Repository::new().with("m", cached("")));
    assert_eq!([1, 2].map(|_| execution(&server, "m", &request(&[1.0]))), [1.0, 2.0]);
    assert_eq!(gauge(&server, "nv_cache_num_lookups"), None);
    let row = server.logged("cache_enabled");
    assert!(row.contains("| 0"), "{row}");
}

#[test]
fn the_old_flag_is_a_cache_in_memory() {
    let repository = Repository::new().with("m", cached(""));
    let server = Server::with(repository, &["--response-cache-byte-size=1048576"]);
    assert_eq!([1, 2].map(|_| execution(&server, "m", &request(&[1.0]))), [1.0, 1.0]);
    server.logged("--response-cache-byte-size is deprecated");
}

#[test]
fn flags_that_mean_no_cache_are_refused() {
    let repository = Repository::new().with("m", counting());
    for (flags, expected) in [
        (
            vec!["--cache-config=local,size=1", "--response-cache-byte-size=1"],
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided.",
        ),
        (vec!["--cache-config=size=1"], "No cache specified. --cache-config option format is"),
        (
            vec!["--cache-config=local,size"],
            "format is '<cache name>,<setting>=<value>'. Got local",
        ),
        (vec!["--cache-config=local,x=1"], "cache 'local' has: size"),
        (vec!["--cache-config=redis,host=h"], "Failed to initialize RedisCache, didn't specify"),
        (vec!["--cache-config=none,x=1"], "unable to find 'libtritoncache_none.so' for cache."),
    ] {
        let ended = Server::fails(&repository, &flags);
        assert!(ended.output.contains(expected), "{flags:?}: {}", ended.output);
        assert_ne!(ended.code, Some(0));
    }
}

#[test]
fn models_whose_answers_cannot_be_kept_are_refused_in_tritons_words() {
    let decoupled = "model_transaction_policy { decoupled: true }";
    let repository = Repository::new()
        .with("decoupled", cached("").with(decoupled))
        .with("step", counting().with(decoupled))
        .with(
            "e",
            ensemble("A:FP32[-1] -> Y:FP32[1]", &["step: x=A -> y=Y"])
                .batch(4)
                .with("response_cache { enable: true }"),
        );
    let server = Server::with(repository, &["--exit-on-error=false", LOCAL]);
    for model in ["decoupled", "e"] {
        let state = server.state(model);
        let text = format!(
            "Response Cache does not currently support model {model} with 'decoupled' transaction \
             policy. Please disable the response cache."
        );
        assert!(state.contains(&text), "{state}");
        assert!(state.contains("config.pbtxt:"), "{state}");
    }
}
