//! Values in the JSON of requests that may be missing or of a wrong type, and a limit on how many
//! there are; errors say what was expected.

use std::{borrow::Cow, cell::Cell, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::json;
use crate::request_limits::{MAX_ITEMS, MAX_LIST_ITEMS};
use troupe_base::{
    error::{Error, Result},
    request::Parameter,
    tensor::Shape,
};

/// Dimensions that are kept of a shape: no model has more.
const MAX_DIMS: usize = 64;

thread_local! {
    /// Items of the text that this thread reads.
    static ITEMS: Cell<usize> = const { Cell::new(0) };
}

/// Reads a text with lists in it; its items are counted.
pub(super) fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T> {
    ITEMS.set(0);
    json::parse(text)
}

/// A member that should be a string, a number or a boolean.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Scalar<'a> {
    #[default]
    Absent,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Cow<'a, str>),
    /// null, an array or an object.
    Other,
}

/// An object, its members in their order: scalars where nothing else is said.
#[derive(Debug, Default)]
pub(super) enum Members<'a, V = Scalar<'a>> {
    #[default]
    Absent,
    Wrong,
    Of(Vec<(Cow<'a, str>, V)>),
}

/// An array.
#[derive(Debug, Default)]
pub(super) enum List<T> {
    #[default]
    Absent,
    Wrong,
    Of(Vec<T>),
}

/// An array of dimensions.
#[derive(Debug, Default)]
pub(super) enum Dims {
    #[default]
    Absent,
    Wrong,
    /// With something in it that is no integer.
    WrongItem,
    /// So many that they were not kept.
    TooMany(usize),
    Of(Shape),
}

impl<'a> Scalar<'a> {
    /// The string that member `key` must be.
    pub(super) fn text(&self, key: &str) -> Result<&str> {
        match self {
            Scalar::Text(it) => Ok(it),
            _ => Err(self.is_no(key, "string")),
        }
    }

    /// Gives the string away.
    pub(super) fn into_text(self, key: &str) -> Result<Cow<'a, str>> {
        match self {
            Scalar::Text(it) => Ok(it),
            _ => Err(self.is_no(key, "string")),
        }
    }

    /// The boolean that member `key` must be.
    pub(super) fn bool(&self, key: &str) -> Result<bool> {
        match self {
            Scalar::Bool(it) => Ok(*it),
            _ => Err(self.is_no(key, "boolean")),
        }
    }

    /// The count that member `key` must be.
    pub(super) fn count(&self, key: &str) -> Result<u64> {
        match self {
            Scalar::Uint(it) => Ok(*it),
            _ => Err(self.is_no(key, "unsigned-integer")),
        }
    }

    fn int(&self) -> Option<i64> {
        match self {
            Scalar::Int(it) => Some(*it),
            Scalar::Uint(it) => i64::try_from(*it).ok(),
            _ => None,
        }
    }

    fn is_no(&self, key: &str, expected: &str) -> Error {
        let why = match self {
            Scalar::Absent => format!("attempt to access non-existing object member '{key}'"),
            _ => format!("attempt to access JSON non-{expected} as {expected}"),
        };
        Error::invalid(format!("Unable to parse '{key}': {why}"))
    }

    /// Its type in the words of Triton's parameters.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Scalar::Bool(_) => "BOOL",
            Scalar::Int(_) | Scalar::Uint(_) => "INT",
            Scalar::Double(_) => "DOUBLE",
            Scalar::Text(_) => "STRING",
            Scalar::Absent | Scalar::Other => "<invalid>",
        }
    }

    /// A parameter that the model sees.
    pub(super) fn into_parameter(self, key: &str) -> Result<Parameter> {
        Ok(match self {
            Scalar::Bool(it) => Parameter::Bool(it),
            Scalar::Int(it) => Parameter::Int(it),
            Scalar::Uint(it) => i64::try_from(it).map_or(Parameter::Uint(it), Parameter::Int),
            Scalar::Double(it) => Parameter::Double(it),
            Scalar::Text(it) => Parameter::String(it.into_owned()),
            Scalar::Absent | Scalar::Other => {
                return Err(Error::invalid(format!(
                    "parameter '{key}' has invalid type. It should be either 'int', 'bool', or \
                     'string'."
                )));
            }
        })
    }
}

impl<'a, V> Members<'a, V> {
    /// The members; none if the object itself is missing.
    pub(super) fn list(&self, key: &str) -> Result<&[(Cow<'a, str>, V)]> {
        match self {
            Members::Absent => Ok(&[]),
            Members::Of(members) => Ok(members),
            Members::Wrong => Err(no_object(key)),
        }
    }

    /// Gives the members away.
    pub(super) fn into_list(self, key: &str) -> Result<Vec<(Cow<'a, str>, V)>> {
        match self {
            Members::Absent => Ok(Vec::new()),
            Members::Of(members) => Ok(members),
            Members::Wrong => Err(no_object(key)),
        }
    }
}

fn no_object(key: &str) -> Error {
    Error::invalid(format!("Unable to parse '{key}': attempt to access JSON non-object as object"))
}

impl<T> List<T> {
    /// The items of an array that must be there.
    pub(super) fn required(self, key: &str) -> Result<Vec<T>> {
        match self {
            List::Of(items) => Ok(items),
            List::Absent => Err(Scalar::Absent.is_no(key, "array")),
            List::Wrong => Err(Scalar::Other.is_no(key, "array")),
        }
    }

    /// The items; none if the array is missing.
    pub(super) fn optional(self, key: &str) -> Result<Vec<T>> {
        if matches!(self, List::Absent) { Ok(Vec::new()) } else { self.required(key) }
    }
}

impl Dims {
    /// The dimensions that member `shape` must be.
    pub(super) fn into_shape(self) -> Result<Shape> {
        match self {
            Dims::Of(shape) => Ok(shape),
            Dims::Absent => Err(Scalar::Absent.is_no("shape", "array")),
            Dims::Wrong => Err(Scalar::Other.is_no("shape", "array")),
            Dims::WrongItem => Err(Scalar::Other.is_no("shape", "signed-integer")),
            Dims::TooMany(count) => Err(Error::invalid(format!(
                "Unable to parse 'shape': {count} dimensions, expected at most {MAX_DIMS}"
            ))),
        }
    }
}

/// What a visitor makes of the JSON types it has no use for.
macro_rules! otherwise {
    ($wrong:expr; $($visit:ident $type:ty),*) => {$(
        fn $visit<E>(self, _: $type) -> Result<Self::Value, E> {
            Ok($wrong)
        }
    )*};
    (unit $wrong:expr) => {
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($wrong)
        }
    };
    (seq $wrong:expr) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok($wrong)
        }
    };
    (map $wrong:expr) => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok($wrong)
        }
    };
    (expecting $what:literal) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str($what)
        }
    };
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn visit_bool<E>(self, it: bool) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Bool(it))
    }
    fn visit_i64<E>(self, it: i64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Int(it))
    }
    fn visit_u64<E>(self, it: u64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Uint(it))
    }
    fn visit_f64<E>(self, it: f64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Double(it))
    }
    fn visit_borrowed_str<E>(self, it: &'de str) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Text(Cow::Borrowed(it)))
    }
    fn visit_str<E>(self, it: &str) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Text(Cow::Owned(it.to_owned())))
    }
    otherwise!(unit Scalar::Other);
    otherwise!(seq Scalar::Other);
    otherwise!(map Scalar::Other);
    otherwise!(expecting "a scalar");
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ScalarVisitor)
    }
}

struct MembersVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for MembersVisitor<V> {
    type Value = Members<'de, V>;

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de, V>, A::Error> {
        let mut members = Vec::new();
        while let Some((JsonKey(key), value)) = map.next_entry()? {
            check_room(members.len())?;
            members.push((key, value));
        }
        Ok(Members::Of(members))
    }
    otherwise!(Members::Wrong; visit_bool bool, visit_i64 i64, visit_u64 u64, visit_f64 f64, visit_str &str);
    otherwise!(unit Members::Wrong);
    otherwise!(seq Members::Wrong);
    otherwise!(expecting "an object");
}

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for Members<'a, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(MembersVisitor(PhantomData))
    }
}

/// Of any list but `data`: an item in memory is many times larger than its text.
fn check_room<E: serde::de::Error>(length: usize) -> Result<(), E> {
    let items = ITEMS.get() + 1;
    ITEMS.set(items);
    let most = if MAX_LIST_ITEMS <= length {
        MAX_LIST_ITEMS
    } else if MAX_ITEMS < items {
        MAX_ITEMS
    } else {
        return Ok(());
    };
    Err(E::custom(format_args!("more than {most} inputs, outputs, dimensions or parameters")))
}

/// A key that borrows where serde's own would copy.
#[derive(Deserialize)]
struct JsonKey<'a>(#[serde(borrow)] Cow<'a, str>);

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            check_room(items.len())?;
            items.push(item);
        }
        Ok(List::Of(items))
    }
    otherwise!(List::Wrong; visit_bool bool, visit_i64 i64, visit_u64 u64, visit_f64 f64, visit_str &str);
    otherwise!(unit List::Wrong);
    otherwise!(map List::Wrong);
    otherwise!(expecting "an array");
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ListVisitor(PhantomData))
    }
}

struct DimsVisitor;

impl<'de> Visitor<'de> for DimsVisitor {
    type Value = Dims;

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
        let (mut shape, mut count, mut is_wrong) = (Shape::new(), 0, false);
        while let Some(dim) = seq.next_element::<Scalar<'_>>()? {
            check_room(count)?;
            count += 1;
            match dim.int() {
                Some(dim) if count <= MAX_DIMS => shape.push(dim),
                Some(_) => (),
                None => is_wrong = true,
            }
        }
        Ok(match () {
            () if is_wrong => Dims::WrongItem,
            () if MAX_DIMS < count => Dims::TooMany(count),
            () => Dims::Of(shape),
        })
    }
    otherwise!(Dims::Wrong; visit_bool bool, visit_i64 i64, visit_u64 u64, visit_f64 f64, visit_str &str);
    otherwise!(unit Dims::Wrong);
    otherwise!(map Dims::Wrong);
    otherwise!(expecting "an array");
}

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(DimsVisitor)
    }
}
