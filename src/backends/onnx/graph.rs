//! What a model declares of its inputs and outputs.

use ort::{
    session::Session,
    value::{TensorElementType, ValueType},
};

/// The tensors of a loaded model.
pub(super) struct ModelGraph {
    pub(super) inputs: Vec<DeclaredTensor>,
    /// Inputs with a value in the file: requests may leave them out.
    pub(super) initializers: Vec<DeclaredTensor>,
    pub(super) outputs: Vec<DeclaredTensor>,
}

/// One input or output.
pub(super) struct DeclaredTensor {
    pub(super) name: String,
    /// What it is when it is no tensor, in ONNX Runtime's words.
    pub(super) kind: Result<TensorForm, &'static str>,
}

/// Element type and dimensions of a declared tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorForm {
    pub(super) element: TensorElementType,
    /// -1: any size. Empty: a scalar.
    pub(super) dims: Vec<i64>,
}

/// Asks a session.
pub(super) fn read(session: &Session) -> ModelGraph {
    let outlet = |it: &ort::value::Outlet| declared(it.name(), it.dtype());
    ModelGraph {
        inputs: session.inputs().iter().map(outlet).collect(),
        initializers: session
            .overridable_initializers()
            .iter()
            .map(|it| declared(it.name(), it.dtype()))
            .collect(),
        outputs: session.outputs().iter().map(outlet).collect(),
    }
}

fn declared(name: &str, dtype: &ValueType) -> DeclaredTensor {
    let kind = match dtype {
        ValueType::Tensor { ty, shape, .. } => {
            Ok(TensorForm { element: *ty, dims: shape.to_vec() })
        }
        ValueType::Sequence(_) => Err("ONNX_TYPE_SEQUENCE"),
        ValueType::Map { .. } => Err("ONNX_TYPE_MAP"),
        ValueType::Optional(_) => Err("ONNX_TYPE_OPTIONAL"),
    };
    DeclaredTensor { name: name.to_owned(), kind }
}

impl DeclaredTensor {
    /// Triton's text for what requests cannot carry.
    pub(super) fn form(&self) -> Result<&TensorForm, String> {
        self.kind.as_ref().map_err(|kind| {
            format!(
                "Unsupported ONNX Type '{kind}' for I/O '{}', expected 'ONNX_TYPE_TENSOR'.",
                self.name
            )
        })
    }
}
