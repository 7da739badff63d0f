//! A kept answer: a response in memory of its own, and what it weighs.

use std::{mem, sync::Arc, time::Instant};

use bytes::Bytes;

use troupe_base::{
    request::{Parameter, Response},
    statistics::Timing,
    tensor::Tensor,
};

/// What an answer takes besides its tensors and texts: its entry in the cache, its lists.
const OVERHEAD_BYTES: u64 = 256;

/// An answer in the cache.
#[derive(Debug)]
pub(super) struct KeptAnswer {
    response: Response,
    /// Bytes.
    pub(super) weight: u64,
    /// Of the loaded model that gave it.
    pub(super) generation: u128,
    /// When it is too old; `None`: never.
    pub(super) expires: Option<Instant>,
}

impl KeptAnswer {
    /// Copies `response`: what it lies in may be the memory of a whole batch, of a worker, or counted
    /// as memory of the request. `None` where its bytes are not what its shape says.
    pub(super) fn copy(
        response: &Response,
        generation: u128,
        expires: Option<Instant>,
    ) -> Option<Arc<KeptAnswer>> {
        let copied: Option<Vec<_>> = response.outputs.iter().map(copied).collect();
        let response = Response {
            outputs: copied?,
            parameters: response.parameters.clone(),
            left_out_by: response.left_out_by.clone(),
            ..Response::default()
        };
        let weight = weight(&response);
        Some(Arc::new(KeptAnswer { response, weight, generation, expires }))
    }

    /// The same response again; tensors share their bytes.
    pub(super) fn response(&self, timing: Timing) -> Response {
        Response { timing, ..self.response.clone() }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// Has it all that was asked for, and no more? Others are not kept.
pub(super) fn is_sound(response: &Response) -> bool {
    !response.is_incomplete && !response.has_unexpected_rows
}

/// Bytes that it takes when it is kept.
pub(super) fn weight(response: &Response) -> u64 {
    let tensors = response.outputs.iter().flatten().map(|it| {
        mem::size_of::<Option<Tensor>>() + it.data().len() + mem::size_of_val(it.shape())
    });
    let parameters = response.parameters.iter().map(|(name, value)| {
        let text = match value {
            Parameter::String(text) => text.len(),
            _ => 0,
        };
        mem::size_of::<Parameter>() + name.len() + text
    });
    tensors.chain(parameters).map(|bytes| bytes as u64).sum::<u64>() + OVERHEAD_BYTES
}

fn copied(output: &Option<Tensor>) -> Option<Option<Tensor>> {
    let Some(tensor) = output else { return Some(None) };
    let data = Bytes::copy_from_slice(tensor.data());
    let copy = Tensor::new(tensor.dtype(), tensor.shape().iter().copied().collect(), data).ok()?;
    // The cache has a limit of its own.
    Some(Some(copy.of_counted()))
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use troupe_base::tensor::DataType;

    #[test]
    fn an_answer_has_memory_of_its_own_and_is_shared_from_then_on() {
        let batch = Bytes::from(vec![7; 1 << 20]);
        let row = Tensor::new(DataType::Uint8, smallvec![4], batch.slice(8..12)).unwrap();
        let response = Response {
            outputs: vec![Some(row), None],
            parameters: vec![("k".into(), Parameter::String("four".to_owned()))],
            ..Response::default()
        };
        let kept = KeptAnswer::copy(&response, 1, None).unwrap();
        drop(response);
        assert!(batch.is_unique());
        let data = |it: &Response| it.outputs[0].as_ref().unwrap().data().clone();
        let (one, other) = (kept.response(Timing::default()), kept.response(Timing::default()));
        assert_eq!(data(&one), [7; 4][..]);
        assert_eq!(data(&one).as_ptr(), data(&other).as_ptr());
        assert_eq!((one.parameters.len(), one.outputs.len()), (1, 2));
        assert!((4 + OVERHEAD_BYTES..1024).contains(&kept.weight), "{}", kept.weight);
    }
}
