//! A step that starts where the one before has ended, on the same stack, and how many of them may.

use std::cell::Cell;

/// Steps that start within the end of the step before, on this thread's stack.
const MAX_NESTED_STEPS: u32 = 16;

thread_local! {
    static NESTED_STEPS: Cell<u32> = const { Cell::new(0) };
}

/// Held while a step starts without a message; dropped when its call returns.
pub(super) struct NestedStep(());

impl NestedStep {
    /// `None` if so many are nested already that the stack might not hold one more.
    pub(super) fn enter() -> Option<NestedStep> {
        let nested = NESTED_STEPS.get();
        (nested < MAX_NESTED_STEPS).then(|| {
            NESTED_STEPS.set(nested + 1);
            NestedStep(())
        })
    }
}

impl Drop for NestedStep {
    fn drop(&mut self) {
        NESTED_STEPS.set(NESTED_STEPS.get() - 1);
    }
}
