//! What `execute` is given and what becomes of what it returns.

use super::*;

const ADD_SUB: &str = "
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                a = pb_utils.get_input_tensor_by_name(request, 'IN0').as_numpy()
                b = pb_utils.get_input_tensor_by_name(request, 'IN1').as_numpy()
                outs = [pb_utils.Tensor('OUT0', a + b), pb_utils.Tensor('OUT1', a - b)]
                answers.append(pb_utils.InferenceResponse(output_tensors=outs))
            return answers
    ";

#[actix_rt::test]
async fn groups_are_executed_in_order_and_answered_one_by_one() {
    let four: (DataType, &[i64]) = (FP32, &[4]);
    let model = model(ADD_SUB, &[four, four], &[four, four]);
    let mut remote = model.open();
    let pair = |x: f32| request(vec![fp32(&[4], &[x; 4]), fp32(&[4], &[1.0, 2.0, 3.0, 4.0])]);
    let groups = vec![vec![pair(1.0)], vec![pair(2.0), pair(3.0)], vec![]];
    let answers = run(&mut *remote, groups).await;
    let values: Vec<Vec<Vec<f32>>> = answers
        .iter()
        .map(|group| {
            let responses = group.as_ref().unwrap().iter();
            let outputs = responses.flat_map(|it| it.as_ref().unwrap().outputs.iter().flatten());
            outputs.map(floats).collect()
        })
        .collect();
    let both =
        |x: f32| vec![vec![x + 1., x + 2., x + 3., x + 4.], vec![x - 1., x - 2., x - 3., x - 4.]];
    assert_eq!(values, [both(1.), [both(2.), both(3.)].concat(), vec![]]);
}
