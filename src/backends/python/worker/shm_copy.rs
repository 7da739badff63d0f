//! Large tensors that do not lie in shared memory: copied there on another thread, in order.

use std::{cell::RefCell, collections::VecDeque, rc::Weak};

use crate::python::process::launch_spec::LaunchSpec;
use crate::python::process::reaper::reaper;
use crate::python::protocol::encode;
use crate::python::worker::in_flight::failed;
use crate::python::worker::in_flight::tell;
use crate::python::worker::link::COPY_HERE;
use crate::python::worker::link::Link;
use troupe_base::{error::Error, request::Request, tensor::Tensor};

/// Is it too large to be copied on this thread?
pub(crate) fn needs_copy(tensor: &Tensor) -> bool {
    COPY_HERE < tensor.data().len() && tensor.segment().is_none()
}

/// Moves the large tensors of all waiting starts into segments.
pub(crate) async fn copy_then_send(link: Weak<RefCell<Link>>) {
    loop {
        let Some(held) = link.upgrade() else { return };
        let next = {
            let mut borrowed = held.borrow_mut();
            let next = borrowed.behind.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                borrowed.behind = None;
            }
            next
        };
        let spec = held.borrow().setup.spec.clone();
        drop(held);
        let Some((groups, done)) = next else { return };
        let count = groups.len();
        let copied = reaper().spawn_blocking(move || copy_groups(groups, &spec)).await;
        match (link.upgrade(), copied) {
            (Some(link), Ok(groups)) => {
                let news = link.borrow_mut().send(groups, done);
                tell(news);
            }
            _ => {
                let error = Error::unavailable("the model was unloaded");
                tell((0..count).map(|group| failed(&done, group, &error)).collect());
            }
        }
    }
}

fn copy_groups(mut groups: Vec<Vec<Request>>, spec: &LaunchSpec) -> Vec<Vec<Request>> {
    copy(groups.iter_mut().flatten().flat_map(|it| &mut it.inputs).flatten(), spec);
    groups
}

/// Moves large ones into segments.
pub(crate) fn copy<'a>(tensors: impl Iterator<Item = &'a mut Tensor>, spec: &LaunchSpec) {
    for tensor in tensors {
        // Without memory the tensor stays as it is and travels in the frame.
        if needs_copy(tensor)
            && let Ok(moved) = encode::into_segment(tensor, &spec.pool)
        {
            spec.copied.to_worker(moved.data().len());
            *tensor = moved;
        }
    }
}
