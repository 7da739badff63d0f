//! Groups in work together: their memory, and the checks between them.

use std::num::NonZeroUsize;

use super::*;

const ANY: (DataType, &[i64]) = (FP32, &[-1]);
/// Large enough to lie in a segment.
const COUNT: usize = 1 << 16;

fn filled(value: f32) -> Tensor {
    fp32(&[COUNT as i64], &vec![value; COUNT])
}

/// In a segment, where its bytes can be told from copies.
fn placed(value: f32) -> Tensor {
    let tensor = filled(value);
    let mut segment = SegmentPool::new(0).take(tensor.data().len(), Owner::default()).unwrap();
    segment.bytes_mut()[..tensor.data().len()].copy_from_slice(tensor.data());
    let range = 0..tensor.data().len();
    Tensor::in_segment(FP32, tensor.shape().into(), &segment.freeze(), range).unwrap()
}

/// Three groups wait for each other; the one of 3s answers with the input of the one of 1s.
const SWAPS: &str = "
    import asyncio
    class TritonPythonModel:
        def initialize(self, args):
            self.arrays = {}
            self.all_are_here = asyncio.Event()
        async def execute(self, requests):
            own = requests[0].inputs()[0].as_numpy()
            self.arrays[own[0]] = own
            if len(self.arrays) == 3:
                self.all_are_here.set()
            await self.all_are_here.wait()
            array = self.arrays[1] if own[0] == 3 else own
            return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT0', array)])]
    ";

#[actix_rt::test]
async fn outputs_lie_in_the_inputs_of_their_own_group_and_are_copied_from_others() {
    let model = model(SWAPS, &[ANY], &[ANY]);
    let mut remote = model.open();
    assert_eq!(remote.concurrency(), NonZeroUsize::new(1024));
    let inputs = [1.0, 2.0, 3.0].map(placed);
    let addresses = |tensors: &[Tensor]| tensors.iter().map(|it| it.data().as_ptr()).collect();
    let own: Vec<_> = addresses(&inputs);
    // Nobody else may read them: a model is given copies of what others read.
    let groups = inputs.into_iter().map(|it| vec![request(vec![it])]).collect();
    let mut outputs = Vec::new();
    for group in run(&mut *remote, groups).await {
        outputs.push(group.unwrap().pop().unwrap().unwrap().outputs[0].clone().unwrap());
    }
    let values: Vec<f32> = outputs.iter().map(|it| floats(it)[COUNT - 1]).collect();
    assert_eq!(values, [1.0, 2.0, 1.0]);
    let back: Vec<_> = addresses(&outputs);
    assert_eq!(own[..2], back[..2]);
    assert!(!own.contains(&back[2]));
}

#[actix_rt::test]
async fn what_a_coroutine_keeps_is_never_overwritten() {
    let source = "
        import asyncio
        import numpy as np
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = []
            async def execute(self, requests):
                array = requests[0].inputs()[0].as_numpy()
                await asyncio.sleep(0)
                if array[0] < 3:
                    self.kept.append(array[1:])
                out = pb_utils.Tensor('OUT0', np.array([it[0] for it in self.kept], 'f4'))
                return [pb_utils.InferenceResponse([out])]
        ";
    let model = model(source, &[ANY], &[ANY]);
    let mut remote = model.open();
    let groups = [1.0, 2.0].map(|it| vec![request(vec![filled(it)])]);
    run(&mut *remote, groups.into()).await;
    for value in [3.0, 4.0, 5.0, 6.0] {
        let kept = output(&mut *remote, request(vec![filled(value)])).await;
        assert_eq!(floats(&kept), [1.0, 2.0]);
    }
}
