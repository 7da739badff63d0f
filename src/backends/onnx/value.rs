//! Values of ONNX Runtime over bytes of ours, and its outputs as bytes of ours.

use std::{
    ffi::{c_char, c_void},
    marker::PhantomData,
    ops::Range,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use ort::{
    AsPointer,
    memory::{Allocator, MemoryInfo},
    session::{RunOptions, Session, SharedSessionInner},
    sys::{ONNXTensorElementDataType, OrtStatusPtr, OrtTensorTypeAndShapeInfo, OrtValue},
};
use smallvec::{SmallVec, smallvec};

use super::aligned::Aligned;
use troupe_base::{
    error::{Error, Result},
    tensor::{Shape, Tensor},
};

/// The number of an element type in the C API.
pub(super) type Element = i32;

/// A value of ONNX Runtime; it may lie in bytes of ours, which then outlive it.
pub(super) struct OnnxValue<'a> {
    value: NonNull<OrtValue>,
    /// The addresses of those bytes; empty if it has memory of its own.
    lent: Range<usize>,
    lender: PhantomData<&'a [u8]>,
}

impl Drop for OnnxValue<'_> {
    #[allow(unsafe_code, reason = "a call of the C API")]
    fn drop(&mut self) {
        // SAFETY: the value is ours, and nobody uses it after this.
        unsafe { (ort::api().ReleaseValue)(self.value.as_ptr()) }
    }
}

/// What ONNX Runtime says of a failure, as Triton tells it.
pub(super) fn message<R>(error: &ort::Error<R>) -> String {
    let code = ort::sys::OrtErrorCode::from(error.code()) as i32;
    format!("onnx runtime error {code}: {}", error.message())
}

#[allow(unsafe_code, reason = "statuses of the C API")]
fn checked(status: OrtStatusPtr) -> Result<()> {
    // SAFETY: every status comes here once, straight from the call that made it.
    let result = unsafe { ort::Error::result_from_status(status) };
    result.map_err(|error| Error::internal(message(&error)))
}

fn owned(value: *mut OrtValue) -> Result<NonNull<OrtValue>> {
    NonNull::new(value).ok_or_else(|| Error::internal("ONNX Runtime gave no value"))
}

impl<'a> OnnxValue<'a> {
    /// Numbers in memory of ours, read but never written by ONNX Runtime.
    #[allow(unsafe_code, reason = "a call of the C API")]
    pub(super) fn over(
        memory: &MemoryInfo<'_>,
        element: ONNXTensorElementDataType,
        shape: &[i64],
        data: &'a Aligned<'a>,
    ) -> Result<OnnxValue<'a>> {
        let data = data.bytes();
        let mut value = ptr::null_mut();
        // SAFETY: `data` and `shape` are valid for their lengths, and `data` outlives the value by
        // its lifetime. Inputs of a run are only read.
        checked(unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                memory.ptr(),
                data.as_ptr().cast_mut().cast::<c_void>(),
                data.len(),
                shape.as_ptr(),
                shape.len(),
                element,
                &mut value,
            )
        })?;
        let start = data.as_ptr() as usize;
        Ok(OnnxValue { value: owned(value)?, lent: start..start + data.len(), lender: PhantomData })
    }

    /// The strings of a BYTES tensor, copied: ONNX Runtime wants each in memory of its own.
    #[allow(unsafe_code, reason = "calls of the C API")]
    pub(super) fn strings(
        allocator: &Allocator,
        shape: &[i64],
        tensor: &Tensor,
    ) -> Result<OnnxValue<'static>> {
        let mut value = ptr::null_mut();
        let string = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
        // SAFETY: `shape` is valid for its length.
        checked(unsafe {
            (ort::api().CreateTensorAsOrtValue)(
                allocator.ptr().cast_mut(),
                shape.as_ptr(),
                shape.len(),
                string,
                &mut value,
            )
        })?;
        let value = OnnxValue { value: owned(value)?, lent: 0..0, lender: PhantomData };
        for (index, text) in tensor.strings().enumerate() {
            let mut place: *mut c_char = ptr::null_mut();
            // SAFETY: the value is a tensor of strings; an index beyond its end is an error.
            checked(unsafe {
                (ort::api().GetResizedStringTensorElementBuffer)(
                    value.value.as_ptr(),
                    index,
                    text.len(),
                    &mut place,
                )
            })?;
            if !text.is_empty() {
                // SAFETY: `place` was made this long just now.
                unsafe { ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), text.len()) };
            }
        }
        Ok(value)
    }
}

/// Runs the model on these inputs. Names stay valid until it returns.
#[allow(unsafe_code, reason = "a call of the C API, without the allocations of the safe one")]
pub(super) fn run(
    session: &mut Session,
    options: &RunOptions,
    inputs: (&[*const c_char], &[OnnxValue<'_>]),
    outputs: &[*const c_char],
) -> Result<SmallVec<[Option<OutputValue>; 4]>> {
    let (names, values) = inputs;
    debug_assert_eq!(names.len(), values.len());
    let values: SmallVec<[*const OrtValue; 8]> =
        values.iter().map(|it| it.value.as_ptr().cast_const()).collect();
    let mut results: SmallVec<[*mut OrtValue; 4]> = smallvec![ptr::null_mut(); outputs.len()];
    // SAFETY: all arrays are as long as is said, and the session is nobody else's meanwhile.
    let status = unsafe {
        (ort::api().Run)(
            session.ptr().cast_mut(),
            options.ptr(),
            names.as_ptr(),
            values.as_ptr(),
            values.len().min(names.len()),
            outputs.as_ptr(),
            outputs.len(),
            results.as_mut_ptr(),
        )
    };
    // Owned before anything can fail.
    let session = session.inner();
    let output = |value| {
        let value = OnnxValue { value: NonNull::new(value)?, lent: 0..0, lender: PhantomData };
        Some(OutputValue { value, _session: session.clone() })
    };
    let results = results.into_iter().map(output).collect();
    checked(status).map(|()| results)
}

/// A value that a run made, and the session its memory comes from, which ends after it.
pub(super) struct OutputValue {
    value: OnnxValue<'static>,
    _session: Arc<SharedSessionInner>,
}

impl OutputValue {
    /// Element type and shape; an error when it is no tensor.
    #[allow(unsafe_code, reason = "calls of the C API")]
    pub(super) fn form(&self) -> Result<(Element, Shape)> {
        struct Facts(*mut OrtTensorTypeAndShapeInfo);
        impl Drop for Facts {
            fn drop(&mut self) {
                // SAFETY: made below, for us alone.
                unsafe { (ort::api().ReleaseTensorTypeAndShapeInfo)(self.0) }
            }
        }
        let (mut is_tensor, mut facts) = (0, Facts(ptr::null_mut()));
        let (mut element, mut rank): (Element, usize) = (0, 0);
        let (api, value) = (ort::api(), self.value.value.as_ptr());
        // SAFETY: the value is alive. The element type is read as a number, so that one of a newer
        // library is no harm.
        unsafe {
            checked((api.IsTensor)(value, &mut is_tensor))?;
            if is_tensor == 0 {
                return Err(Error::internal("a value that is not a tensor"));
            }
            checked((api.GetTensorTypeAndShape)(value, &mut facts.0))?;
            checked((api.GetTensorElementType)(facts.0, (&raw mut element).cast()))?;
            checked((api.GetDimensionsCount)(facts.0, &mut rank))?;
            let mut shape: Shape = smallvec![0; rank];
            checked((api.GetDimensions)(facts.0, shape.as_mut_ptr(), rank))?;
            Ok((element, shape))
        }
    }

    /// The `len` bytes of its numbers, not copied unless they lie in an input's memory.
    #[allow(unsafe_code, reason = "wraps memory of ONNX Runtime")]
    pub(super) fn numbers(self, len: usize, inputs: &[OnnxValue<'_>]) -> Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let mut data = ptr::null_mut();
        // SAFETY: the value is alive, and a tensor of numbers.
        checked(unsafe {
            (ort::api().GetTensorMutableData)(self.value.value.as_ptr(), &mut data)
        })?;
        let data = NonNull::new(data.cast::<u8>())
            .ok_or_else(|| Error::internal("ONNX Runtime gave a tensor without memory"))?;
        let numbers = OutputNumbers { data, len, _output: self };
        let address = data.as_ptr() as usize;
        // A model may give an input back as it is; the request's bytes end before the answer's.
        if inputs.iter().any(|it| it.lent.contains(&address)) {
            return Ok(Bytes::copy_from_slice(numbers.as_ref()));
        }
        Ok(Bytes::from_owner(numbers))
    }

    /// Its strings as BYTES tensors have them, each behind its length; one copy.
    #[allow(unsafe_code, reason = "calls of the C API")]
    pub(super) fn strings(&self, count: usize) -> Result<Bytes> {
        let (api, value) = (ort::api(), self.value.value.as_ptr());
        let mut total = 0;
        // SAFETY: the value is alive; it is an error if it is no tensor of strings.
        checked(unsafe { (api.GetStringTensorDataLength)(value, &mut total) })?;
        let prefixes = count * size_of::<u32>();
        let mut bytes = BytesMut::zeroed(prefixes + total);
        let mut starts = vec![0usize; count];
        // SAFETY: both are as long as is said.
        checked(unsafe {
            let texts = bytes[prefixes..].as_mut_ptr().cast();
            (api.GetStringTensorContent)(value, texts, total, starts.as_mut_ptr(), count)
        })?;
        prefix_lengths(&mut bytes, &starts)?;
        Ok(bytes.freeze())
    }
}

/// Moves texts that stand at the end of `bytes` forward, each behind its length.
///
/// What is written never reaches a text that is still to be moved.
fn prefix_lengths(bytes: &mut [u8], starts: &[usize]) -> Result<()> {
    let wrong = || Error::internal("ONNX Runtime gave strings of impossible lengths");
    let prefixes = starts.len() * size_of::<u32>();
    let mut to = 0;
    for (index, start) in starts.iter().enumerate() {
        let from = prefixes + start;
        let end = starts.get(index + 1).map_or(bytes.len(), |next| prefixes + next);
        let length = end.checked_sub(from).filter(|_| end <= bytes.len()).ok_or_else(wrong)?;
        let prefix = u32::try_from(length).map_err(|_| wrong())?.to_le_bytes();
        bytes[to..to + prefix.len()].copy_from_slice(&prefix);
        bytes.copy_within(from..end, to + prefix.len());
        to += prefix.len() + length;
    }
    Ok(())
}

/// Keeps an output as long as somebody reads its bytes.
struct OutputNumbers {
    data: NonNull<u8>,
    len: usize,
    _output: OutputValue,
}

#[allow(unsafe_code, reason = "it moves to the thread that answers")]
// SAFETY: ONNX Runtime neither writes an output after its run nor cares which thread releases it.
unsafe impl Send for OutputNumbers {}

impl AsRef<[u8]> for OutputNumbers {
    #[allow(unsafe_code, reason = "memory of ONNX Runtime")]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the value is kept beside the pointer; `len` follows from its own shape and type.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_come_before_their_texts_in_place() {
        let mut bytes = b"............abcde".to_vec();
        prefix_lengths(&mut bytes, &[0, 2, 2]).unwrap();
        assert_eq!(bytes, b"\x02\0\0\0ab\0\0\0\0\x03\0\0\0cde");
        let mut none: [u8; 0] = [];
        prefix_lengths(&mut none, &[]).unwrap();
        assert!(prefix_lengths(&mut [0; 8], &[3, 1]).is_err());
        assert!(prefix_lengths(&mut [0; 8], &[0, 9]).is_err());
    }
}
