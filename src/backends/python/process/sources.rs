//! The Python files of the backend, as an interpreter is given them.

use std::collections::HashMap;

use flate2::{Compression, write::ZlibEncoder};

/// Each by the name the others import it under; those of the package `troupe` are also what
/// people install to test their models.
pub(crate) const SOURCES: [(&str, &str); 42] = [
    ("troupe_fork_server", include_str!("../py/fork_server.py")),
    ("troupe_children", include_str!("../py/children.py")),
    ("troupe_forked", include_str!("../py/forked.py")),
    ("troupe_preload", include_str!("../py/preload.py")),
    ("troupe_worker", include_str!("../py/worker.py")),
    ("troupe_coroutines", include_str!("../py/coroutines.py")),
    ("troupe_reader", include_str!("../py/reader.py")),
    ("troupe_loading", include_str!("../py/loading.py")),
    ("troupe_snapshot", include_str!("../py/snapshot.py")),
    ("troupe_failures", include_str!("../py/failures.py")),
    ("troupe_decode", include_str!("../py/decode.py")),
    ("troupe_encode", include_str!("../py/encode.py")),
    ("troupe_calls", include_str!("../py/calls.py")),
    ("troupe_packing", include_str!("../py/packing.py")),
    ("troupe_replies", include_str!("../py/replies.py")),
    ("troupe_awaiting", include_str!("../py/awaiting.py")),
    ("troupe_spin", include_str!("../py/spin.py")),
    ("troupe_frames", include_str!("../py/frames.py")),
    ("troupe_segments", include_str!("../py/segments.py")),
    ("triton_python_backend_utils", include_str!("../py/triton_python_backend_utils.py")),
    ("troupe_pacing", include_str!("../py/pacing.py")),
    ("troupe_senders", include_str!("../py/senders.py")),
    ("troupe_requests", include_str!("../py/requests.py")),
    ("troupe_tensors", include_str!("../py/tensors.py")),
    ("troupe_strings", include_str!("../py/strings.py")),
    ("troupe_metrics", include_str!("../py/metrics.py")),
    ("troupe_logger", include_str!("../py/logger.py")),
    ("troupe_standard_logging", include_str!("../py/standard_logging.py")),
    ("troupe_title", include_str!("../py/title.py")),
    ("troupe_types", include_str!("../py/types.py")),
    ("troupe_model_config", include_str!("../py/model_config.py")),
    ("troupe_dlpack", include_str!("../py/dlpack.py")),
    ("troupe", include_str!("../../../python/troupe/__init__.py")),
    ("troupe.adapter", include_str!("../../../python/troupe/adapter.py")),
    ("troupe.configuration", include_str!("../../../python/troupe/configuration.py")),
    ("troupe.errors", include_str!("../../../python/troupe/errors.py")),
    ("troupe.hints", include_str!("../../../python/troupe/hints.py")),
    ("troupe.marks", include_str!("../../../python/troupe/marks.py")),
    ("troupe.pipelines", include_str!("../../../python/troupe/pipelines.py")),
    ("troupe.sequences", include_str!("../../../python/troupe/sequences.py")),
    ("troupe.tracing", include_str!("../../../python/troupe/tracing.py")),
    ("troupe.signature", include_str!("../../../python/troupe/signature.py")),
];

/// Takes the sources from standard input, a socket: nothing is written to a disk.
pub(crate) const BOOTSTRAP: &str = "import _socket,json,zlib\n\
    control=_socket.socket(fileno=0)\n\
    sources=json.loads(zlib.decompress(control.recv(1<<20)))\n\
    control.detach()\n\
    exec(compile(sources['troupe_fork_server'],'<troupe>/troupe_fork_server.py','exec'),\
    {'SOURCES':sources,'__name__':'troupe_fork_server'})";

/// What it reads: one message, which the kernel limits to about 200 KiB, so it is packed.
pub(crate) fn packed() -> std::io::Result<Vec<u8>> {
    let mut packer = ZlibEncoder::new(Vec::new(), Compression::default());
    serde_json::to_writer(&mut packer, &HashMap::from(SOURCES))?;
    packer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_fit_into_one_message() {
        let size = packed().unwrap().len();
        assert!(size < 100 << 10, "{size} bytes");
    }
}
