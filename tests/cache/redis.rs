//! A cache in a Redis: shared by servers, and missed by nobody when it goes. Skipped where there is
//! no `redis-server`.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use super::{cached, execution, gauge, hits_and_misses, request};
use crate::support::{Repository, Server, certificates::Authority, eventually, until};

/// A Redis; killed when dropped.
struct Redis {
    port: u16,
    child: Child,
}

impl Redis {
    /// On a free port, with a password if there is one; `None` if none is installed.
    fn start(password: &str) -> Option<Redis> {
        for _ in 0..10 {
            // Free a moment ago, and so most likely still.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(redis) = Redis::on(port, password)? {
                return Some(redis);
            }
        }
        panic!("no port for a redis-server");
    }

    /// `Some(None)`: somebody has the port.
    fn on(port: u16, password: &str) -> Option<Option<Redis>> {
        let mut flags = vec!["--port".to_owned(), port.to_string()];
        if !password.is_empty() {
            flags.extend(["--requirepass", password].map(str::to_owned));
        }
        Redis::with(port, &flags)
    }

    /// The same, encrypted, for clients that show a certificate of this folder's authority.
    fn encrypted(folder: &Path) -> Option<Redis> {
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
            let files = [
                ("--tls-cert-file", file("redis.pem")),
                ("--tls-key-file", file("redis.key")),
                ("--tls-ca-cert-file", file("roots.pem")),
                ("--tls-port", port.to_string()),
                ("--port", "0".to_owned()),
            ];
            let flags: Vec<String> =
                files.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
            if let Some(redis) = Redis::with(port, &flags)? {
                return Some(redis);
            }
        }
        println!("skipped: this redis-server has no TLS");
        None
    }

    fn with(port: u16, flags: &[String]) -> Option<Option<Redis>> {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", ""]).args(flags);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = child else {
            println!("skipped: there is no redis-server");
            return None;
        };
        let mut redis = Redis { port, child };
        let is_up = eventually("redis-server", || {
            if redis.child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(true)
        });
        Some(is_up.then_some(redis))
    }

    fn flags(&self, more: &[&str]) -> Vec<String> {
        let own = ["host=127.0.0.1".to_owned(), format!("port={}", self.port)];
        let all = own.into_iter().chain(more.iter().map(|it| (*it).to_owned()));
        all.map(|it| format!("--cache-config=redis,{it}")).collect()
    }

    fn serve(&self, repository: Repository) -> Server {
        let flags = self.flags(&["wait_timeout=3000", "pool_size=2"]);
        Server::with(repository, &flags.iter().map(|it| &**it).collect::<Vec<_>>())
    }

    /// What it answers to a command.
    fn told(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "{command}\r\nQUIT\r\n").unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        told
    }

    fn keys(&self) -> Vec<String> {
        let told = self.told("KEYS troupe:*");
        told.lines().filter(|it| it.starts_with("troupe:")).map(|it| it.trim().to_owned()).collect()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn repository(more: &str) -> Repository {
    Repository::new().with("m", cached(more))
}

#[test]
fn servers_that_load_the_same_share_their_answers() {
    let Some(redis) = Redis::start("") else { return };
    let first = redis.serve(repository(""));
    assert_eq!(execution(&first, "m", &request(&[1.0])), 1.0);
    until("the answer to be kept", || {
        execution(&first, "m", &request(&[1.0])) == 1.0 && 0 < hits_and_misses(&first, "m").0
    });
    assert_eq!(first.executions("m"), hits_and_misses(&first, "m").1);
    let second = redis.serve(repository(""));
    assert_eq!(execution(&second, "m", &request(&[1.0])), 1.0);
    assert_eq!((second.executions("m"), hits_and_misses(&second, "m")), (0, (1, 0)));
    assert_eq!(gauge(&second, "nv_cache_num_hits"), Some(1.0));
    assert_eq!(gauge(&second, "nv_cache_util"), None);
    // Another model by that name has other answers.
    let other = redis.serve(repository("ttl_seconds: 60"));
    assert_eq!(execution(&other, "m", &request(&[1.0])), 1.0);
    assert_eq!((other.executions("m"), hits_and_misses(&other, "m")), (1, (0, 1)));
}

#[test]
fn what_somebody_else_put_under_a_key_is_a_miss_of_that_key_alone() {
    let Some(redis) = Redis::start("") else { return };
    let server = redis.serve(repository(""));
    execution(&server, "m", &request(&[1.0]));
    let spoiled = eventually("an answer", || redis.keys().pop());
    execution(&server, "m", &request(&[2.0]));
    until("two answers", || redis.keys().len() == 2);
    redis.told(&format!("DEL {spoiled}"));
    redis.told(&format!("LPUSH {spoiled} 1"));
    assert_eq!(execution(&server, "m", &request(&[1.0])), 3.0);
    assert_eq!(execution(&server, "m", &request(&[2.0])), 2.0, "the others are found");
    until("the key to have an answer again", || {
        redis.told(&format!("TYPE {spoiled}")).starts_with("+string")
    });
    assert!(!server.log().contains("models are executed meanwhile"));
}

#[test]
fn without_its_redis_a_server_executes_and_says_so_and_goes_on_with_it() {
    let Some(mut redis) = Redis::start("") else { return };
    let server = redis.serve(repository(""));
    assert_eq!(execution(&server, "m", &request(&[1.0])), 1.0);
    let port = redis.port;
    redis.child.kill().unwrap();
    redis.child.wait().unwrap();
    for count in 0..20 {
        let answer = server.infer("m", &request(&[2.0 + count as f32]));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    server.logged("models are executed meanwhile");
    assert_eq!(server.log().matches("models are executed meanwhile").count(), 1);
    let Some(Some(_redis)) = Redis::on(port, "") else { return };
    let before = hits_and_misses(&server, "m").0;
    until("a hit", || {
        execution(&server, "m", &request(&[7.0]));
        before < hits_and_misses(&server, "m").0
    });
    server.is_well();
}

#[test]
fn a_server_does_not_start_without_its_redis_or_with_a_wrong_password() {
    let Some(mut redis) = Redis::start("secret") else { return };
    let start = |redis: &Redis, more: &[&str]| {
        let flags = redis.flags(more);
        let flags: Vec<&str> = flags.iter().map(|it| &**it).collect();
        Server::fails(&repository(""), &flags)
    };
    let told = format!("Failed to initialize RedisCache: 127.0.0.1:{}: ", redis.port);
    for (more, expected) in [(vec!["password=wrong"], "WRONGPASS"), (vec![], "NOAUTH")] {
        let ended = start(&redis, &more);
        assert!(ended.output.contains(&told), "{}", ended.output);
        let is_told = ended.output.contains(expected) || ended.output.contains("uthentication");
        assert!(is_told && !ended.output.contains("=wrong"), "{}", ended.output);
    }
    let flags = redis.flags(&["password=secret", "db=3"]);
    let server = Server::with(repository(""), &flags.iter().map(|it| &**it).collect::<Vec<_>>());
    assert_eq!(execution(&server, "m", &request(&[1.0])), 1.0);
    redis.child.kill().unwrap();
    redis.child.wait().unwrap();
    let ended = start(&redis, &["password=secret"]);
    assert!(ended.output.contains(&told), "{}", ended.output);
    assert_ne!(ended.code, Some(0));
}

#[test]
fn a_redis_is_reached_over_tls_and_both_show_who_they_are() {
    let repository = repository("");
    let folder = repository.beside("tls");
    std::fs::create_dir(&folder).unwrap();
    let authority = Authority::new("cache");
    std::fs::write(folder.join("roots.pem"), authority.pem()).unwrap();
    authority.issue("redis").write(&folder, "redis");
    authority.issue("troupe").write(&folder, "troupe");
    std::fs::write(folder.join("others.pem"), Authority::new("others").pem()).unwrap();
    let Some(redis) = Redis::encrypted(&folder) else { return };
    let flags = |roots: &str, own: &str| {
        let file = |key: &str, name: &str| format!("{key}={}", folder.join(name).display());
        let mut more = vec!["tls_enabled=true".to_owned(), file("cacert", roots)];
        if !own.is_empty() {
            more.push(file("cert", &format!("{own}.pem")));
            more.push(file("key", &format!("{own}.key")));
        }
        redis.flags(&more.iter().map(|it| &**it).collect::<Vec<_>>())
    };
    let told = format!("Failed to initialize RedisCache: 127.0.0.1:{}: ", redis.port);
    // One whose authority is another one, and one that does not know who asks, are no cache.
    for (roots, own) in [("others.pem", "troupe"), ("roots.pem", "")] {
        let flags = flags(roots, own);
        let ended = Server::fails(&repository, &flags.iter().map(|it| &**it).collect::<Vec<_>>());
        assert!(ended.output.contains(&told), "{}", ended.output);
    }
    let flags = flags("roots.pem", "troupe");
    let server = Server::with(repository, &flags.iter().map(|it| &**it).collect::<Vec<_>>());
    assert_eq!(execution(&server, "m", &request(&[1.0])), 1.0);
    until("the answer to be kept", || {
        execution(&server, "m", &request(&[1.0])) == 1.0 && 0 < hits_and_misses(&server, "m").0
    });
}
