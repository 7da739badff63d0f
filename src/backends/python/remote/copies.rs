//! Large tensors that do not lie in shared memory: copied there on another thread, in order.

use std::{cell::RefCell, collections::VecDeque, rc::Weak};

use super::{COPY_HERE, Link, failed, tell};
use crate::python::{encode, keeper::keeper, recipe::Recipe};
use troupe_base::{error::Error, request::Request, tensor::Tensor};

/// Is it too large to be copied on this thread?
pub(super) fn needs_copy(tensor: &Tensor) -> bool {
    COPY_HERE < tensor.data().len() && tensor.segment().is_none()
}

/// Moves the large tensors of all waiting starts into segments.
pub(super) async fn copy_then_send(link: Weak<RefCell<Link>>) {
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
        let recipe = held.borrow().fixed.recipe.clone();
        drop(held);
        let Some((groups, done)) = next else { return };
        let count = groups.len();
        let copied = keeper().spawn_blocking(move || copy_groups(groups, &recipe)).await;
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

fn copy_groups(mut groups: Vec<Vec<Request>>, recipe: &Recipe) -> Vec<Vec<Request>> {
    copy(groups.iter_mut().flatten().flat_map(|it| &mut it.inputs).flatten(), recipe);
    groups
}

/// Moves large ones into segments.
pub(super) fn copy<'a>(tensors: impl Iterator<Item = &'a mut Tensor>, recipe: &Recipe) {
    for tensor in tensors {
        // Without memory the tensor stays as it is and travels in the frame.
        if needs_copy(tensor)
            && let Ok(moved) = encode::into_segment(tensor, &recipe.pool)
        {
            recipe.copied.to_worker(moved.data().len());
            *tensor = moved;
        }
    }
}
