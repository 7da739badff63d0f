//! The chain of business logic calls above a request: refuses recursion, where a model would wait
//! for itself, and calls nested too deep.

use std::{fmt::Write, ptr, sync::Arc};

use super::Request;

/// Deeper nesting of calls is refused: nobody wants it, and each call keeps memory.
const MAX_CALL_DEPTH: usize = 64;

/// A model's call of another model while it executes, linked to the calls it executes for.
#[derive(Debug)]
pub struct CallChain {
    /// The calling model's name.
    pub name: Arc<str>,
    /// The calling model's version.
    pub version: i64,
    /// The name of the called model.
    pub called: Arc<str>,
    /// How many executions of the calling model may wait at once before none is left to answer a
    /// recursive call: 1, more for coroutines; `usize::MAX` for a call that blocks no execution,
    /// made by a thread that outlives `execute`.
    pub concurrency: usize,
    /// The calls it executed for when it called: several if their requests came in one group.
    above: Vec<Arc<CallChain>>,
    depth: usize,
}

impl CallChain {
    /// `name` version `version` calls `called`, and does nothing else until it is answered.
    pub fn new(name: Arc<str>, version: i64, called: Arc<str>) -> CallChain {
        CallChain { name, version, called, concurrency: 1, above: Vec::new(), depth: 1 }
    }

    /// Adds the calls that caused these requests, for which the model executes, to the chain.
    pub fn on_behalf_of(mut self, requests: &[Request]) -> CallChain {
        for caller in requests.iter().filter_map(|it| it.context.call_chain.as_ref()) {
            if !self.above.iter().any(|it| Arc::ptr_eq(it, caller)) {
                self.depth = self.depth.max(1 + caller.depth);
                self.above.push(caller.clone());
            }
        }
        self
    }

    /// Refuses a call of the model if it would wait for itself, or if the chain is too deep.
    pub fn check_recursion(&self, name: &str, version: i64) -> Result<(), String> {
        if MAX_CALL_DEPTH < self.depth {
            return Err(format!("calls are nested more than {MAX_CALL_DEPTH} deep"));
        }
        let is_same = |it: &CallChain| (&*it.name, it.version) == (name, version);
        let mut all = Vec::new();
        self.collect(&mut all);
        let waiting = all.iter().filter(|it| is_same(it));
        if waiting.clone().all(|it| waiting.clone().count() < it.concurrency) {
            return Ok(());
        }
        let mut path = Vec::new();
        self.find(&is_same, &mut path, &mut Vec::new());
        Err(format!(
            "model '{name}' would wait for itself: {}",
            describe_chain(path.iter().rev(), name)
        ))
    }

    /// This one and all above it, each once: they all wait for the same answer.
    fn collect<'a>(&'a self, all: &mut Vec<&'a CallChain>) {
        if !all.iter().any(|it| ptr::eq(*it, self)) {
            all.push(self);
            self.above.iter().for_each(|it| it.collect(all));
        }
    }

    /// Leaves the way to the model in `path`, innermost first.
    fn find<'a>(
        &'a self,
        is_it: &impl Fn(&CallChain) -> bool,
        path: &mut Vec<&'a CallChain>,
        seen: &mut Vec<*const CallChain>,
    ) -> bool {
        if seen.contains(&ptr::from_ref(self)) {
            return false;
        }
        seen.push(self);
        path.push(self);
        let found = is_it(self) || self.above.iter().any(|it| it.find(is_it, path, seen));
        if !found {
            path.pop();
        }
        found
    }
}

/// `'a' calls 'e', which runs 'b', which calls 'a'`: ensembles call nobody, they run.
pub(super) fn describe_chain<'a>(
    callers: impl Iterator<Item = &'a &'a CallChain>,
    last: &str,
) -> String {
    let mut text = String::new();
    let mut called: Option<&str> = None;
    for caller in callers {
        let _ = match called {
            None => write!(text, "'{}'", caller.name),
            Some(it) if *it == *caller.name => write!(text, ", which"),
            Some(_) => write!(text, ", which runs '{}', which", caller.name),
        };
        let _ = write!(text, " calls '{}'", caller.called);
        called = Some(&*caller.called);
    }
    if called != Some(last) {
        let _ = write!(text, ", which runs '{last}'");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Context;

    fn request(caller: CallChain) -> Request {
        let context = Context { call_chain: Some(Arc::new(caller)), ..Context::default() };
        Request { context: Arc::new(context), ..Request::default() }
    }

    fn caller(name: &str, asked: &str) -> CallChain {
        CallChain::new(name.into(), 1, asked.into())
    }

    fn check(caller: &CallChain, model: &str, expected: Option<&str>) {
        assert_eq!(caller.check_recursion(model, 1).err().as_deref(), expected);
    }

    #[test]
    fn a_circle_is_told_from_its_first_model_on() {
        let a = caller("a", "a");
        check(&a, "a", Some("model 'a' would wait for itself: 'a' calls 'a'"));
        check(&a, "b", None);
        assert_eq!(a.check_recursion("a", 2), Ok(()), "another version is another model");

        let first = [request(caller("x", "a"))];
        let a = [request(caller("a", "b").on_behalf_of(&first))];
        let b = caller("b", "a").on_behalf_of(&a);
        let circle = "model 'a' would wait for itself: 'a' calls 'b', which calls 'a'";
        check(&b, "a", Some(circle));
        check(&b, "c", None);
    }

    #[test]
    fn ensembles_between_are_named() {
        let a = [request(caller("a", "e"))];
        let b = caller("b", "f").on_behalf_of(&a);
        let expected = "model 'a' would wait for itself: 'a' calls 'e', which runs 'b', which \
                        calls 'f', which runs 'a'";
        check(&b, "a", Some(expected));
    }

    #[test]
    fn coroutines_may_wait_for_their_own_model_as_far_as_there_is_room() {
        let a = || CallChain { concurrency: 3, ..caller("a", "a") };
        let two = a().on_behalf_of(&[request(a()), request(caller("b", "a"))]);
        check(&two, "a", None);
        let three = a().on_behalf_of(&[request(two)]);
        check(&three, "a", Some("model 'a' would wait for itself: 'a' calls 'a'"));
        check(
            &three,
            "b",
            Some(
                "model 'b' would wait for itself: 'b' calls 'a', which calls 'a', which calls 'a', which runs 'b'",
            ),
        );
    }

    #[test]
    fn who_goes_on_serving_waits_for_nobody() {
        let a = CallChain { concurrency: usize::MAX, ..caller("a", "b") };
        let b = caller("b", "a").on_behalf_of(&[request(a)]);
        check(&b, "a", None);
        check(&b, "b", Some("model 'b' would wait for itself: 'b' calls 'a', which runs 'b'"));
    }

    #[test]
    fn each_request_of_a_group_counts() {
        let group = [request(caller("x", "c")), request(caller("a", "c")), Request::default()];
        let c = caller("c", "d").on_behalf_of(&group);
        check(
            &c,
            "a",
            Some("model 'a' would wait for itself: 'a' calls 'c', which calls 'd', which runs 'a'"),
        );
        check(
            &c,
            "x",
            Some("model 'x' would wait for itself: 'x' calls 'c', which calls 'd', which runs 'x'"),
        );
        check(&c, "y", None);
    }

    #[test]
    fn endless_calls_end() {
        let mut last = CallChain { concurrency: usize::MAX, ..caller("a", "a") };
        for _ in 1..MAX_CALL_DEPTH {
            last = CallChain { concurrency: usize::MAX, ..caller("a", "a") }
                .on_behalf_of(&[request(last)]);
            check(&last, "a", None);
        }
        let last = caller("a", "b").on_behalf_of(&[request(last)]);
        check(&last, "b", Some("calls are nested more than 64 deep"));
    }
}
