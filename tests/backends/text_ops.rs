//! Text spotting without its networks: boxes from maps, crops from a picture, text from crops.

use serde_json::{Value, json};

use crate::support::{Answer, Model, Repository, Server, ensemble, http::input, native};

/// Cells along a side of the maps, which are four pixels of the picture apart.
const CELLS: usize = 4;
const PIXELS: usize = 4 * CELLS;

/// Models whose crops, 3 pixels by 2, are their own logits: 3 classes, 2 steps.
fn server() -> Server {
    let maps = "score:FP32[1,-1,-1,1] geometry:FP32[1,-1,-1,5]";
    let find = format!("{maps} transform?:FP32[4] -> boxes:FP32[-1,4,2] scores:FP32[-1]");
    let cut = native("crop_warp", "image:UINT8[-1,-1,3] boxes:FP32[-1,4,2] -> crops:FP32[-1,2,3]");
    let inner = "dims: [-1,2,3] reshape { shape: [-1,1,2,3] }";
    let cut = Model { config: cut.config.replace("dims: [-1,2,3]", inner), ..cut };
    let read = native("ctc_decode", "logits:FP32[-1,2,3] -> text:BYTES[-1] confidence:FP32[-1]");
    let signature = format!(
        "{maps} image:UINT8[-1,-1,3] transform?:FP32[4] -> boxes:FP32[-1,4,2] scores:FP32[-1] \
         text:BYTES[-1] confidence:FP32[-1]"
    );
    let steps = [
        "east_boxes: score=score geometry=geometry transform=transform -> boxes=boxes scores=scores",
        "crop_warp: image=image boxes=boxes -> crops=crops",
        "ctc_decode: logits=crops -> text=text confidence=confidence",
    ];
    Server::start(
        Repository::of([("east_boxes", native("east_boxes", &find))])
            .with("crop_warp", cut)
            .with("ctc_decode", read.parameter("alphabet", "ab"))
            .with("spot", ensemble(&signature, &steps)),
    )
}

/// Words on a dark picture: the cell they begin at, its score, and the classes of both steps.
struct Scene {
    score: Vec<f32>,
    geometry: Vec<f32>,
    image: Vec<u8>,
}

impl Scene {
    fn of(words: &[(usize, f32, [usize; 2])]) -> Scene {
        let mut scene = Scene {
            score: vec![0.0; CELLS * CELLS],
            geometry: vec![0.0; CELLS * CELLS * 5],
            image: vec![10; PIXELS * PIXELS * 3],
        };
        for (cell, score, classes) in words {
            scene.score[*cell] = *score;
            // From the centre of its first pixel to that of its last: 2 to the right, 1 down.
            scene.geometry[cell * 5..][..5].copy_from_slice(&[0.0, 2.0, 1.0, 0.0, 0.0]);
            let (x, y) = (cell % CELLS * 4, cell / CELLS * 4);
            for (step, class) in classes.iter().enumerate() {
                let pixel = (y + step) * PIXELS + x + class;
                scene.image[pixel * 3..][..3].copy_from_slice(&[250, 250, 250]);
            }
        }
        scene
    }

    fn request(&self) -> Value {
        let (cells, pixels) = (CELLS as i64, PIXELS as i64);
        json!({"inputs": [
            input("score", "FP32", &[1, cells, cells, 1], self.score.clone()),
            input("geometry", "FP32", &[1, cells, cells, 5], self.geometry.clone()),
            input("image", "UINT8", &[pixels, pixels, 3], self.image.clone()),
        ]})
    }

    /// The request with its tensors behind the JSON, which has no NaN.
    fn send(&self, server: &Server) -> Answer {
        let bytes = |it: &[f32]| it.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
        let (score, geometry) = (bytes(&self.score), bytes(&self.geometry));
        let tensors: [&[u8]; 3] = [&score, &geometry, &self.image];
        let mut request = self.request();
        for (input, tensor) in request["inputs"].as_array_mut().unwrap().iter_mut().zip(tensors) {
            input.as_object_mut().unwrap().remove("data");
            input["parameters"] = json!({"binary_data_size": tensor.len()});
        }
        server.http.infer_binary("spot", &request, &tensors)
    }
}

const WORDS: &[(usize, f32, [usize; 2])] = &[(0, 0.75, [1, 2]), (9, 1.0, [2, 1]), (3, 0.5, [1, 1])];

#[test]
fn words_are_found_cut_and_read_in_the_order_of_their_scores() {
    let server = server();
    let answer = server.infer("spot", &Scene::of(WORDS).request());
    assert_eq!(answer.output("text"), json!(["ba", "ab"]));
    assert_eq!(answer.numbers("scores"), [1.0, 0.75]);
    assert_eq!(answer.shape("boxes"), json!([2, 4, 2]));
    let corners = [4, 8, 6, 8, 6, 9, 4, 9, 0, 0, 2, 0, 2, 1, 0, 1].map(f64::from);
    assert_eq!(answer.numbers("boxes"), corners);
    assert!(answer.numbers("confidence").iter().all(|it| 0.5 < *it));
    let mut request = Scene::of(WORDS).request();
    let transform = input("transform", "FP32", &[4], vec![0.5, 2.0, -4.0, 1.0]);
    request["inputs"].as_array_mut().unwrap().push(transform);
    let boxes = server.infer("spot", &request).numbers("boxes");
    assert_eq!(boxes[..4], [16.0, 3.5, 20.0, 3.5]);
    server.is_well();
}

#[test]
fn a_picture_without_words_has_no_text() {
    let answer = server().infer("spot", &Scene::of(&[]).request());
    assert_eq!(answer.output("text"), json!([]));
    assert_eq!(answer.shape("text"), json!([0]));
    assert_eq!(answer.shape("boxes"), json!([0, 4, 2]));
}

#[test]
fn broken_maps_are_an_error_that_names_the_step() {
    let server = server();
    let mut scene = Scene::of(WORDS);
    scene.send(&server).ok();
    scene.geometry[9 * 5 + 2] = f32::INFINITY;
    let answer = scene.send(&server);
    answer.refuses(400, "input `geometry` is inf at row 2, column 1, expected a number from");
    answer.refuses(400, "east_boxes");
    scene.score[5] = f32::NAN;
    scene.send(&server).refuses(400, "input `score` is NaN at row 1, column 1");
    server.is_well();
}
