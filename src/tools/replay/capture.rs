//! A capture read from its file: the manifest, and the tensors it names.

use std::{collections::HashMap, fs, path::Path};

use bytes::Bytes;

use troupe_base::{
    numpy::{npy, npz},
    tap::manifest::{self, FORMAT, Manifest},
    tensor::{DataType, Shape, Tensor},
};

/// A tensor of the ensemble.
#[derive(Clone, Debug)]
pub(super) struct EdgeTensor {
    pub(super) tensor: Tensor,
    /// The batch size of the request that made it; 0: its maker does not batch.
    pub(super) batch: u32,
}

/// Captured tensors by name, and by the response of a decoupled step that they follow from.
pub(super) type EdgeTensors = HashMap<(String, Option<u64>), EdgeTensor>;

/// Everything captured.
#[derive(Debug)]
pub(super) struct CaptureFile {
    pub(super) manifest: Manifest,
    /// Of each request of the manifest.
    pub(super) values: Vec<EdgeTensors>,
}

/// Reads a file that a tap answered.
pub(super) fn read(path: &Path) -> Result<CaptureFile, String> {
    let wrong = |why: String| format!("{}: {why}", path.display());
    let file = fs::read(path).map_err(|it| wrong(it.to_string()))?;
    parse(&file.into()).map_err(wrong)
}

fn parse(file: &Bytes) -> Result<CaptureFile, String> {
    if file.starts_with(b"{") {
        let text = String::from_utf8_lossy(&file[..file.len().min(500)]);
        return Err(format!("the server refused the tap: {}", text.trim_end()));
    }
    let files: HashMap<String, Bytes> = npz::read(file)?.into_iter().collect();
    let manifest = files.get(manifest::NAME).ok_or("it has no manifest.json, as captures have")?;
    let manifest: Manifest = serde_json::from_slice(manifest)
        .map_err(|it| format!("its manifest.json cannot be read: {it}"))?;
    if manifest.format != FORMAT {
        return Err(format!("it is of format `{}`, expected `{FORMAT}`", manifest.format));
    }
    if manifest.steps.iter().enumerate().any(|(index, it)| it.step != index) {
        return Err("the steps in its manifest.json are not in their order".to_owned());
    }
    let values = |it: &manifest::ManifestRequest| {
        let value = |it: &manifest::ManifestTensor| {
            let array = files.get(&format!("{}.npy", it.array)).ok_or("it is missing".to_owned());
            let tensor = array.and_then(|array| tensor(it, array));
            let tensor = tensor.map_err(|why| format!("array `{}` in it: {why}", it.array))?;
            Ok(((it.tensor.clone(), it.iteration), EdgeTensor { tensor, batch: it.batch_size }))
        };
        it.tensors.iter().map(value).collect::<Result<EdgeTensors, String>>()
    };
    let values = manifest.requests.iter().map(values).collect::<Result<_, String>>()?;
    Ok(CaptureFile { manifest, values })
}

fn tensor(told: &manifest::ManifestTensor, file: &Bytes) -> Result<Tensor, String> {
    let unknown = || format!("it is of the unknown type `{}`", told.datatype);
    let dtype = DataType::parse(&told.datatype).ok_or_else(unknown)?;
    let array = npy::read(file)?;
    if npy::stored_as(array.dtype) != npy::stored_as(dtype) {
        let (found, expected) = (array.dtype.as_str(), dtype.as_str());
        return Err(format!("it holds {found}, expected {expected}"));
    }
    let shape = Shape::from_slice(&told.shape);
    Tensor::new(dtype, shape, array.data).map_err(|it| it.to_string())
}
