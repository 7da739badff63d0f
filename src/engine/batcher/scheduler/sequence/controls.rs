//! ControlTensor inputs of sequences, and the null requests of rows in which no sequence has one.

use std::{iter::repeat_n, sync::Arc, time::Instant};

use bytes::{BufMut, Bytes, BytesMut};

use troupe_base::{
    config::{ControlKind, ModelConfig, SequenceControl, SequenceFlag},
    error::{Error, Result},
    request::{
        Answer, Context, Correlation, Part, Pending, Reply, Request, Response, SEQUENCE_END,
        SEQUENCE_START, Wanted,
    },
    statistics::Timing,
    tensor::{DataType, Shape, Tensor},
};

/// Inputs of null requests up to so many bytes are kept: no budget counts them.
const MAX_KEPT_BYTES: usize = 64 << 10;

/// What adds control inputs to requests.
pub(super) struct Controls {
    all: Vec<ControlTensor>,
    /// How many inputs a client may send: control inputs come behind them.
    clients_inputs: usize,
    /// The last null request's inputs, if they are small: most batches have the same shapes.
    null_inputs: Vec<Option<Tensor>>,
    null_context: Arc<Context>,
    /// Of one row.
    batch: u32,
}

/// One control input.
enum ControlTensor {
    /// The tensors for false and true.
    Flag(SequenceFlag, Box<[Tensor; 2]>),
    Id {
        name: Arc<str>,
        dtype: DataType,
    },
}

impl Controls {
    /// The config is that of executors: its inputs are the clients', control inputs, states.
    pub(super) fn new(config: &ModelConfig, controls: &[SequenceControl]) -> Result<Controls> {
        let batch = u32::from(config.max_batch_size != 0);
        let all = controls.iter().map(|it| ControlTensor::new(it, batch)).collect::<Result<_>>()?;
        let clients_inputs =
            config.inputs.len().saturating_sub(controls.len() + config.states().len());
        let null_context = Arc::new(Context { is_null: true, ..Context::default() });
        Ok(Controls { all, clients_inputs, null_inputs: Vec::new(), null_context, batch })
    }

    /// Is the id of a sequence told to the model as a text?
    pub(super) fn wants_text(&self) -> bool {
        let is_text =
            |it: &ControlTensor| matches!(it, ControlTensor::Id { dtype: DataType::Bytes, .. });
        self.all.iter().any(is_text)
    }

    /// Can the id of a request be told to the model?
    pub(super) fn check(&self, model: &str, context: &Context) -> Result<()> {
        for control in &self.all {
            let ControlTensor::Id { name, dtype } = control else { continue };
            let got = match &context.correlation {
                Correlation::Text(_) if *dtype != DataType::Bytes => "BYTES",
                Correlation::Number(_) if *dtype == DataType::Bytes => "UINT64",
                _ => continue,
            };
            let (tag, expected) = (context.tag(), dtype.as_str());
            return Err(Error::invalid(format!(
                "{tag}sequence batching control '{name}' data-type is '{got}', but model '{model}' \
                 expects '{expected}'"
            )));
        }
        Ok(())
    }

    /// Adds the control inputs of a request that is executed next.
    pub(super) fn add(&self, request: &mut Request) {
        self.remove(request);
        let context = request.context.clone();
        request.inputs.extend(self.all.iter().map(|it| Some(it.tensor(&context, self.batch))));
    }

    /// Takes them out again.
    pub(super) fn remove(&self, request: &mut Request) {
        request.inputs.truncate(self.clients_inputs);
    }

    /// Requests for rows that have none: zeros in the shapes of another row's request, the same for
    /// all of them.
    pub(super) fn null_requests(
        &mut self,
        like: &Request,
        count: usize,
        now: Instant,
    ) -> impl Iterator<Item = Pending> + use<> {
        let inputs = &like.inputs[..self.clients_inputs.min(like.inputs.len())];
        let is_same = |(a, b): (&Option<Tensor>, &Option<Tensor>)| match (a, b) {
            (Some(a), Some(b)) => a.dtype() == b.dtype() && a.shape() == b.shape(),
            (None, None) => true,
            _ => false,
        };
        let known = &self.null_inputs;
        let zeros = if known.len() == inputs.len() && known.iter().zip(inputs).all(is_same) {
            known.clone()
        } else {
            inputs.iter().map(|it| it.as_ref().map(Tensor::zeros_like)).collect()
        };
        let bytes: usize = zeros.iter().flatten().map(|it| it.data().len()).sum();
        self.null_inputs = if bytes <= MAX_KEPT_BYTES { zeros.clone() } else { Vec::new() };
        let mut request = Request {
            context: self.null_context.clone(),
            inputs: zeros,
            wanted: Wanted::Only(Default::default()),
            batch: self.batch,
        };
        self.add(&mut request);
        let null = move |request| Pending { request, reply: Reply::new_at(Nobody, now) };
        repeat_n(request, count).map(null)
    }
}

impl ControlTensor {
    fn new(config: &SequenceControl, batch: u32) -> Result<ControlTensor> {
        let SequenceControl { name, dtype, kind } = config;
        Ok(match kind {
            ControlKind::CorrelationId => ControlTensor::Id { name: name.clone(), dtype: *dtype },
            ControlKind::Flag(flag, values) => {
                let tensor =
                    |it: &Vec<u8>| Tensor::new(*dtype, shape(batch), Bytes::copy_from_slice(it));
                let [off, on] = values;
                ControlTensor::Flag(*flag, Box::new([tensor(off)?, tensor(on)?]))
            }
        })
    }

    fn tensor(&self, context: &Context, batch: u32) -> Tensor {
        match self {
            ControlTensor::Flag(flag, values) => {
                let is_set = !context.is_null
                    && match flag {
                        SequenceFlag::Start => context.flags & SEQUENCE_START != 0,
                        SequenceFlag::End => context.flags & SEQUENCE_END != 0,
                        SequenceFlag::Ready => true,
                    };
                values[usize::from(is_set)].clone()
            }
            ControlTensor::Id { dtype, .. } => id_tensor(&context.correlation, *dtype, batch),
        }
    }
}

/// Of one element; with the batch dimension where the model batches.
fn shape(batch: u32) -> Shape {
    let dims: &[i64] = if batch == 0 { &[1] } else { &[1, 1] };
    dims.into()
}

/// The text, or as many bytes of the number as the type has; no id is 0 or empty.
fn id_tensor(id: &Correlation, dtype: DataType, batch: u32) -> Tensor {
    let number = match id {
        Correlation::Number(number) => *number,
        Correlation::None | Correlation::Text(_) => 0,
    };
    let data = match dtype.size() {
        Some(size) => Bytes::copy_from_slice(&number.to_le_bytes()[..size.min(8)]),
        None => {
            let text = if let Correlation::Text(text) = id { text.as_str() } else { "" };
            let mut data = BytesMut::with_capacity(4 + text.len());
            data.put_u32_le(text.len() as u32);
            data.put_slice(text.as_bytes());
            data.freeze()
        }
    };
    Tensor::new(dtype, shape(batch), data).expect("the bytes of one element were just made")
}

/// Waits for the answer of a null request.
struct Nobody;

impl Answer for Nobody {
    fn answer(self: Box<Self>, _: Result<Response>, _: Instant) {}

    fn takes_many(&self) -> bool {
        true
    }

    fn part(&mut self, _: Part, _: Instant) {}

    fn end(self: Box<Self>, _: Timing, _: Instant) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_as_many_bytes_as_their_type() {
        let bytes = |id, dtype| id_tensor(&id, dtype, 1).data().to_vec();
        let number = || Correlation::Number(0x0102_0304_0506_0708);
        assert_eq!(bytes(number(), DataType::Uint64), [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes(number(), DataType::Int32), [8, 7, 6, 5]);
        assert_eq!(bytes(Correlation::Text("ab".into()), DataType::Bytes), *b"\x02\0\0\0ab");
        assert_eq!(bytes(Correlation::None, DataType::Bytes), [0; 4]);
        assert_eq!(bytes(Correlation::None, DataType::Int64), [0; 8]);
        assert_eq!(id_tensor(&number(), DataType::Uint32, 0).shape(), [1]);
        assert_eq!(id_tensor(&number(), DataType::Uint32, 1).shape(), [1, 1]);
    }

    /// Inputs of null requests are those of zeros in the same shape, kept for the next one if small.
    fn check_null_request(width: usize, is_kept: bool) {
        let mut controls = Controls {
            all: Vec::new(),
            clients_inputs: 1,
            null_inputs: Vec::new(),
            null_context: Arc::default(),
            batch: 1,
        };
        let shape = [1, width as i64].into_iter().collect();
        let input = Tensor::new(DataType::Uint8, shape, vec![7; width].into()).unwrap();
        let like = Request { inputs: vec![Some(input)], ..Request::default() };
        for _ in 0..2 {
            let nulls: Vec<Pending> = controls.null_requests(&like, 2, Instant::now()).collect();
            let [one, other] = [0, 1].map(|it| nulls[it].request.inputs[0].as_ref().unwrap());
            assert_eq!((one.data().len(), one.data()[width - 1]), (width, 0));
            assert_eq!(one.data().as_ptr(), other.data().as_ptr(), "the zeros of all are the same");
            assert_eq!(controls.null_inputs.len(), usize::from(is_kept), "{width}");
        }
    }

    #[test]
    fn only_small_inputs_of_null_requests_are_kept() {
        check_null_request(9, true);
        check_null_request(MAX_KEPT_BYTES, true);
        check_null_request(MAX_KEPT_BYTES + 1, false);
    }
}
