//! The response cache: `--cache-config`, in Triton's words, and what it means.

use std::{fmt, time::Duration};

use clap::Args;

use super::{restricted::Secret, switch};

/// What clients' requests wait for a Redis, unless the command line says.
const WAIT_TIMEOUT: Duration = Duration::from_millis(1000);
/// Connections to a Redis, at most.
const MAX_POOL: u32 = 256;

/// Where answers of models are kept.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Response cache")]
pub struct CacheArguments {
    /// `<cache>,<setting>=<value>`, once for each setting, keeps answers of models whose config says
    /// `response_cache`: `local,size=BYTES` in memory, `redis,host=HOST` and `redis,port=PORT` in a
    /// Redis
    #[arg(long, value_parser = setting, value_name = "CACHE,SETTING=VALUE")]
    pub cache_config: Vec<CacheSetting>,
    /// `--cache-config=local,size=BYTES`, as it was called before; 0: no cache
    #[arg(long, hide = true)]
    pub response_cache_byte_size: Option<u64>,
}

/// One `--cache-config`.
#[derive(Clone, PartialEq)]
pub struct CacheSetting {
    cache: String,
    key: String,
    value: String,
}

/// It may hold a password.
impl fmt::Debug for CacheSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}=…", self.cache, self.key)
    }
}

/// A response cache.
#[derive(Clone, Debug, PartialEq)]
pub enum CacheConfig {
    /// In the memory of the server: so many bytes.
    Local {
        /// Bytes.
        size: u64,
    },
    /// In a Redis.
    Redis(Box<RedisConfig>),
}

/// How a Redis is reached; names and defaults are Triton's.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names are Triton's")]
pub struct RedisConfig {
    pub host: String,
    pub port: u16,
    /// Empty: the default user.
    pub user: String,
    pub password: Option<Secret>,
    pub db: i64,
    /// Zero: only `wait_timeout` ends it.
    pub connect_timeout: Duration,
    /// Zero: only `wait_timeout` ends it.
    pub socket_timeout: Duration,
    /// Connections.
    pub pool_size: u32,
    /// What a lookup, or a start, may take in all.
    pub wait_timeout: Duration,
    pub tls: Option<RedisTls>,
}

/// Certificates, as paths of PEM files; empty where there is none.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are Triton's")]
pub struct RedisTls {
    pub cert: String,
    pub key: String,
    pub cacert: String,
    pub cacert_dir: String,
}

fn setting(text: &str) -> Result<CacheSetting, String> {
    // What follows may be a secret.
    let got = text.find("password=").map_or(text, |at| &text[..at + "password=".len()]);
    let Some((cache, rest)) = text.split_once(',').filter(|(cache, _)| !cache.is_empty()) else {
        return Err(format!(
            "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. \
             Got {got}"
        ));
    };
    match rest.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            let [cache, key, value] = [cache, key, value].map(str::to_owned);
            Ok(CacheSetting { cache, key, value })
        }
        _ => Err(format!(
            "--cache-config option format is '<cache name>,<setting>=<value>'. Got {got}"
        )),
    }
}

impl CacheArguments {
    /// What they mean together; `variable` reads the environment.
    pub fn parsed(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<CacheConfig>, String> {
        if let Some(size) = self.response_cache_byte_size {
            if !self.cache_config.is_empty() {
                return Err("Error: Incompatible flags --response-cache-byte-size and \
                            --cache-config both provided. Please provide one or the other."
                    .to_owned());
            }
            return Ok((size != 0).then_some(CacheConfig::Local { size }));
        }
        let Some(first) = self.cache_config.first() else { return Ok(None) };
        if self.cache_config.iter().any(|it| it.cache != first.cache) {
            return Err(
                "found multiple cache configurations, but only a single cache is supported"
                    .to_owned(),
            );
        }
        let settings = Settings(&self.cache_config);
        match &*first.cache {
            "local" => local(&settings).map(Some),
            "redis" => redis(&settings, variable).map(Some),
            other => Err(format!(
                "unable to find 'libtritoncache_{other}.so' for cache. troupe has: local, redis"
            )),
        }
    }
}

/// Settings of one cache; of several with one name the last counts.
struct Settings<'a>(&'a [CacheSetting]);

impl Settings<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|it| it.key == key).map(|it| &*it.value)
    }

    fn text(&self, key: &str) -> String {
        self.get(key).unwrap_or_default().to_owned()
    }

    fn number<T: std::str::FromStr>(&self, key: &str, default: T) -> Result<T, String> {
        let Some(text) = self.get(key) else { return Ok(default) };
        text.parse().map_err(|_| self.wrong(key, "a number", text))
    }

    fn milliseconds(&self, key: &str, default: Duration) -> Result<Duration, String> {
        let default = default.as_millis() as u32;
        self.number(key, default).map(|it| Duration::from_millis(it.into()))
    }

    fn wrong(&self, key: &str, expected: &str, got: &str) -> String {
        let cache = &self.0[0].cache;
        format!("--cache-config={cache},{key} is to be {expected}, got `{got}`")
    }

    fn has_only(&self, known: &[&str]) -> Result<(), String> {
        let Some(other) = self.0.iter().find(|it| !known.contains(&&*it.key)) else {
            return Ok(());
        };
        let CacheSetting { cache, key, .. } = other;
        let known = known.join(", ");
        Err(format!("--cache-config={cache},{key} is unknown; cache '{cache}' has: {known}"))
    }
}

fn local(settings: &Settings<'_>) -> Result<CacheConfig, String> {
    settings.has_only(&["size"])?;
    let Some(text) = settings.get("size") else {
        return Err("Failed to initialize LocalCache: config didn't contain a valid 'size' field."
            .to_owned());
    };
    match settings.number("size", 0)? {
        0 => Err(settings.wrong("size", "greater than 0", text)),
        size => Ok(CacheConfig::Local { size }),
    }
}

const REDIS_SETTINGS: &[&str] = &[
    "host",
    "port",
    "user",
    "password",
    "db",
    "connect_timeout",
    "socket_timeout",
    "pool_size",
    "wait_timeout",
    "tls_enabled",
    "cert",
    "key",
    "cacert",
    "cacert_dir",
    "sni",
];

fn redis(
    settings: &Settings<'_>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<CacheConfig, String> {
    settings.has_only(REDIS_SETTINGS)?;
    let (Some(host), Some(port)) = (settings.get("host"), settings.get("port")) else {
        return Err("Failed to initialize RedisCache, didn't specify address. Must at a minimum \
                    specify 'host' and 'port' in the configuration - e.g. tritonserver \
                    --cache-config redis,host=redis --cache-config redis,port=6379 \
                    --model-repository=/models ..."
            .to_owned());
    };
    let user = settings.get("user").map(str::to_owned);
    let password = settings.get("password").map(str::to_owned);
    let password = password.or_else(|| variable("TRITONCACHE_REDIS_PASSWORD"));
    let pool_size = settings.number("pool_size", 1)?;
    if !(1..=MAX_POOL).contains(&pool_size) {
        let expected = format!("from 1 to {MAX_POOL}");
        return Err(settings.wrong("pool_size", &expected, &pool_size.to_string()));
    }
    let wait_timeout = settings.milliseconds("wait_timeout", WAIT_TIMEOUT)?;
    Ok(CacheConfig::Redis(Box::new(RedisConfig {
        host: host.to_owned(),
        port: port.parse().map_err(|_| settings.wrong("port", "a port", port))?,
        user: user.or_else(|| variable("TRITONCACHE_REDIS_USERNAME")).unwrap_or_default(),
        password: password.map(|it| Secret::new(&it)),
        db: settings.number("db", 0)?,
        connect_timeout: settings.milliseconds("connect_timeout", Duration::ZERO)?,
        socket_timeout: settings.milliseconds("socket_timeout", Duration::ZERO)?,
        pool_size,
        // No wait ever is without an end.
        wait_timeout: if wait_timeout.is_zero() { WAIT_TIMEOUT } else { wait_timeout },
        tls: tls(settings, host)?,
    })))
}

fn tls(settings: &Settings<'_>, host: &str) -> Result<Option<RedisTls>, String> {
    let is_on = match settings.get("tls_enabled") {
        Some(text) => switch(text).map_err(|_| settings.wrong("tls_enabled", "a switch", text))?,
        None => false,
    };
    if let Some(name) = settings.get("sni").filter(|name| *name != host) {
        return Err(format!(
            "--cache-config=redis,sni={name} is not supported: the name in a certificate is \
             compared with `host`, which is {host}"
        ));
    }
    let tls = RedisTls {
        cert: settings.text("cert"),
        key: settings.text("key"),
        cacert: settings.text("cacert"),
        cacert_dir: settings.text("cacert_dir"),
    };
    if tls.cert.is_empty() != tls.key.is_empty() {
        return Err("--cache-config=redis: `cert` and `key` only go together".to_owned());
    }
    if !is_on && tls != RedisTls::default() {
        return Err(
            "--cache-config=redis has certificates, but `tls_enabled` is not `true`".to_owned()
        );
    }
    Ok(is_on.then_some(tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &[&str]) -> Result<Option<CacheConfig>, String> {
        let cache_config = settings.iter().map(|it| setting(it)).collect::<Result<_, _>>()?;
        let arguments = CacheArguments { cache_config, response_cache_byte_size: None };
        arguments.parsed(|name| name.ends_with("_USERNAME").then(|| "env".to_owned()))
    }

    #[test]
    fn a_cache_is_read_from_all_its_settings() {
        assert_eq!(read(&[]), Ok(None));
        let size = |size| Ok(Some(CacheConfig::Local { size }));
        assert_eq!(read(&["local,size=1048576"]), size(1 << 20));
        assert_eq!(read(&["local,size=1", "local,size=2"]), size(2));
        let flag = |size, cache_config| {
            CacheArguments { cache_config, response_cache_byte_size: Some(size) }.parsed(|_| None)
        };
        assert_eq!(flag(0, Vec::new()), Ok(None));
        assert_eq!(flag(7, Vec::new()), size(7));
        let both = flag(7, vec![setting("local,size=1").unwrap()]).unwrap_err();
        assert!(both.starts_with("Error: Incompatible flags --response-cache-byte-size and"));
        let all = ["redis,host=h", "redis,port=6379", "redis,password=p", "redis,wait_timeout=0"];
        let Ok(Some(CacheConfig::Redis(redis))) = read(&all) else { panic!("no redis") };
        assert_eq!((&*redis.host, redis.port, &*redis.user, redis.db), ("h", 6379, "env", 0));
        assert_eq!((redis.pool_size, redis.wait_timeout), (1, WAIT_TIMEOUT));
        assert_eq!((redis.password, redis.tls), (Some(Secret::new("p")), None));
        let user = read(&["redis,host=h", "redis,port=1", "redis,user=own", "redis,db=3"]);
        let Ok(Some(CacheConfig::Redis(redis))) = user else { panic!("no redis") };
        assert_eq!((&*redis.user, redis.db), ("own", 3));
    }

    #[test]
    fn mistakes_are_told_in_tritons_words_and_without_secrets() {
        let redis = |more: &'static str| vec!["redis,host=h", "redis,port=1", more];
        for (settings, expected) in [
            (vec!["size=1"], "No cache specified. --cache-config option format is <cache name>,"),
            (vec![",password=x"], "Got ,password="),
            (vec!["local,size"], "format is '<cache name>,<setting>=<value>'. Got local,size"),
            (vec!["local,size=1", "redis,host=h"], "found multiple cache configurations, but only"),
            (vec!["x,size=1"], "unable to find 'libtritoncache_x.so' for cache."),
            (vec!["local,sise=1"], "local,sise is unknown; cache 'local' has: size"),
            (vec!["local,size=x"], "local,size is to be a number, got `x`"),
            (vec!["local,size=0"], "local,size is to be greater than 0, got `0`"),
            (vec!["redis,size=1"], "redis,size is unknown"),
            (vec!["redis,host=h"], "Failed to initialize RedisCache, didn't specify address."),
            (vec!["redis,host=h", "redis,port=x"], "redis,port is to be a port, got `x`"),
            (redis("redis,pool_size=0"), "redis,pool_size is to be from 1 to 256, got `0`"),
            (redis("redis,wait_timeout=-1"), "redis,wait_timeout is to be a number, got `-1`"),
            (redis("redis,tls_enabled=x"), "redis,tls_enabled is to be a switch, got `x`"),
            (redis("redis,sni=x"), "redis,sni=x is not supported"),
            (redis("redis,cacert=x"), "`tls_enabled` is not `true`"),
            (redis("redis,cert=x"), "`cert` and `key` only go together"),
        ] {
            let error = read(&settings).unwrap_err();
            assert!(error.contains(expected), "{settings:?}: {error}");
        }
        let secret = setting("redis,password=hunter2").unwrap();
        assert!(!format!("{secret:?}").contains("hunter2"));
        assert!(!setting(",password=hunter2").unwrap_err().contains("hunter2"));
    }
}
