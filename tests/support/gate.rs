//! A gate that a Python model waits at until the test lets it through: order without clocks.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{Model, Repository, models::execute, until};

/// Two named pipes: a model writes to one when it arrives, a byte from the other lets it through.
pub(crate) struct Gate {
    path: PathBuf,
    pass: File,
    arrived: File,
}

impl Gate {
    /// A closed gate.
    pub(crate) fn new(repository: &Repository, name: &str) -> Gate {
        let path = repository.beside(name);
        let pipe = |end: &str| {
            let path = path.with_extension(end);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            // Open for both, so that neither side waits for the other to open it.
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap()
        };
        Gate { pass: pipe("pass"), arrived: pipe("arrived"), path }
    }

    /// Waits until somebody stands before it.
    pub(crate) fn is_reached(&self) {
        until("a request at the gate", || (&self.arrived).read_exact(&mut [0]).is_ok());
    }

    /// An identity from `x` to `y` that waits here, once for each `execute`.
    pub(crate) fn model(&self, dtype_and_dims: &str) -> Model {
        self.guard(
            &format!("x:{dtype_and_dims} -> y:{dtype_and_dims}"),
            "
            pass_gate()
            get = pb_utils.get_input_tensor_by_name
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy())])
                for it in requests
            ]",
        )
    }

    /// A model whose `execute` may call `pass_gate()`.
    pub(crate) fn guard(&self, signature: &str, body: &str) -> Model {
        self.passed_by(execute(signature, body))
    }

    /// The same model; it may call `pass_gate()`.
    pub(crate) fn passed_by(&self, mut model: Model) -> Model {
        let path = self.path.display();
        let source = model.source.take().unwrap_or_default();
        model.source = Some(format!(
            "{source}\n\ndef pass_gate():\n    \
             open('{path}.arrived', 'wb', buffering=0).write(b'.')\n    \
             open('{path}.pass', 'rb', buffering=0).read(1)\n"
        ));
        model
    }

    /// Lets so many through, now or when they come.
    pub(crate) fn let_through(&self, count: usize) {
        (&self.pass).write_all(&vec![b'.'; count]).unwrap();
    }
}
