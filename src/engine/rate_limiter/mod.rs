//! The rate limiter: executions of all models share resources, of which there is only so much.

mod claims;
mod limiter;
mod resources;

pub use self::{
    limiter::{Claimant, Grant, RateLimiter, Seat},
    resources::{ResourceDemand, ResourceLimit},
};
