//! An example request for a model: the `troupe infer` line that works with what it takes.

use super::wiring::StepTensor;
use troupe_base::{tensor::DataType, text::shell_word};

/// Elements of an example at most; larger inputs come from a file.
const MAX_EXAMPLE_ELEMENTS: i64 = 32;
/// What stands for a dimension of any size.
const EXAMPLE_SIZE: i64 = 2;

/// The command; its inputs are those that a request must have.
pub(super) fn infer(model: &str, inputs: &[StepTensor]) -> String {
    let needed: Vec<_> = inputs.iter().filter(|it| !it.is_optional).collect();
    let arguments = needed.iter().map(|it| format!(" --input {}", argument(it)));
    format!("troupe infer {model}{}", arguments.collect::<String>())
}

fn argument(input: &StepTensor) -> String {
    let StepTensor { name, dtype, dims, .. } = input;
    let dims: Vec<i64> =
        dims.iter().map(|size| if *size < 0 { EXAMPLE_SIZE } else { *size }).collect();
    let count: i64 = dims.iter().product();
    let value = match (dtype, &dims[..]) {
        (DataType::Bytes, [1]) => "hello".to_owned(),
        (DataType::Uint8, [_]) if input.dims == [-1] => format!("@{name}.jpg"),
        _ if MAX_EXAMPLE_ELEMENTS < count => format!("@{name}.npy"),
        _ => nested(*dtype, &dims, &mut 0),
    };
    shell_word(&format!("{name}={value}"))
}

/// JSON of this shape; its numbers count up.
fn nested(dtype: DataType, dims: &[i64], next: &mut i64) -> String {
    let [size, inner @ ..] = dims else {
        *next += 1;
        return match dtype {
            DataType::Bytes => format!("\"text {next}\""),
            DataType::Bool => (*next % 2 == 1).to_string(),
            _ => next.to_string(),
        };
    };
    let elements: Vec<String> = (0..*size).map(|_| nested(dtype, inner, next)).collect();
    format!("[{}]", elements.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::testing::tensors;

    #[test]
    fn examples_have_the_type_and_the_shape_of_their_input() {
        for (written, expected) in [
            ("text:BYTES[1]", "text=hello"),
            ("texts:BYTES[-1]", r#"'texts=["text 1", "text 2"]'"#),
            ("x:FP32[4]", "'x=[1, 2, 3, 4]'"),
            ("x:INT64[2,-1]", "'x=[[1, 2], [3, 4]]'"),
            ("on:BOOL[2]", "'on=[true, false]'"),
            ("picture:UINT8[-1]", "picture=@picture.jpg"),
            ("image:FP32[3,224,224]", "image=@image.npy"),
            ("x:0:FP32[1]", "'x:0=[1]'"),
        ] {
            let input = &tensors(written)[0];
            assert_eq!(argument(input), expected, "{written}");
        }
        let inputs = tensors("text:BYTES[1] scale:FP32[1]?");
        assert_eq!(infer("m", &inputs), "troupe infer m --input text=hello");
    }
}
