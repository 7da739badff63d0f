//! What Python models log and print: levels, places, one line each, from everywhere.

use serde_json::json;

use crate::support::{
    Repository, Server,
    http::floats,
    models::{execute, python},
    process, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

#[test]
fn a_logger_has_levels_and_names_the_line_that_called_it() {
    let model = execute(
        "x:FP32[-1] -> y:BYTES[-1]",
        "
        log = pb_utils.Logger
        log.log('level unspecified')
        log.log('as a warning', log.WARNING)
        log.log('as an error', level=log.ERROR)
        log.log('not shown', log.VERBOSE)
        log.log_info('an info')
        log.log_warn('a warning')
        log.log_error('an error')
        log.log_verbose('not shown either')
        log.log_info('two\\nlines\\x1b[31m, a bell \\x07 and half a character \\ud800')
        log.log_info('x' * 10_000)
        said = []
        for call in (
            lambda: log.log('a number as level', 1),
            lambda: log.log('no level', None),
            lambda: log.log_info(None),
            lambda: log.log_warn(7),
        ):
            try:
                call()
            except TypeError:
                said.append(b'TypeError')
        y = pb_utils.Tensor('y', np.array(said, dtype=np.object_))
        return [pb_utils.InferenceResponse([y])]",
    );
    let server = Server::start(Repository::of([("m", model)]));
    let said = server.infer("m", &floats(&[("x", &[1.0])])).output("y");
    assert_eq!(said, json!(vec!["TypeError"; 4]));
    for (text, level) in [
        ("level unspecified", 'I'),
        ("as a warning", 'W'),
        ("as an error", 'E'),
        ("an info", 'I'),
        ("a warning", 'W'),
        ("an error", 'E'),
    ] {
        let line = server.logged(&format!("] \"{text}"));
        assert!(line.starts_with(level), "{line}");
        assert!(line.contains(" model.py:"), "{line}");
        assert!(line.contains("model=m") && line.contains("instance=m_0"), "{line}");
    }
    let line = server.logged("two\\nlines");
    let expected = "two\\nlines\\u001b[31m, a bell \\u0007 and half a character ?";
    assert!(line.contains(expected), "{line}");
    assert!(server.logged("xxxx").contains("xx … 1808 characters cut"));
    assert!(!server.log().contains("not shown"), "{}", server.log());
    server.is_well();
}

#[test]
fn verbose_lines_are_shown_when_asked_for_and_cost_the_others_nothing_when_not() {
    let chatty = execute(
        FLOATS,
        "
        for number in range(2000):
            pb_utils.Logger.log_verbose(f'chatter {number}')
        pb_utils.Logger.log_error('what matters')
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
    );
    for flags in [&[][..], &["--log-verbose=1"]] {
        let server = Server::with(Repository::of([("m", chatty.clone())]), flags);
        server.infer("m", &floats(&[("x", &[1.0])])).ok();
        let is_verbose = !flags.is_empty();
        if is_verbose {
            server.logged("chatter 1");
        } else {
            server.logged("what matters");
        }
        assert_eq!(server.log().contains("chatter"), is_verbose);
    }
}

#[test]
fn models_log_from_initialize_finalize_and_threads_and_print_anywhere() {
    let model = python(
        FLOATS,
        "
        import sys, threading

        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.Logger.log_info('in initialize')
                print('printed in initialize')
                print('to stderr', file=sys.stderr)

            def execute(self, requests):
                log = lambda text: pb_utils.Logger.log_info(text)
                threads = [threading.Thread(target=log, args=(f'thread {it}.',)) for it in range(8)]
                [it.start() for it in threads]
                [it.join() for it in threads]
                x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]

            def finalize(self):
                pb_utils.Logger.log_warn('in finalize')
                print('printed in finalize')
        ",
    );
    let flags = ["--model-control-mode=explicit", "--load-model=m"];
    let server = Server::with(Repository::of([("m", model)]), &flags);
    server.infer("m", &floats(&[("x", &[1.0])])).ok();
    server.unload("m").ok();
    let threads: Vec<String> = (0..8).map(|it| format!("thread {it}.")).collect();
    let logged = ["in initialize", "in finalize"].into_iter();
    for text in logged.chain(threads.iter().map(String::as_str)) {
        let line = server.logged(&format!("] \"{text}"));
        assert!(line.contains("model.py:") && line.contains("model=m"), "{line}");
    }
    for (text, stream) in [
        ("printed in initialize", "stdout"),
        ("to stderr", "stderr"),
        ("printed in finalize", "stdout"),
    ] {
        let line = server.logged(text);
        for part in ["model=m", "instance=m_0", &format!("stream={stream}")] {
            assert!(line.contains(part), "no {part} in {line}");
        }
    }
    until("the worker to end", || process::descendants(server.pid).len() <= 1);
}

#[test]
fn the_standard_logging_of_models_has_its_levels_and_places() {
    let model = python(
        FLOATS,
        "
        import contextlib
        import io
        import logging
        import sys

        logging.warning('at import')
        ours = logging.getLogger('ours')
        ours.propagate = False
        ours.setLevel(logging.DEBUG)
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter('%(name)s says %(message)s'))
        ours.addHandler(handler)

        class TritonPythonModel:
            def execute(self, requests):
                logging.info('not asked for')
                logging.warning('a warning of %s', 7)
                logging.getLogger('library').error('an error')
                try:
                    {}['no such key']
                except KeyError:
                    logging.exception('caught')
                ours.debug('a detail')
                kept = io.StringIO()
                with contextlib.redirect_stderr(kept):
                    quiet = logging.StreamHandler()
                quiet.emit(logging.makeLogRecord({'msg': 'elsewhere'}))
                assert kept.getvalue() == 'elsewhere\\n'
                x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]
        ",
    );
    let server = Server::start(Repository::of([("m", model)]));
    server.infer("m", &floats(&[("x", &[1.0])])).ok();
    for (text, level) in [
        ("at import", 'W'),
        ("a warning of 7", 'W'),
        ("an error", 'E'),
        ("caught\\nTraceback (most recent call last):", 'E'),
        ("ours says a detail", 'I'),
    ] {
        let line = server.logged(&format!("] \"{text}"));
        assert!(line.starts_with(level) && line.contains(" model.py:"), "{line}");
        assert!(line.contains("model=m") && line.contains("instance=m_0"), "{line}");
    }
    let log = server.log();
    assert!(log.contains("KeyError: 'no such key'") && !log.contains("not asked for"), "{log}");
    assert!(!log.contains("elsewhere") && !log.contains("WARNING:root"), "{log}");
    server.is_well();
}
