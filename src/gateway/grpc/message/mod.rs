//! gRPC messages between the connection and the gateway: bounded before anything is allocated for
//! them, their tensors never copied without need.

#[allow(dead_code, reason = "the codec of inferences is not here yet")]
mod arriving;
mod guarded;
mod inflate;
mod walk;
#[allow(dead_code, reason = "the codec of inferences is not here yet")]
mod wire;

pub(super) use self::guarded::guarded;
