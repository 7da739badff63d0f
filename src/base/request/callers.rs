//! Models that called models: who waits for whom, from the one that asked up to the first.

use std::{fmt::Write, ptr, sync::Arc};

use super::Request;

/// More calls inside calls than this are refused: nobody means them, and each keeps memory.
const DEEPEST: usize = 64;

/// A model that called another while it executed.
#[derive(Debug)]
pub struct Caller {
    /// Its name.
    pub name: Arc<str>,
    /// Its version.
    pub version: i64,
    /// The model it called.
    pub asked: Arc<str>,
    /// When so many executions of the model wait, nobody is left to answer for it: one, unless they
    /// are coroutines. There is no end to what holds nobody up: a thread that outlives `execute`.
    pub room: usize,
    /// Whose calls it executed then: several if they came in one group.
    above: Vec<Arc<Caller>>,
    depth: usize,
}

impl Caller {
    /// `name` version `version` calls `asked`, and does nothing else until it is answered.
    pub fn new(name: Arc<str>, version: i64, asked: Arc<str>) -> Caller {
        Caller { name, version, asked, room: 1, above: Vec::new(), depth: 1 }
    }

    /// The call was made for these requests.
    pub fn executing(mut self, requests: &[Request]) -> Caller {
        for caller in requests.iter().filter_map(|it| it.context.caller.as_ref()) {
            if !self.above.iter().any(|it| Arc::ptr_eq(it, caller)) {
                self.depth = self.depth.max(1 + caller.depth);
                self.above.push(caller.clone());
            }
        }
        self
    }

    /// Why the model must not be asked: it would wait for itself, or the calls never end.
    pub fn objection(&self, name: &str, version: i64) -> Option<String> {
        if DEEPEST < self.depth {
            return Some(format!("calls are nested more than {DEEPEST} deep"));
        }
        let is_same = |it: &Caller| (&*it.name, it.version) == (name, version);
        let mut all = Vec::new();
        self.collect(&mut all);
        let waiting = all.iter().filter(|it| is_same(it));
        if waiting.clone().all(|it| waiting.clone().count() < it.room) {
            return None;
        }
        let mut path = Vec::new();
        self.find(&is_same, &mut path, &mut Vec::new());
        Some(format!("model '{name}' would wait for itself: {}", told(path.iter().rev(), name)))
    }

    /// This one and all above it, each once: they all wait for the same answer.
    fn collect<'a>(&'a self, all: &mut Vec<&'a Caller>) {
        if !all.iter().any(|it| ptr::eq(*it, self)) {
            all.push(self);
            self.above.iter().for_each(|it| it.collect(all));
        }
    }

    /// Leaves the way to the model in `path`, innermost first.
    fn find<'a>(
        &'a self,
        is_it: &impl Fn(&Caller) -> bool,
        path: &mut Vec<&'a Caller>,
        seen: &mut Vec<*const Caller>,
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
pub(super) fn told<'a>(callers: impl Iterator<Item = &'a &'a Caller>, last: &str) -> String {
    let mut text = String::new();
    let mut asked: Option<&str> = None;
    for caller in callers {
        let _ = match asked {
            None => write!(text, "'{}'", caller.name),
            Some(it) if *it == *caller.name => write!(text, ", which"),
            Some(_) => write!(text, ", which runs '{}', which", caller.name),
        };
        let _ = write!(text, " calls '{}'", caller.asked);
        asked = Some(&*caller.asked);
    }
    if asked != Some(last) {
        let _ = write!(text, ", which runs '{last}'");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Context;

    fn request(caller: Caller) -> Request {
        let context = Context { caller: Some(Arc::new(caller)), ..Context::default() };
        Request { context: Arc::new(context), ..Request::default() }
    }

    fn caller(name: &str, asked: &str) -> Caller {
        Caller::new(name.into(), 1, asked.into())
    }

    fn check(caller: &Caller, model: &str, expected: Option<&str>) {
        assert_eq!(caller.objection(model, 1).as_deref(), expected);
    }

    #[test]
    fn a_circle_is_told_from_its_first_model_on() {
        let a = caller("a", "a");
        check(&a, "a", Some("model 'a' would wait for itself: 'a' calls 'a'"));
        check(&a, "b", None);
        assert_eq!(a.objection("a", 2), None, "another version is another model");

        let first = [request(caller("x", "a"))];
        let a = [request(caller("a", "b").executing(&first))];
        let b = caller("b", "a").executing(&a);
        let circle = "model 'a' would wait for itself: 'a' calls 'b', which calls 'a'";
        check(&b, "a", Some(circle));
        check(&b, "c", None);
    }

    #[test]
    fn ensembles_between_are_named() {
        let a = [request(caller("a", "e"))];
        let b = caller("b", "f").executing(&a);
        let expected = "model 'a' would wait for itself: 'a' calls 'e', which runs 'b', which \
                        calls 'f', which runs 'a'";
        check(&b, "a", Some(expected));
    }

    #[test]
    fn coroutines_may_wait_for_their_own_model_as_far_as_there_is_room() {
        let a = || Caller { room: 3, ..caller("a", "a") };
        let two = a().executing(&[request(a()), request(caller("b", "a"))]);
        check(&two, "a", None);
        let three = a().executing(&[request(two)]);
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
        let a = Caller { room: usize::MAX, ..caller("a", "b") };
        let b = caller("b", "a").executing(&[request(a)]);
        check(&b, "a", None);
        check(&b, "b", Some("model 'b' would wait for itself: 'b' calls 'a', which runs 'b'"));
    }

    #[test]
    fn each_request_of_a_group_counts() {
        let group = [request(caller("x", "c")), request(caller("a", "c")), Request::default()];
        let c = caller("c", "d").executing(&group);
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
        let mut last = Caller { room: usize::MAX, ..caller("a", "a") };
        for _ in 1..DEEPEST {
            last = Caller { room: usize::MAX, ..caller("a", "a") }.executing(&[request(last)]);
            check(&last, "a", None);
        }
        let last = caller("a", "b").executing(&[request(last)]);
        check(&last, "b", Some("calls are nested more than 64 deep"));
    }
}
