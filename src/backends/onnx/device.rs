//! On which device an instance runs: what its config says, if the library can.

use ort::{
    environment::Environment,
    ep::{CUDA, ExecutionProvider},
    session::Session,
};

use troupe_base::{
    backend::InstanceName,
    error::{Error, Result},
};

/// The instance as it can run.
///
/// Fails if it must run on a GPU and the library cannot. One whose kind the server chose becomes an
/// instance on the CPU then, with a warning.
pub(super) fn settled(
    environment: &Environment,
    model: &str,
    instance: &InstanceName,
) -> Result<InstanceName> {
    if instance.kind != "GPU" {
        return Ok(instance.clone());
    }
    // A session that is never built tells whether the library can, and why not.
    let cuda = CUDA::default().with_device_id(instance.device);
    let tried = Session::builder(environment).and_then(|mut it| cuda.register(&mut it));
    // What stands before is where in its source the library said so.
    let reason =
        |text: &str| text.rsplit("[ONNXRuntimeError] : ").next().unwrap_or(text).trim().to_owned();
    decided(model, instance, tried.map_err(|error| reason(error.message())))
}

fn decided(
    model: &str,
    instance: &InstanceName,
    usable: Result<(), String>,
) -> Result<InstanceName> {
    let Err(reason) = usable else { return Ok(instance.clone()) };
    let InstanceName { name, device, .. } = instance;
    if instance.is_auto {
        tracing::warn!(
            "instance '{name}' of model '{model}' runs on the CPU: ONNX Runtime cannot use GPU \
             {device}: {reason}"
        );
        return Ok(InstanceName { kind: "CPU", device: 0, ..instance.clone() });
    }
    Err(Error::unsupported(format!(
        "instance '{name}' of model '{model}' has kind KIND_GPU but ONNX Runtime cannot use GPU \
         {device}: {reason}; it needs the library of the package onnxruntime-gpu, which \
         --backend-config=onnxruntime,library=PATH can name, and CUDA's own in the loader's path"
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn check(is_auto: bool, usable: Result<(), &str>, expected: Result<&str, &str>) {
        let instance = InstanceName {
            name: "m_0".into(),
            index: 0,
            kind: "GPU",
            device: 3,
            is_auto,
            health: Arc::default(),
        };
        let found = decided("m", &instance, usable.map_err(str::to_owned));
        match (found, expected) {
            (Ok(found), Ok(kind)) => assert_eq!(found.kind, kind),
            (Err(error), Err(start)) => assert!(error.to_string().starts_with(start), "{error}"),
            (found, expected) => panic!("{found:?} is not {expected:?}"),
        }
    }

    #[test]
    fn a_gpu_that_was_asked_for_is_used_or_the_load_fails() {
        check(false, Ok(()), Ok("GPU"));
        let text = "instance 'm_0' of model 'm' has kind KIND_GPU but ONNX Runtime cannot use GPU \
                    3: no CUDA in this build; ";
        check(false, Err("no CUDA in this build"), Err(text));
    }

    #[test]
    fn a_gpu_the_server_chose_is_used_if_it_can_be() {
        check(true, Ok(()), Ok("GPU"));
        check(true, Err("no CUDA in this build"), Ok("CPU"));
    }
}
