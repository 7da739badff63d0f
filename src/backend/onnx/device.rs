//! Which execution providers the device of an instance needs.

use ort::{
    environment::Environment,
    ep::{CUDA, ExecutionProviderDispatch},
    session::Session,
};

use crate::{
    backend::InstanceName,
    error::{Error, Result},
};

/// What a session of `instance` is built with: CUDA on its GPU, or nothing on the CPU.
///
/// An instance that must run on a GPU and cannot is an error; one whose kind the server chose runs
/// on the CPU instead, with a warning.
pub(super) fn providers(
    environment: &Environment,
    model: &str,
    instance: &InstanceName,
) -> Result<Vec<ExecutionProviderDispatch>> {
    if instance.kind != "GPU" {
        return Ok(Vec::new());
    }
    let cuda = CUDA::default().with_device_id(instance.device).build().error_on_failure();
    // A session that is never built tells what the library can do, and why not.
    let tried = Session::builder(environment).and_then(|mut it| cuda.register(&mut it));
    let usable = tried.map_err(|error| error.to_string());
    Ok(if runs_on_gpu(model, instance, usable)? { vec![cuda] } else { Vec::new() })
}

fn runs_on_gpu(model: &str, instance: &InstanceName, usable: Result<(), String>) -> Result<bool> {
    let Err(reason) = usable else { return Ok(true) };
    let InstanceName { name, device, .. } = instance;
    if instance.is_auto {
        tracing::warn!(
            "instance '{name}' of model '{model}' runs on the CPU: ONNX Runtime cannot use GPU \
             {device}: {reason}"
        );
        return Ok(false);
    }
    Err(Error::unsupported(format!(
        "instance '{name}' of model '{model}' has kind KIND_GPU but ONNX Runtime cannot use GPU \
         {device}: {reason}; a library that can comes with the package onnxruntime-gpu, name it \
         with --backend-config=onnxruntime,library=PATH"
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn check(is_auto: bool, usable: Result<(), &str>, expected: Result<bool, &str>) {
        let instance = InstanceName {
            name: "m_0".into(),
            index: 0,
            kind: "GPU",
            device: 3,
            is_auto,
            health: Arc::default(),
        };
        let found = runs_on_gpu("m", &instance, usable.map_err(str::to_owned));
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(start)) => assert!(error.to_string().starts_with(start), "{error}"),
            (found, expected) => panic!("{found:?} is not {expected:?}"),
        }
    }

    #[test]
    fn a_gpu_that_was_asked_for_is_used_or_the_load_fails() {
        check(false, Ok(()), Ok(true));
        let text = "instance 'm_0' of model 'm' has kind KIND_GPU but ONNX Runtime cannot use GPU \
                    3: no CUDA in this build; ";
        check(false, Err("no CUDA in this build"), Err(text));
    }

    #[test]
    fn a_gpu_the_server_chose_is_used_if_it_can_be() {
        check(true, Ok(()), Ok(true));
        check(true, Err("no CUDA in this build"), Ok(false));
    }
}
