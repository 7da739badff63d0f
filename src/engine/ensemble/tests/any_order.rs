//! Responses in any order: each request ends once, its own come in order, and nothing is left.

use super::{fakes::*, *};

const ONE: (&str, &str) = ("x:-1", "y:-1");

/// Ensembles, inner ones first, and how many decoupled models (`d…`) are in a row; `s…` answer
/// once.
type Shape = (usize, &'static [(&'static str, &'static [&'static str])]);

const SHAPES: &[Shape] = &[
    (1, &[("top", &["d1: x=IN -> y=OUT"])]),
    (1, &[("top", &["s1: x=IN -> y=a", "d1: x=a -> y=b", "s2: x=b -> y=OUT"])]),
    (
        1,
        &[("top", &["d1: x=IN -> y=a", "s1: x=a -> y=b", "s2: x=a -> y=c", "j: a=b b=c -> y=OUT"])],
    ),
    (2, &[("top", &["d1: x=IN -> y=a", "s1: x=a -> y=b", "d2: x=b -> y=c", "s2: x=c -> y=OUT"])]),
    (3, &[("top", &["d1: x=IN -> y=a", "d2: x=a -> y=b", "d3: x=b -> y=c", "s1: x=c -> y=OUT"])]),
    (2, &[("top", &["d1: x=IN -> y=a", "d1: x=a -> y=b", "s1: x=b -> y=OUT"])]),
    (
        1,
        &[
            ("inner", &["s1: x=IN -> y=a", "s2: x=a -> y=OUT"]),
            ("top", &["d1: x=IN -> y=a", "inner: IN=a -> OUT=OUT"]),
        ],
    ),
    (
        2,
        &[
            ("inner", &["d1: x=IN -> y=a", "s1: x=a -> y=OUT"]),
            ("top", &["inner: IN=IN -> OUT=a", "s2: x=a -> y=b", "d2: x=b -> y=OUT"]),
        ],
    ),
    (
        3,
        &[
            ("inner", &["d2: x=IN -> y=a", "s1: x=a -> y=b", "d3: x=b -> y=OUT"]),
            ("top", &["d1: x=IN -> y=a", "inner: IN=a -> OUT=b", "s2: x=b -> y=OUT"]),
        ],
    ),
];

/// The same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    /// So many times in a hundred.
    fn says(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// Clients and models that act in a random order, which the seed decides.
struct RandomPlay {
    fixture: Fixture,
    dice: Dice,
    /// Whether models fail and clients leave.
    is_rough: bool,
    models: Vec<(bool, ModelRequests)>,
    /// Requests that no model has answered, and whether it may respond any number of times.
    open: Vec<(bool, OpenRequest)>,
    clients: Vec<Played>,
    /// Which numbers a decoupled model has made of each.
    made: HashMap<i32, Vec<i32>>,
    last: i32,
    held: UnreturnedCredit,
}

struct Played {
    client: Client,
    number: i32,
    received: Vec<String>,
    has_ended: bool,
}

impl RandomPlay {
    async fn new(mut fixture: Fixture, (_, ensembles): &Shape, seed: usize) -> RandomPlay {
        const WINDOWS: [&str; 3] = [
            "",
            "parameters { key: 'ITERATION_WINDOW_BYTES' value { string_value: '1' } }",
            "parameters { key: 'ITERATION_WINDOW_BYTES' value { string_value: '5K' } }",
        ];
        fixture.limit = [0, 0, 1, 3][seed % 4];
        fixture.more = WINDOWS[seed / 4 % 3];
        let mut models = Vec::new();
        for name in ["s1", "s2"] {
            models.push((false, fixture.fake(name, ONE)));
        }
        models.push((false, fixture.fake("j", ("a:-1 b:-1", "y:-1"))));
        for name in ["d1", "d2", "d3"] {
            models.push((true, fixture.fake_decoupled(name, ONE)));
        }
        for (name, steps) in *ensembles {
            fixture.ensemble(name, 0, ("IN:-1", "OUT:-1"), steps).await.unwrap();
        }
        let dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (seed as u64) << 7);
        let (open, clients, made) = (Vec::new(), Vec::new(), HashMap::new());
        let (is_rough, held) = (seed.is_multiple_of(2), UnreturnedCredit::default());
        RandomPlay { fixture, dice, is_rough, models, open, clients, made, last: 0, held }
    }

    fn number(&mut self) -> i32 {
        self.last += 1;
        self.last
    }

    fn ask(&mut self) {
        let number = self.number();
        let client = self.fixture.stream("top", number);
        self.clients.push(Played { client, number, received: Vec::new(), has_ended: false });
    }

    /// One thing happens.
    fn act(&mut self) {
        let kind = self.dice.below(100);
        if kind < 8 && self.clients.len() < 8 {
            return self.ask();
        }
        if !self.clients.is_empty() && kind < 25 {
            let index = self.dice.below(self.clients.len());
            let client = &mut self.clients[index].client;
            return if self.is_rough && kind < 10 {
                client.context.cancel();
            } else {
                let left = self.dice.below(1 + client.taken.len());
                client.taken.truncate(left);
            };
        }
        if self.open.is_empty() {
            return;
        }
        let (is_decoupled, open) = self.open.swap_remove(self.dice.below(self.open.len()));
        if self.is_rough && self.dice.says(4) {
            match self.dice.below(3) {
                0 => open.fail("bad luck"),
                1 => drop(open),
                _ => open.reply.refuse(Error::invalid("bad luck")),
            }
        } else if is_decoupled {
            self.respond(open);
        } else {
            open.swell(self.dice.below(4) << self.dice.below(11));
        }
    }

    fn respond(&mut self, mut open: OpenRequest) {
        let source = open.values()[0];
        let most = if self.dice.says(10) { 50 } else { 4 };
        for _ in 0..self.dice.below(most) {
            let number = self.number();
            self.made.entry(source).or_default().push(number);
            open.counted_part(number, &self.held);
        }
        match self.dice.below(100) {
            0..20 => open.end(),
            20..30 => {
                let number = self.number();
                self.made.entry(source).or_default().push(number);
                open.answer(number);
            }
            30..33 if self.is_rough => {
                open.reply.part(Err(Error::unavailable("bad luck")));
                self.open.push((true, open));
            }
            _ => self.open.push((true, open)),
        }
    }

    /// Whatever follows from it.
    async fn settle(&mut self) {
        match self.fixture.engines.all().len() {
            1 => settle().await,
            // What is not through then is through later: that is an order, too.
            _ => settle_in(5).await,
        }
        for (is_decoupled, asked) in &mut self.models {
            self.open.extend(asked.all().into_iter().map(|it| (*is_decoupled, it)));
        }
        for it in self.clients.iter_mut().filter(|it| !it.has_ended) {
            let (received, has_ended) = it.client.all();
            it.received.extend(received);
            it.has_ended = has_ended;
        }
    }

    /// Everything comes to its end.
    async fn finish(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            let received =
                |it: &RandomPlay| it.clients.iter().map(|it| it.received.len()).sum::<usize>();
            let (before, was_idle) = (received(self), self.open.is_empty());
            for (is_decoupled, open) in std::mem::take(&mut self.open) {
                if is_decoupled { open.end() } else { open.echo() }
            }
            self.clients.iter_mut().for_each(|it| it.client.taken.clear());
            self.settle().await;
            if self.open.is_empty() && self.clients.iter().all(|it| it.has_ended) {
                break;
            }
            let is_still = was_idle && received(self) == before;
            if is_still || self.fixture.engines.all().len() == 1 {
                later().await;
                self.settle().await;
            }
            idle = if was_idle && received(self) == before { idle + 1 } else { 0 };
        }
        self.clients.iter_mut().for_each(|it| it.client.taken.clear());
        self.settle().await;
    }

    /// What the client would be received if nothing failed.
    fn expected(&self, depth: usize, number: i32, all: &mut Vec<i32>) {
        if depth == 0 {
            return all.push(number);
        }
        for it in self.made.get(&number).into_iter().flatten() {
            self.expected(depth - 1, *it, all);
        }
    }

    fn check(&self, depth: usize, received: &Played, name: &str) {
        let Played { client, number, received, has_ended } = received;
        assert!(has_ended, "{name}: a client waits; it was received {received:?}");
        let mut expected = Vec::new();
        self.expected(depth, *number, &mut expected);
        let (last, parts) = received.split_last().unwrap_or_else(|| panic!("{name}: no end"));
        let mut numbers: Vec<i32> = parts.iter().map(|it| first(it)).collect();
        let is_error = last.starts_with("last in ") || last.ends_with("cancelled");
        if is_error {
            let came = numbers.len().min(expected.len());
            assert_eq!(numbers, expected[..came], "{name}, then {last}");
            assert!(self.is_rough, "{name}: {last}");
        } else {
            numbers.extend(last.strip_prefix("last ").map(first));
            assert_eq!(numbers, expected, "{name}, then {last}");
        }
        let left = Arc::strong_count(&client.context.scope);
        assert_eq!(left, 1, "{name}: something of the request is left");
    }
}

/// Zeros follow.
fn first(text: &str) -> i32 {
    text.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{text}"))
}

async fn play(fixture: Fixture, index: usize, seed: usize) {
    let (shape, threads) = (&SHAPES[index], fixture.engines.all().len());
    let name = format!("shape {index}, seed {seed}, {threads} threads");
    let mut play = RandomPlay::new(fixture, shape, seed).await;
    for _ in 0..60 {
        play.act();
        play.settle().await;
    }
    play.finish().await;
    assert!(play.open.is_empty(), "{name}: models are asked without end");
    play.clients.iter().for_each(|it| play.check(shape.0, it, &name));
    assert!(play.held.is(0), "{name}: credit is held");

    // The windows are as they were.
    let before = play.clients.len();
    play.is_rough = false;
    let at_once = play.fixture.limit.max(1) as usize;
    (0..at_once).for_each(|_| play.ask());
    settle().await;
    play.settle().await;
    assert_eq!(play.open.len(), at_once, "{name}: not all have begun");
    for _ in 0..25 {
        play.act();
        play.settle().await;
    }
    play.finish().await;
    play.clients[before..].iter().for_each(|it| play.check(shape.0, it, &name));
    assert!(play.held.is(0), "{name}: credit is held at last");
}

#[test]
fn each_request_ends_once_and_in_order_and_leaves_nothing() {
    for index in 0..SHAPES.len() {
        for seed in 0..24 {
            on_one_thread(|fixture| play(fixture, index, seed));
        }
    }
}

#[test]
fn each_request_ends_once_and_in_order_on_many_threads() {
    for (threads, seed) in THREADS[1..].iter().zip([3, 6]) {
        for index in 0..SHAPES.len() {
            System::new().block_on(play(Fixture::of_threads(*threads), index, seed));
        }
    }
}
