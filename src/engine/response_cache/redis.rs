//! The cache in a Redis: several servers share it. One that fails or is slow is a miss, never a
//! failure; one that failed is tried in the background, so that no request waits for it.

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
    TlsCertificates,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use tokio::time::timeout;

use super::{
    breaker::{Breaker, Passage},
    key::AnswerKey,
    warning::Warning,
};
use troupe_base::error::{Error, Result};
use troupe_options::{RedisConfig, RedisTls};

/// What keys begin with; the number goes up with the layout of the values.
const PREFIX: &str = "troupe:1:";
/// What is looked for to find out whether a Redis answers: nothing is kept there.
const TRIAL_KEY: &str = "troupe:trial";
/// Answers that are on their way to the Redis, in bytes, at most; further ones are not kept.
const MAX_PENDING_BYTES: usize = 64 << 20;

/// Answers of all models of all servers, in a Redis.
pub(super) struct RedisStore {
    connections: Vec<ConnectionManager>,
    next: AtomicUsize,
    wait: Duration,
    /// Apart from each other: one that is full, or a replica, answers and keeps nothing.
    lookups: Arc<Guard>,
    inserts: Guard,
    pending_bytes: AtomicUsize,
}

/// What is known of one kind of use.
#[derive(Default)]
struct Guard {
    breaker: Breaker,
    warning: Warning,
}

impl RedisStore {
    /// Connects, and asks whether it answers.
    pub(super) async fn open(config: &RedisConfig) -> Result<RedisStore> {
        let wrong = |error: &dyn std::fmt::Display| {
            let RedisConfig { host, port, .. } = config;
            Error::unavailable(format!("Failed to initialize RedisCache: {host}:{port}: {error}"))
        };
        let client = client(config).map_err(|error| wrong(&error))?;
        let limit = |it: Duration| if it.is_zero() { config.wait_timeout } else { it };
        let settings = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(limit(config.connect_timeout)))
            .set_response_timeout(Some(limit(config.socket_timeout)));
        let manager = || ConnectionManager::new_lazy_with_config(client.clone(), settings.clone());
        let connections: RedisResult<Vec<_>> = (0..config.pool_size).map(|_| manager()).collect();
        let mut connections = connections.map_err(|error| wrong(&error))?;
        for connection in &mut connections {
            let ping = redis::cmd("PING");
            let asked = timeout(config.wait_timeout, ping.query_async::<()>(connection)).await;
            let answered = asked.map_err(|_| wrong(&"it does not answer a PING"))?;
            answered.map_err(|error| wrong(&error))?;
        }
        Ok(RedisStore {
            connections,
            next: AtomicUsize::new(0),
            wait: config.wait_timeout,
            lookups: Arc::default(),
            inserts: Guard::default(),
            pending_bytes: AtomicUsize::new(0),
        })
    }

    /// What is kept under a key; `None` if nothing is, or if that cannot be found out.
    pub(super) async fn get(&self, key: AnswerKey) -> Option<Bytes> {
        match self.lookups.breaker.pass(Instant::now()) {
            Passage::Free => (),
            Passage::Shut => return None,
            // Its lease goes, and is taken by the task.
            Passage::Trial(trial) => {
                drop(trial);
                self.try_soon();
                return None;
            }
        }
        let name = name(key);
        match self.look_up(&name).await {
            Ok(found) => found.map(Bytes::from),
            // Somebody has put something else there, which the next answer replaces.
            Err(Failure::Refused(error)) if error.code() == Some("WRONGTYPE") => None,
            Err(failure) => {
                self.lookups.breaker.failed(Instant::now());
                self.lookups.warning.log(|| {
                    format!("{}; models are executed meanwhile", failure.text("retrieve", &name))
                });
                None
            }
        }
    }

    /// Keeps an answer, for `ttl` if there is one. Says whether it did; failures are logged.
    pub(super) async fn insert(
        &self,
        key: AnswerKey,
        value: Vec<u8>,
        ttl: Option<Duration>,
    ) -> bool {
        // One that cannot be asked keeps nothing, either.
        if self.lookups.breaker.is_open() {
            return false;
        }
        let Some(_pending) = self.pend(value.len()) else {
            self.inserts.warning.log(|| {
                format!(
                    "Failed to insert key: {}. {MAX_PENDING_BYTES} bytes are on their way to the \
                     Redis already",
                    name(key)
                )
            });
            return false;
        };
        let trial = match self.inserts.breaker.pass(Instant::now()) {
            Passage::Free => None,
            Passage::Trial(trial) => Some(trial),
            Passage::Shut => return false,
        };
        let name = name(key);
        let Err(failure) = self.set(&name, value, ttl).await else {
            trial.into_iter().for_each(|it| it.succeeded());
            return true;
        };
        let now = Instant::now();
        match trial {
            None => self.inserts.breaker.failed(now),
            Some(trial) => trial.failed(now),
        }
        let text = || failure.text("insert", &name);
        self.inserts.warning.log(|| format!("{}; answers are not kept meanwhile", text()));
        false
    }

    async fn look_up(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let mut get = redis::cmd("GET");
        get.arg(name);
        let mut connection = self.connection();
        let asked = get.query_async::<Option<Vec<u8>>>(&mut connection);
        within(self.wait, asked).await
    }

    async fn set(&self, name: &str, value: Vec<u8>, ttl: Option<Duration>) -> Result<(), Failure> {
        let mut set = redis::cmd("SET");
        set.arg(name).arg(value);
        if let Some(ttl) = ttl {
            set.arg("PX").arg(ttl.as_millis() as u64);
        }
        let mut connection = self.connection();
        let asked = set.query_async::<()>(&mut connection);
        within(self.wait, asked).await
    }

    /// Finds out in the background whether it answers again, unless somebody does.
    fn try_soon(&self) {
        let (lookups, wait, mut connection) = (self.lookups.clone(), self.wait, self.connection());
        tokio::spawn(async move {
            let Passage::Trial(trial) = lookups.breaker.pass(Instant::now()) else { return };
            let mut get = redis::cmd("GET");
            get.arg(TRIAL_KEY);
            let asked = get.query_async::<Option<Vec<u8>>>(&mut connection);
            match within(wait, asked).await {
                Ok(_) => trial.succeeded(),
                Err(failure) => {
                    trial.failed(Instant::now());
                    let text = || failure.text("retrieve", TRIAL_KEY);
                    lookups.warning.log(|| format!("{}; models are executed meanwhile", text()));
                }
            }
        });
    }

    fn connection(&self) -> ConnectionManager {
        let next = self.next.fetch_add(1, Relaxed);
        self.connections[next % self.connections.len()].clone()
    }

    fn pend(&self, bytes: usize) -> Option<PendingBytes<'_>> {
        let before = self.pending_bytes.fetch_add(bytes, Relaxed);
        let pending = PendingBytes { all: &self.pending_bytes, bytes };
        // One of any size may go alone.
        (before == 0 || before.saturating_add(bytes) <= MAX_PENDING_BYTES).then_some(pending)
    }
}

struct PendingBytes<'a> {
    all: &'a AtomicUsize,
    bytes: usize,
}

impl Drop for PendingBytes<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}

fn name(key: AnswerKey) -> String {
    format!("{PREFIX}{:032x}", key.0)
}

/// Why there is no answer.
enum Failure {
    Refused(redis::RedisError),
    Timeout,
}

impl Failure {
    /// Triton's words; `what` is `retrieve` or `insert`.
    fn text(&self, what: &str, name: &str) -> String {
        match self {
            Failure::Refused(error) => format!("Failed to {what} key: {name}. {error}"),
            Failure::Timeout => {
                format!("Timeout {}ing key: {name}.", what.strip_suffix('e').unwrap_or(what))
            }
        }
    }
}

async fn within<T>(
    wait: Duration,
    asked: impl Future<Output = RedisResult<T>>,
) -> Result<T, Failure> {
    match timeout(wait, Box::pin(asked)).await {
        Ok(answered) => answered.map_err(Failure::Refused),
        Err(_) => Err(Failure::Timeout),
    }
}

fn client(config: &RedisConfig) -> Result<Client> {
    let wrong = |error: redis::RedisError| Error::invalid(error.to_string());
    let address = match &config.tls {
        None => ConnectionAddr::Tcp(config.host.clone(), config.port),
        Some(_) => ConnectionAddr::TcpTls {
            host: config.host.clone(),
            port: config.port,
            insecure: false,
            tls_params: None,
        },
    };
    let mut user = RedisConnectionInfo::default().set_db(config.db);
    if !config.user.is_empty() {
        user = user.set_username(&config.user);
    }
    if let Some(password) = &config.password {
        user = user.set_password(password.text());
    }
    let info = address.into_connection_info().map_err(wrong)?.set_redis_settings(user);
    match &config.tls {
        None => Client::open(info).map_err(wrong),
        Some(tls) => Client::build_with_tls(info, certificates(tls)?).map_err(wrong),
    }
}

fn certificates(tls: &RedisTls) -> Result<TlsCertificates> {
    let read = |path: &str| {
        let text = |error: io::Error| Error::invalid(format!("cannot read {path}: {error}"));
        fs::read(path).map_err(text)
    };
    let client_tls = match tls.cert.is_empty() {
        true => None,
        false => {
            let (client_cert, client_key) = (read(&tls.cert)?, read(&tls.key)?);
            Some(ClientTlsConfig { client_cert, client_key })
        }
    };
    let mut roots = Vec::new();
    if !tls.cacert.is_empty() {
        roots.extend(read(&tls.cacert)?);
    }
    if !tls.cacert_dir.is_empty() {
        let text = |error: io::Error| {
            Error::invalid(format!("cannot read the folder {}: {error}", tls.cacert_dir))
        };
        for file in fs::read_dir(Path::new(&tls.cacert_dir)).map_err(text)? {
            let path = file.map_err(text)?.path();
            if path.extension().is_some_and(|it| it == "pem" || it == "crt") {
                roots.push(b'\n');
                roots.extend(read(&path.to_string_lossy())?);
            }
        }
    }
    Ok(TlsCertificates { client_tls, root_cert: (!roots.is_empty()).then_some(roots) })
}

#[cfg(test)]
mod tests;
