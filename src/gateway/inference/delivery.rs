//! How a client wants each output of an inference delivered: whole or as classes, as text or as
//! bytes.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::task::spawn_blocking;

use crate::{
    classify::{classify, has_classes},
    shared_memory::{RegionSlice, write},
};
use troupe_base::{
    config::ModelConfig,
    error::{Error, Result},
    model::Model,
    request::{Request, Response, Wanted},
};

/// Work on more bytes than this would hold up the thread's other connections.
pub(crate) const MAX_BYTES_ON_THREAD: usize = 256 << 10;

/// What a client asks: both protocols decode their requests into this.
#[derive(Debug)]
pub struct InferParams {
    /// For the model.
    pub request: Request,
    /// For the response.
    pub deliveries: Deliveries,
}

/// How a tensor is written into a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As the protocol writes values: numbers in JSON.
    #[default]
    Text,
    /// As the tensor's own bytes.
    Bytes,
}

/// How one output gets to the client.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    /// The tensor, in the response.
    Inline(Encoding),
    /// In the place of the tensor its largest elements as classes, so many of each row.
    Classes(usize, Encoding),
    /// The tensor, in a region of shared memory; the response only says so.
    Region(RegionSlice),
}

impl Delivery {
    /// The tensor, or so many classes of it unless that is 0.
    pub fn new(encoding: Encoding, classes: u64) -> Delivery {
        match classes {
            0 => Delivery::Inline(encoding),
            count => Delivery::Classes(usize::try_from(count).unwrap_or(usize::MAX), encoding),
        }
    }

    /// How what is sent is written; `None` if the response holds none of the tensor.
    pub fn encoding(&self) -> Option<Encoding> {
        match self {
            Delivery::Inline(encoding) | Delivery::Classes(_, encoding) => Some(*encoding),
            Delivery::Region(_) => None,
        }
    }
}

/// A delivery for each output of a model, by position in its config.
#[derive(Clone, Debug, PartialEq)]
pub struct Deliveries {
    /// Of outputs that `chosen` does not name.
    others: Delivery,
    chosen: SmallVec<[(u16, Delivery); 4]>,
    /// Where inputs lie: these regions stay registered until the request has ended.
    inputs: Vec<RegionSlice>,
}

impl Deliveries {
    /// All outputs whole.
    pub fn inline(encoding: Encoding) -> Deliveries {
        Deliveries {
            others: Delivery::Inline(encoding),
            chosen: SmallVec::new(),
            inputs: Vec::new(),
        }
    }

    /// `deliveries` are those of the wanted outputs in their order; if all are wanted, without
    /// being named, they are whole.
    pub fn new(wanted: &Wanted, deliveries: Vec<Delivery>, encoding: Encoding) -> Deliveries {
        let mut all = Deliveries::inline(encoding);
        if let Wanted::Only(outputs) = wanted {
            all.chosen.extend(outputs.iter().copied().zip(deliveries));
        }
        all
    }

    /// The same, while the request uses the regions that its inputs lie in.
    pub fn with_inputs(self, inputs: Vec<RegionSlice>) -> Deliveries {
        Deliveries { inputs, ..self }
    }

    /// How an output gets to the client.
    pub fn of(&self, output: usize) -> &Delivery {
        let chosen = self.chosen.iter().find(|(index, _)| usize::from(*index) == output);
        chosen.map_or(&self.others, |(_, delivery)| delivery)
    }

    /// Puts classes in the place of outputs of which they are wanted, and writes to regions what
    /// belongs there.
    pub async fn apply(&self, model: &Arc<Model>, response: Response) -> Result<Response> {
        let size: usize = self
            .worked_on()
            .filter_map(|(output, _)| Some(response.outputs.get(output)?.as_ref()?.data().len()))
            .sum();
        if size <= MAX_BYTES_ON_THREAD {
            return self.replace(model, response);
        }
        let (deliveries, model) = (self.clone(), model.clone());
        let replaced = spawn_blocking(move || deliveries.replace(&model, response)).await;
        replaced.map_err(|_| Error::internal("delivering a big output panicked"))?
    }

    /// Outputs that do not go to the client as they are.
    fn worked_on(&self) -> impl Iterator<Item = (usize, &Delivery)> {
        let chosen = self.chosen.iter().map(|(output, delivery)| (usize::from(*output), delivery));
        chosen.filter(|(_, delivery)| !matches!(delivery, Delivery::Inline(_)))
    }

    fn replace(&self, model: &Model, mut response: Response) -> Result<Response> {
        let is_batched = 0 < model.config.max_batch_size;
        for (output, delivery) in self.worked_on() {
            let Some(Some(tensor)) = response.outputs.get_mut(output) else { continue };
            match delivery {
                Delivery::Classes(count, _) => {
                    let labels = model.labels(output).map(|labels| &**labels);
                    *tensor = classify(tensor, is_batched, *count, labels)
                        .map_err(|it| it.with_hint(&having_classes(&model.config, output)))?;
                }
                Delivery::Region(slice) => {
                    write(&model.config.outputs[output].name, tensor, slice)?;
                }
                Delivery::Inline(_) => (),
            }
        }
        Ok(response)
    }
}

/// Which output has no classes, and which have.
fn having_classes(config: &ModelConfig, output: usize) -> String {
    let having = config.outputs.iter().filter(|it| has_classes(it.dtype));
    let having: Vec<String> = having.map(|it| format!("'{}'", it.name)).collect();
    let having = match &having[..] {
        [] => "no output has classes".to_owned(),
        some => format!("classes have {}", some.join(", ")),
    };
    format!(" (output '{}'; {having})", config.outputs[output].name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_belong_to_outputs_in_the_order_of_the_request() {
        use Encoding::{Bytes, Text};
        let wanted = Wanted::Only([2, 0, 1].into_iter().collect());
        let chosen = [(Bytes, 3), (Text, 0), (Bytes, u64::MAX)];
        let chosen = chosen.map(|(encoding, classes)| Delivery::new(encoding, classes));
        let deliveries = Deliveries::new(&wanted, chosen.to_vec(), Text);
        let worked_on: Vec<_> = deliveries.worked_on().map(|(output, _)| output).collect();
        assert_eq!(worked_on, [2, 1]);
        for (output, expected) in [
            (0, Delivery::Inline(Text)),
            (1, Delivery::Classes(usize::MAX, Bytes)),
            (2, Delivery::Classes(3, Bytes)),
            (3, Delivery::Inline(Text)),
        ] {
            assert_eq!(*deliveries.of(output), expected, "output {output}");
        }
        assert_eq!(Deliveries::new(&Wanted::All, Vec::new(), Bytes), Deliveries::inline(Bytes));
    }
}
