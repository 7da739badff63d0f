//! A Redis that is none: it hangs, or refuses what is to be kept.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
};

use super::*;

/// How long a Redis may take that is to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a Redis answers now, and what it was asked.
#[derive(Default)]
struct Fake {
    hangs: AtomicBool,
    refuses_writes: AtomicBool,
    lookups: AtomicUsize,
    trials: AtomicUsize,
    inserts: AtomicUsize,
}

impl Fake {
    /// On a free port; its threads end with the test's process. A slow machine may take its time to
    /// answer.
    async fn start() -> (Arc<Fake>, RedisStore) {
        let (fake, listener) = (Arc::new(Fake::default()), TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepting = fake.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let fake = accepting.clone();
                thread::spawn(move || fake.serve(&stream));
            }
        });
        let config = RedisConfig {
            host: "127.0.0.1".to_owned(),
            port,
            user: String::new(),
            password: None,
            db: 0,
            connect_timeout: Duration::ZERO,
            socket_timeout: Duration::ZERO,
            pool_size: 1,
            wait_timeout: PATIENCE,
            tls: None,
        };
        (fake, RedisStore::open(&config).await.unwrap())
    }

    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        let mut held = String::new();
        while let Some(command) = command(&mut reader) {
            let is_trial = command.get(1).is_some_and(|it| it == TRIAL_KEY);
            let (count, answer) = match command[0].to_uppercase().as_str() {
                "GET" if is_trial => (Some(&self.trials), "$-1\r\n"),
                "GET" => (Some(&self.lookups), "$2\r\nhi\r\n"),
                "SET" if self.refuses_writes.load(SeqCst) => {
                    (Some(&self.inserts), "-OOM command not allowed\r\n")
                }
                "SET" => (Some(&self.inserts), "+OK\r\n"),
                _ => (None, "+OK\r\n"),
            };
            count.into_iter().for_each(|it| _ = it.fetch_add(1, SeqCst));
            held += answer;
            if !self.hangs.load(SeqCst) {
                // The client may have gone.
                let _ = (&mut &*stream).write_all(std::mem::take(&mut held).as_bytes());
            }
        }
    }
}

/// An array of strings, as clients send it.
fn command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let count = number(reader, '*')?;
    let word = |_| {
        let mut word = vec![0; number(reader, '$')? + 2];
        reader.read_exact(&mut word).ok()?;
        Some(String::from_utf8_lossy(&word[..word.len() - 2]).into_owned())
    };
    (0..count).map(word).collect()
}

fn number(reader: &mut impl BufRead, sign: char) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().strip_prefix(sign)?.parse().ok()
}

const KEY: AnswerKey = AnswerKey(7);

async fn insert(store: &RedisStore) -> bool {
    store.insert(KEY, vec![1], None).await
}

/// Waits, for as long as it takes.
async fn until(mut holds: impl AsyncFnMut() -> bool) {
    while !holds().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn nobody_waits_for_a_redis_that_hangs_but_those_who_find_it_out() {
    let (fake, mut store) = Fake::start().await;
    assert_eq!(store.get(KEY).await.as_deref(), Some(&b"hi"[..]));
    fake.hangs.store(true, SeqCst);
    // Long enough to send something.
    store.wait = Duration::from_millis(200);
    assert_eq!(store.get(KEY).await, None);
    // It is tried in the background again and again: no lookup is sent to it meanwhile.
    until(async || {
        assert_eq!(store.get(KEY).await, None);
        assert!(!insert(&store).await);
        2 <= fake.trials.load(SeqCst)
    })
    .await;
    assert_eq!((fake.lookups.load(SeqCst), fake.inserts.load(SeqCst)), (2, 0));
    fake.hangs.store(false, SeqCst);
    store.wait = PATIENCE;
    until(async || store.get(KEY).await.is_some()).await;
    until(async || insert(&store).await).await;
}

#[tokio::test]
async fn a_redis_that_keeps_nothing_is_asked_all_the_same() {
    let (fake, store) = Fake::start().await;
    fake.refuses_writes.store(true, SeqCst);
    assert!(!insert(&store).await);
    for _ in 0..100 {
        assert!(!insert(&store).await);
        assert!(store.get(KEY).await.is_some());
    }
    // One insert is tried in each second.
    assert_eq!(fake.lookups.load(SeqCst), 100);
    assert!(fake.inserts.load(SeqCst) < 50);
    fake.refuses_writes.store(false, SeqCst);
    until(async || insert(&store).await).await;
    assert_eq!(fake.trials.load(SeqCst), 0);
}
