//! A queue of starts behind one whose large tensors are copied into shared memory, on another
//! thread.

use std::{cell::RefCell, collections::VecDeque, rc::Weak};

use super::{
    in_flight::{deliver, failed, not_started},
    link::{Start, WorkerLink},
    shm_copy::copy,
};
use crate::python::process::launch_spec::LaunchSpec;
use troupe_base::{error::Error, request::Request};

/// Moves the large tensors of all waiting starts into segments.
pub(crate) async fn copy_then_send(link: Weak<RefCell<WorkerLink>>) {
    loop {
        let Some(held) = link.upgrade() else { return };
        let next = {
            let mut borrowed = held.borrow_mut();
            let next = borrowed.waiting.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                borrowed.waiting = None;
            }
            next
        };
        let spec = held.borrow().setup.spec.clone();
        let reaper = spec.reaper.clone();
        drop(held);
        let Some(Start { groups, generation, done }) = next else { return };
        let count = groups.len();
        let copied = reaper.spawn_blocking(move || copy_groups(groups, &spec)).await;
        match (link.upgrade(), copied) {
            (Some(link), Ok(groups)) => {
                let mut it = link.borrow_mut();
                let events = match it.generation == generation {
                    true => it.send(groups, done),
                    // Another process may lack what the last one was told by earlier requests.
                    false => not_started(groups, &done),
                };
                drop(it);
                deliver(events);
            }
            _ => {
                let error = Error::unavailable("the model was unloaded");
                deliver((0..count).map(|group| failed(&done, group, &error)).collect());
            }
        }
    }
}

fn copy_groups(mut groups: Vec<Vec<Request>>, spec: &LaunchSpec) -> Vec<Vec<Request>> {
    for request in groups.iter_mut().flatten() {
        copy(request.inputs.iter_mut().flatten(), &request.context, spec);
    }
    groups
}
