//! The parts of a `ModelInferRequest`: inputs, requested outputs and parameters, read from their
//! bytes.

use std::collections::HashMap;

use bytes::Bytes;
use bytestring::ByteString;
use prost::Message;

use super::wire::{BAD_TEXT, BAD_TYPE, Fields, Malformed, WireValue};
use crate::request_limits::MAX_ITEMS;
use troupe_base::{
    error::{Error, Result},
    tensor::{DataType, Shape},
};
use troupe_proto::inference::InferParameter;

/// The text that these bytes are.
pub(super) fn text(bytes: Bytes) -> Result<ByteString, Malformed> {
    ByteString::try_from(bytes).map_err(|_| BAD_TEXT)
}

/// Counts what the parts of one request hold.
pub(crate) struct ItemBudget {
    left: usize,
}

impl Default for ItemBudget {
    fn default() -> ItemBudget {
        ItemBudget { left: MAX_ITEMS }
    }
}

impl ItemBudget {
    fn take(&mut self) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            Error::invalid(format!(
                "more than {MAX_ITEMS} inputs, outputs, dimensions and parameters in all"
            ))
        })?;
        Ok(())
    }
}

/// An input but for its raw contents.
#[derive(Default)]
pub(crate) struct InputHead<'a> {
    pub(crate) name: &'a str,
    pub(crate) datatype: &'a str,
    pub(crate) shape: Shape,
    pub(crate) parameters: HashMap<String, InferParameter>,
    pub(crate) contents: Option<Contents<'a>>,
}

/// `InferTensorContents`, in as many parts as it came in.
#[derive(Clone, Default)]
pub(crate) struct Contents<'a>(pub(crate) Vec<&'a [u8]>);

impl Contents<'_> {
    /// At most so many bytes are the elements of a tensor of this type.
    pub(crate) fn most_packed(&self, dtype: DataType) -> usize {
        let growth = match dtype {
            DataType::Fp32 | DataType::Fp64 => 1,
            // An empty string takes two bytes here and four in a tensor.
            DataType::Bytes => 2,
            // A number takes one byte at least.
            _ => dtype.size().unwrap_or(1),
        };
        let bytes: usize = self.0.iter().map(|it| it.len()).sum();
        bytes.saturating_mul(growth)
    }
}

impl<'a> InputHead<'a> {
    /// Reads an entry of `InferMessage::inputs`.
    pub(crate) fn read(entry: &'a [u8], items: &mut ItemBudget) -> Result<InputHead<'a>> {
        let mut input = InputHead::default();
        let mut fields = Fields::of(entry);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => input.name = value.text()?,
                2 => input.datatype = value.text()?,
                3 => read_dims(value, &mut input.shape, items)?,
                4 => {
                    items.take()?;
                    let (name, value) = MapEntry::read(value.bytes()?)?;
                    input.parameters.insert(name, value);
                }
                5 => {
                    items.take()?;
                    let contents = input.contents.get_or_insert_default();
                    contents.0.push(value.bytes()?);
                }
                _ => (),
            }
        }
        Ok(input)
    }
}

fn read_dims(value: WireValue<'_>, shape: &mut Shape, items: &mut ItemBudget) -> Result<()> {
    match value {
        WireValue::Varint(dim) => {
            items.take()?;
            shape.push(dim as i64);
        }
        WireValue::Bytes(packed) => {
            let mut dims = Fields::of(packed);
            while let Some(dim) = dims.packed_varint()? {
                items.take()?;
                shape.push(dim as i64);
            }
        }
        _ => return Err(BAD_TYPE.into()),
    }
    Ok(())
}

/// An output that is asked for.
#[derive(Default)]
pub(crate) struct OutputHead<'a> {
    pub(crate) name: &'a str,
    pub(crate) parameters: HashMap<String, InferParameter>,
}

impl<'a> OutputHead<'a> {
    /// Reads an entry of `InferMessage::outputs`.
    pub(crate) fn read(entry: &'a [u8], items: &mut ItemBudget) -> Result<OutputHead<'a>> {
        let mut output = OutputHead::default();
        let mut fields = Fields::of(entry);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => output.name = value.text()?,
                2 => {
                    items.take()?;
                    let (name, value) = MapEntry::read(value.bytes()?)?;
                    output.parameters.insert(name, value);
                }
                _ => (),
            }
        }
        Ok(output)
    }
}

/// An entry of a map of parameters.
pub(super) struct MapEntry;

impl MapEntry {
    /// The name and the value, each as it came last.
    pub(super) fn read(entry: &[u8]) -> Result<(String, InferParameter), Malformed> {
        let mut name = "";
        let mut parameter = InferParameter::default();
        let mut fields = Fields::of(entry);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => name = value.text()?,
                2 => {
                    let merged = parameter.merge(value.bytes()?);
                    merged.map_err(|_| Malformed("invalid parameter"))?;
                }
                _ => (),
            }
        }
        Ok((name.to_owned(), parameter))
    }
}
