//! Pictures over HTTP: a file goes in, a model's input comes out; what is wrong says where.

use std::{fs, sync::LazyLock};

use serde_json::{Value, json};

use crate::support::{Answer, Repository, Server, at_once, ensemble, native, process};

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let decode = "file:UINT8[-1] -> image:UINT8[-1,-1,3]";
    let resize = "image:UINT8[-1,-1,3] -> input:FP32[1,-1,-1,3] transform:FP32[4]";
    let steps = [
        "image_decode: file=FILE -> image=IMAGE",
        "resize_normalize: image=IMAGE -> input=INPUT transform=TRANSFORM",
    ];
    let signature =
        "FILE:UINT8[-1] -> INPUT:FP32[1,-1,-1,3] TRANSFORM:FP32[4] IMAGE:UINT8[-1,-1,3]";
    let repository = Repository::new()
        .with("image_decode", native("image_decode", decode))
        .with("text_decode", native("image_decode", "file:BYTES[1] -> image:UINT8[-1,-1,3]"))
        .with("resize_normalize", native("resize_normalize", resize))
        .with("add_sub", native("add_sub", "a:FP32[4] b:FP32[4] -> c:FP32[4] d:FP32[4]"))
        .with("picture", ensemble(signature, &steps));
    Server::start(repository)
});

fn file(name: &str) -> Vec<u8> {
    fs::read(format!("tests/models/vision/{name}")).unwrap()
}

/// Sends a file as it is and asks for binary outputs.
fn send(model: &str, input: &str, data: &[u8]) -> Answer {
    let input = json!({
        "name": input, "datatype": "UINT8", "shape": [data.len()],
        "parameters": {"binary_data_size": data.len()},
    });
    let request = json!({"inputs": [input], "parameters": {"binary_data_output": true}});
    SERVER.http.infer_binary(model, &request, &[data])
}

/// The outputs' JSON and their bytes.
#[track_caller]
fn outputs(answer: &Answer) -> Vec<(Value, Vec<u8>)> {
    let length = answer.ok().header("inference-header-content-length").unwrap();
    let (header, mut rest) = answer.body.split_at(length.parse().unwrap());
    let header: Value = serde_json::from_slice(header).unwrap();
    let take = |output: &Value| {
        let size = output["parameters"]["binary_data_size"].as_u64().unwrap() as usize;
        let (data, tail) = rest.split_at(size);
        rest = tail;
        (output.clone(), data.to_vec())
    };
    header["outputs"].as_array().unwrap().iter().map(take).collect()
}

fn floats(data: &[u8]) -> Vec<f32> {
    data.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
}

#[test]
fn a_file_becomes_a_models_input() {
    let outputs = outputs(&send("picture", "FILE", &file("png_exif6.png")));
    let of = |name: &str| outputs.iter().find(|(it, _)| it["name"] == name).unwrap();
    let (header, pixels) = of("IMAGE");
    assert_eq!(header["shape"], json!([29, 19, 3]));
    assert_eq!(*pixels, file("png_exif6.rgb"));
    let (header, data) = of("INPUT");
    // 19 x 29 grows to sides of 32 at least.
    assert_eq!(header["shape"], json!([1, 64, 32, 3]));
    let values = floats(data);
    assert_eq!(values.len(), 64 * 32 * 3);
    assert!(values.iter().all(|it| (0.0..=255.0).contains(it) && it.fract() == 0.0));
    assert_eq!(floats(&of("TRANSFORM").1), [32.0 / 19.0, 64.0 / 29.0, 0.0, 0.0]);
}

#[test]
fn a_file_may_come_as_an_element_of_bytes() {
    let file = file("webp_lossless.webp");
    let element = [&(file.len() as u32).to_le_bytes(), &file[..]].concat();
    let input = json!({
        "name": "file", "datatype": "BYTES", "shape": [1],
        "parameters": {"binary_data_size": element.len()},
    });
    let answer = SERVER.http.infer_binary("text_decode", &json!({"inputs": [input]}), &[&element]);
    assert_eq!(answer.shape("image"), json!([19, 29, 3]));
}

#[test]
fn a_bad_file_is_an_error_of_its_step() {
    let step = "in ensemble 'picture', step 0 (model 'image_decode' version 1, instance \
                'image_decode_0'): input 'file': ";
    let whole = file("jpeg_420.jpg");
    let mut large = whole.clone();
    let at = large.windows(2).position(|it| it == b"\xFF\xC0").unwrap();
    large[at + 5..at + 9].copy_from_slice(&[0xC3, 0x50, 0xC3, 0x50]);
    for (data, expected) in [
        (Vec::new(), "expected a JPEG, PNG or WebP file, got 0 bytes"),
        (b"hello".to_vec(), "expected a JPEG, PNG or WebP file, got 5 bytes that begin with 68 65"),
        (file("gif.gif"), "expected a JPEG, PNG or WebP file, got 1320 bytes of GIF that begin"),
        (whole[..700].to_vec(), "cannot decode JPEG of 700 bytes: it ends early"),
        (large, "cannot decode JPEG of 968 bytes: it has 50000 x 50000 pixels, expected at most"),
    ] {
        let answer = send("picture", "FILE", &data);
        answer.refuses(400, &format!("{step}{expected}"));
    }
    SERVER.is_well();
}

#[test]
fn bad_files_do_not_disturb_good_ones() {
    let (good, bad) = (file("jpeg_progressive.jpg"), file("jpeg_progressive.jpg")[..500].to_vec());
    let answers = at_once(8, |caller| {
        let answers = (0..10).map(|turn| match (caller + turn) % 3 {
            0 => send("picture", "FILE", &bad).status == 400,
            1 => outputs(&send("picture", "FILE", &good)).len() == 3,
            _ => {
                let request = crate::support::http::floats(&[("a", &[1.0; 4]), ("b", &[2.0; 4])]);
                SERVER.infer("add_sub", &request).numbers("c") == [3.0; 4]
            }
        });
        answers.filter(|it| *it).count()
    });
    assert_eq!(answers, [10; 8]);
    SERVER.is_well();
}

#[test]
fn a_bomb_costs_no_memory() {
    let request = |model| send(model, "file", &file("png_rgb.png")).status;
    assert_eq!(request("image_decode"), 200);
    let before = peak();
    for (name, at, size) in [
        // Sides in the header, within the limit of pixels where that is 64 Mi.
        ("jpeg_420.jpg", b"\xFF\xC0".as_slice(), [0x20, 0x00, 0x20, 0x00]),
        ("webp_lossy_alpha.webp", b"\x9D\x01\x2A", [0xFF, 0x3F, 0xFF, 0x3F]),
    ] {
        let mut bomb = file(name);
        let found = bomb.windows(at.len()).position(|it| it == at).unwrap();
        let start = found + at.len() + if at.len() == 2 { 3 } else { 0 };
        bomb[start..start + 4].copy_from_slice(&size);
        send("image_decode", "file", &bomb).refuses(400, "input 'file': cannot decode ");
    }
    let grown = peak() - before;
    assert!(grown < 64, "{grown} MiB more");
}

/// The most memory the server has had, in MiB.
fn peak() -> u64 {
    process::memory_mib(SERVER.pid, "VmHWM")
}
