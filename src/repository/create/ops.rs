//! Configs of native ops to begin with: for each op, one that loads as it is.

/// The op, what it does, and its inputs, outputs and parameters.
pub(super) struct OpTemplate {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) config: &'static str,
}

/// All ops of the server.
pub(super) const TEMPLATES: &[OpTemplate] = &[
    OpTemplate {
        name: "add_sub",
        about: "the sum and the difference of two tensors",
        config: "\
input [
  { name: \"a\" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: \"b\" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [
  { name: \"sum\" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: \"difference\" data_type: TYPE_FP32 dims: [ -1 ] }
]
",
    },
    OpTemplate {
        name: "concat",
        about: "its inputs one behind the other, along the first dimension",
        config: "\
input [
  { name: \"first\" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: \"second\" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [ { name: \"all\" data_type: TYPE_FP32 dims: [ -1 ] } ]
",
    },
    OpTemplate {
        name: "crop_warp",
        about: "boxes cut out of a picture, each scaled to the size of `crops`",
        config: "\
input [
  { name: \"image\" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] },
  { name: \"boxes\" data_type: TYPE_FP32 dims: [ -1, 4, 2 ] }
]
output [ { name: \"crops\" data_type: TYPE_FP32 dims: [ -1, 1, 32, 100 ] } ]
",
    },
    OpTemplate {
        name: "ctc_decode",
        about: "logits of a network that reads words into texts; their last dimension is one more \
                than the alphabet",
        config: "\
input [ { name: \"logits\" data_type: TYPE_FP32 dims: [ -1, 26, 37 ] } ]
output [ { name: \"text\" data_type: TYPE_STRING dims: [ -1 ] } ]
parameters { key: \"alphabet\" value { string_value: \"0123456789abcdefghijklmnopqrstuvwxyz\" } }
",
    },
    OpTemplate {
        name: "delay_ms",
        about: "its input, after so many milliseconds",
        config: "\
input [ { name: \"x\" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: \"y\" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters { key: \"delay_ms\" value { string_value: \"10\" } }
",
    },
    OpTemplate {
        name: "east_boxes",
        about: "the maps of an EAST network into boxes, in pixels of the picture",
        config: "\
input [
  { name: \"score\" data_type: TYPE_FP32 dims: [ -1, -1, -1, 1 ] },
  { name: \"geometry\" data_type: TYPE_FP32 dims: [ -1, -1, -1, 5 ] },
  { name: \"transform\" data_type: TYPE_FP32 dims: [ 4 ] }
]
output [
  { name: \"boxes\" data_type: TYPE_FP32 dims: [ -1, 4, 2 ] },
  { name: \"scores\" data_type: TYPE_FP32 dims: [ -1 ] }
]
parameters { key: \"score_threshold\" value { string_value: \"0.5\" } }
parameters { key: \"nms_threshold\" value { string_value: \"0.4\" } }
",
    },
    OpTemplate {
        name: "identity",
        about: "its inputs as they are",
        config: "\
input [ { name: \"x\" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: \"y\" data_type: TYPE_FP32 dims: [ -1 ] } ]
",
    },
    OpTemplate {
        name: "image_decode",
        about: "a picture's file (JPEG, PNG or WebP) into its pixels, upright",
        config: "\
input [ { name: \"file\" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: \"image\" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] } ]
",
    },
    OpTemplate {
        name: "mul",
        about: "the product of two tensors",
        config: "\
input [
  { name: \"a\" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: \"b\" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [ { name: \"product\" data_type: TYPE_FP32 dims: [ -1 ] } ]
",
    },
    OpTemplate {
        name: "resize_normalize",
        about: "pixels as a network wants them: its sides multiples of 32, at most 1280",
        config: "\
input [ { name: \"image\" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] } ]
output [
  { name: \"input\" data_type: TYPE_FP32 dims: [ 1, -1, -1, 3 ] },
  # scale x, scale y, offset x, offset y: from the picture's pixels to those of the input
  { name: \"transform\" data_type: TYPE_FP32 dims: [ 4 ] }
]
parameters { key: \"mode\" value { string_value: \"multiple\" } }
parameters { key: \"multiple_of\" value { string_value: \"32\" } }
parameters { key: \"max_side\" value { string_value: \"1280\" } }
",
    },
    OpTemplate {
        name: "split",
        about: "its input in equal parts, one an output, along the first dimension",
        config: "\
input [ { name: \"all\" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [
  { name: \"first\" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: \"second\" data_type: TYPE_FP32 dims: [ -1 ] }
]
",
    },
];

/// The config of an op; an op that is none lists those there are.
pub(super) fn config(op: &str) -> Result<String, String> {
    let Some(OpTemplate { name, about, config }) = TEMPLATES.iter().find(|it| it.name == op) else {
        let lines = TEMPLATES.iter().map(|it| format!("  {:18}{}", it.name, it.about));
        let lines: Vec<String> = lines.collect();
        return Err(format!("there is no op `{op}`; the ops are:\n{}", lines.join("\n")));
    };
    let parameter = format!("parameters {{ key: \"op\" value {{ string_value: \"{name}\" }} }}\n");
    Ok(format!(
        "# {name}: {about}.\n# It runs in the server itself. Names and sizes are yours to change: -1 \
         is any size.\nbackend: \"native\"\n{config}{parameter}"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{TEMPLATES, config};
    use troupe_backends::native;
    use troupe_base::config::{self as base, ServerFeatures};

    #[test]
    fn every_op_has_a_config_that_loads() {
        let written: Vec<&str> = TEMPLATES.iter().map(|it| it.name).collect();
        assert_eq!(written, native::names().collect::<Vec<_>>());
        for name in written {
            let mut draft = base::read_text(&config(name).unwrap(), name).unwrap();
            draft.complete_from_directory("m", &[]).unwrap();
            let finished = draft.finish(&ServerFeatures::default()).unwrap();
            native::prepare(Arc::new(finished)).map(|_| ()).unwrap();
        }
        assert!(
            config("image_decod").unwrap_err().contains("  image_decode      a picture's file")
        );
    }
}
