//! `[store]`: where the counts are, and how a store that instances share is asked.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::config::{Host, MAX_INSTANCES, Section};
use tollgate::postgres::{Options, Postgres};
use tollgate::redis::Address;
use tollgate::{Around, Durability, Placement, Quota, Rule, WRAPPERS};

/// The longest deadline of a decision.
const MAX_DEADLINE: u64 = 60_000_000_000;

/// A store's URL.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`.
    #[default]
    Memory,
    /// `sqlite:PATH`.
    Sqlite(PathBuf),
    /// `redis://..` and its kin.
    Redis(String),
    /// `postgres://..`.
    Postgres(String),
}

impl fmt::Display for StoreUrl {
    /// Without the user and the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StoreUrl::Redis(url) | StoreUrl::Postgres(url) => {
                let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
                write!(f, "{scheme}://{}", plain_url(rest))
            }
        }
    }
}

/// What follows the scheme, without user, password and parameters.
fn plain_url(rest: &str) -> &str {
    let rest = rest.split('?').next().unwrap_or_default();
    rest.rsplit_once('@').map_or(rest, |(_, host)| host)
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StoreUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// A message when it is none of a store that there is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        match text.split_once(':') {
            Some(("memory", "")) => Ok(StoreUrl::Memory),
            Some(("sqlite", path)) if !path.is_empty() => Ok(StoreUrl::Sqlite(PathBuf::from(path))),
            _ if matches!(scheme.split('+').next(), Some("redis" | "rediss")) => {
                Address::parse(text).map_err(|error| format!("the store's URL: {error}"))?;
                Ok(StoreUrl::Redis(text.to_owned()))
            }
            _ if matches!(scheme, "postgres" | "postgresql") => {
                Postgres::new(text, Options::default())
                    .map_err(|error| format!("the store's URL: {error}"))?;
                Ok(StoreUrl::Postgres(text.to_owned()))
            }
            // It may hold a password, so only its beginning is repeated.
            _ => Err(format!(
                "`{scheme}:` begins no store of this version; expected memory:, sqlite:PATH, redis://HOST:PORT, \
                 redis+cluster://HOST:PORT,HOST:PORT, redis+sentinel://HOST:PORT/MASTER (rediss for TLS) or postgres://HOST/DB"
            )),
        }
    }

    /// The placement of policies that name none.
    pub const fn placement(&self) -> Placement {
        match self {
            StoreUrl::Memory => Placement::Local,
            StoreUrl::Sqlite(_) => Placement::Durable,
            StoreUrl::Redis(_) | StoreUrl::Postgres(_) => Placement::Strict,
        }
    }

    /// Whether instances share it.
    pub const fn is_shared(&self) -> bool {
        matches!(self, StoreUrl::Redis(_) | StoreUrl::Postgres(_))
    }

    /// Whether keys of one request may be on different servers.
    pub fn spreads_keys(&self) -> bool {
        matches!(self, StoreUrl::Redis(url) if url.split("://").next().is_some_and(|s| s.ends_with("+cluster")))
    }

    /// What it can do for one of so many instances.
    pub fn host(&self, instances: u64) -> Host {
        let fits: fn(&Rule) -> Result<(), &'static str> = match self {
            StoreUrl::Redis(_) => tollgate::redis::fits,
            _ => |_| Ok(()),
        };
        Host { usual: self.placement(), shared: self.is_shared(), instances, fits }
    }
}

/// What the section says.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Where the counts are.
    pub url: StoreUrl,
    /// When the durable store's answers leave.
    pub durability: Durability,
    /// How many instances share the store, or the quota.
    pub instances: u64,
    /// What every key begins with.
    pub prefix: String,
    /// How far a server's clock may step back.
    pub clock_slack: Duration,
    /// The schema that holds the counts on PostgreSQL.
    pub schema: String,
    /// Whether counts on PostgreSQL survive a crash of the server.
    pub logged: bool,
    /// How many connections to PostgreSQL.
    pub connections: usize,
    /// Replicas that must have a charge before it is admitted.
    pub wait_replicas: u32,
    /// The certificates that the server is verified by, instead of the web's.
    pub ca: Option<PathBuf>,
    /// How it is asked.
    pub around: Around,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings {
            url: StoreUrl::default(),
            durability: Durability::default(),
            instances: 1,
            prefix: "tollgate:".to_owned(),
            clock_slack: Duration::from_secs(10),
            schema: "tollgate".to_owned(),
            logged: true,
            connections: 4,
            wait_replicas: 0,
            ca: None,
            around: Around::default(),
        }
    }
}

impl StoreSettings {
    /// The store of a URL, with nothing out of the ordinary.
    pub fn at(url: StoreUrl) -> Self {
        let usual = StoreSettings::default();
        let around = Around { singly: url.spreads_keys(), ..usual.around };
        StoreSettings { url, around, ..usual }
    }

    /// Reads the section. A URL that is given stands above the section's.
    pub fn read(section: &Section<'_>, url: Option<&StoreUrl>) -> Self {
        let found = section.parse("url", StoreUrl::parse).unwrap_or_default();
        let beside = |path: PathBuf| section.document().beside(path.to_str().unwrap_or_default());
        let found = if let StoreUrl::Sqlite(path) = found { StoreUrl::Sqlite(beside(path)) } else { found };
        let replicas = section.integer("wait_replicas", 0..=64).and_then(|n| u32::try_from(n).ok());
        let connections = section.integer("connections", 1..=1_000).and_then(|n| usize::try_from(n).ok());
        let usual = StoreSettings::at(url.cloned().unwrap_or(found));
        let settings = StoreSettings {
            around: read_around(section, usual.around),
            url: usual.url,
            durability: section.parse("durability", durability).unwrap_or_default(),
            instances: section.integer("instances", 1..=MAX_INSTANCES).unwrap_or(1),
            prefix: section.parse("prefix", prefix).unwrap_or(usual.prefix),
            clock_slack: section.duration("clock_slack").map_or(usual.clock_slack, Duration::from_nanos),
            schema: section.text("schema").map_or(usual.schema, str::to_owned),
            logged: section.boolean("logged").unwrap_or(usual.logged),
            connections: connections.unwrap_or(usual.connections),
            wait_replicas: replicas.unwrap_or(0),
            ca: section.text("ca").map(|file| section.document().beside(file)),
        };
        if settings.wait_replicas > 0 && settings.url.spreads_keys() {
            section.problem("wait_replicas", "is not there on a cluster");
        }
        if let StoreUrl::Postgres(url) = &settings.url {
            let options = Options { schema: settings.schema.clone(), ..Options::default() };
            if let Err(error) = Postgres::new(url, options) {
                section.problem("schema", error);
            }
        }
        section.finish();
        settings
    }
}

fn read_around(section: &Section<'_>, usual: Around) -> Around {
    let duration = |key, usual: Duration| {
        let read = section.duration(key);
        if read.is_some_and(|nanos| nanos > MAX_DEADLINE) {
            section.problem(key, "at most 1m");
        }
        read.map_or(usual, Duration::from_nanos)
    };
    let known = |text: &str| {
        let found = WRAPPERS.into_iter().find(|name| *name == text);
        found.ok_or_else(|| format!("`{text}` is no wrapper; expected {}", WRAPPERS.join(", ")))
    };
    let order = if section.has("wrappers") { section.list("wrappers", known) } else { usual.order.clone() };
    if let Some(twice) = order.iter().enumerate().find(|(at, name)| order[..*at].contains(name)) {
        section.problem("wrappers", format!("`{}` is named twice", twice.1));
    }
    Around {
        deadline: duration("deadline", usual.deadline),
        order,
        lease: section.integer("lease", 2..=1_000_000).unwrap_or(usual.lease),
        sync: duration("sync", usual.sync),
        read_cap: section.parse("read_cap", str::parse::<Quota>).unwrap_or(usual.read_cap),
        ..usual
    }
}

fn prefix(text: &str) -> Result<String, &'static str> {
    let fine = |c: char| c.is_ascii_graphic() && !"{}".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(fine) {
        return Err("1 to 64 visible characters without { and }");
    }
    Ok(text.to_owned())
}

fn durability(text: &str) -> Result<Durability, &'static str> {
    match text {
        "commit" => Ok(Durability::Commit),
        "relaxed" => Ok(Durability::Relaxed),
        _ => Err("expected commit (an answer waits until it is on disk) or relaxed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_on_several_servers_are_asked_in_turn_wherever_the_url_comes_from() {
        let url = StoreUrl::parse("redis+cluster://127.0.0.1:1,127.0.0.1:2").unwrap();
        let policy = "[[policy]]\nname = \"p\"\nquota = \"5/1m\"\n";
        assert!(StoreSettings::at(url.clone()).around.singly);
        for section in ["", "[store]\ndeadline = \"20ms\"\n"] {
            let (settings, _) =
                crate::settings::read("f.toml", &format!("{section}{policy}"), Some(&url)).unwrap();
            assert!(settings.store.around.singly, "{section}");
        }
        assert!(!StoreSettings::at(StoreUrl::parse("redis://127.0.0.1").unwrap()).around.singly);
    }
}
