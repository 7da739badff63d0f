//! Which requests are traced, and where that goes: to a collector of OpenTelemetry, or to a file.

mod collector;
mod collector_tls;
mod exporter;
mod file;
mod schema;
mod setting;
mod spans;
mod tracer;

pub use self::{
    setting::{FieldChange, TraceUpdate},
    tracer::Tracer,
};
