//! What the server knows of a backend by its name alone: a table that configs are read with.

/// Properties of a backend that decide before, or without, running it.
#[derive(Debug, PartialEq, Eq)]
pub struct BackendTraits {
    /// As configs spell it.
    pub name: &'static str,
    /// Its processes read tensors out of shared memory: what large bodies are best received into.
    pub shares_memory: bool,
    /// Its models can run on a GPU.
    pub can_use_gpus: bool,
    /// Instances of a group on a CPU that does not say how many.
    pub default_cpu_count: i32,
    /// It looks at `optimization.graph` and `optimization.execution_accelerators` itself.
    pub reads_optimization: bool,
    /// Its models see the parameters of a request.
    pub reads_parameters: bool,
}

/// What holds of a backend that is not in the table.
const PLAIN: BackendTraits = BackendTraits {
    name: "",
    shares_memory: false,
    can_use_gpus: true,
    default_cpu_count: 1,
    reads_optimization: false,
    reads_parameters: false,
};

const TRAITS: &[BackendTraits] = &[
    BackendTraits { name: "native", can_use_gpus: false, ..PLAIN },
    BackendTraits { name: "onnxruntime", default_cpu_count: 2, reads_optimization: true, ..PLAIN },
    BackendTraits { name: "python", shares_memory: true, reads_parameters: true, ..PLAIN },
    BackendTraits { name: "tensorflow", default_cpu_count: 2, ..PLAIN },
];

impl BackendTraits {
    /// Those of the backend called `name`.
    pub fn of(name: &str) -> &'static BackendTraits {
        TRAITS.iter().find(|traits| traits.name == name).unwrap_or(&PLAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_the_table_is_plain() {
        for (name, shares_memory, can_use_gpus, count) in [
            ("python", true, true, 1),
            ("native", false, false, 1),
            ("onnxruntime", false, true, 2),
            ("tensorflow", false, true, 2),
            ("", false, true, 1),
            ("tensorrt", false, true, 1),
        ] {
            let traits = BackendTraits::of(name);
            let got = (traits.shares_memory, traits.can_use_gpus, traits.default_cpu_count);
            assert_eq!(got, (shares_memory, can_use_gpus, count), "{name}");
        }
    }
}
