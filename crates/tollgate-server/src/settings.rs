//! What the server itself is told: `[server]`, `[store]`, `[log]`, the flags above them, and the defaults below.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use ipnet::IpNet;
use tollgate::client::Trust;
use tollgate::config::{Document, Section};
use tollgate::contract::Contract;
use tollgate::{About, Fingerprint, Policy, PolicySet, Problems, Quota, Rule};
use tollgate_tower::MAX_WAITING;

use crate::Failure;
use crate::cli::ServeArgs;
use crate::shedding::ShedSettings;
use crate::store::{StoreSettings, StoreUrl};

/// The quota of a server without a file.
pub const DEFAULT_LIMIT: &str = "100/1m burst 100";

/// The most origins.
pub const MAX_UPSTREAMS: usize = 64;

/// Everything but the policies.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the gateway listens; used only when there is an upstream.
    pub listen: SocketAddr,
    /// Where checks and forward-auth are answered.
    pub api: SocketAddr,
    /// Where Redis clients are answered, if they are.
    pub resp: Option<SocketAddr>,
    /// What they have to say first.
    pub resp_password: Option<String>,
    /// Where Envoy's rate limit service is answered, if it is.
    pub rls: Option<SocketAddr>,
    /// Where metrics, health and administration are served.
    pub admin: SocketAddr,
    /// What administration asks for.
    pub admin_token: Option<String>,
    /// Where the counts are.
    pub store: StoreSettings,
    /// The origins.
    pub upstream: Vec<Uri>,
    /// The certificates that https origins are verified by, instead of the web's.
    pub upstream_ca: Option<PathBuf>,
    /// Whether plain origins speak HTTP/2 from the first byte (for gRPC).
    pub upstream_http2: bool,
    /// Whose forwarding headers are believed.
    pub trust: Trust,
    /// Whether connections to the gateway begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// The certificate chain and the key, when the gateway speaks TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Which headers answers carry.
    pub contract: Contract,
    /// The origin that browsers may read refusals from: `*`, or one.
    pub cors_origin: Option<String>,
    /// Limits of size and time.
    pub limits: Limits,
    /// How much origins are given at once, if that is bounded.
    pub shed: Option<ShedSettings>,
    /// What is logged.
    pub log: LogSettings,
    /// Where the salt is kept.
    pub salt_file: Option<PathBuf>,
}

/// Named limits, all configurable.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's head.
    pub max_head: usize,
    /// Bytes of a request's body.
    pub max_body: u64,
    /// Open connections of one listener.
    pub max_connections: usize,
    /// Requests that wait for their turn in a leaky queue.
    pub max_waiting: usize,
    /// Until a request's head is there (also the TLS handshake and the PROXY header).
    pub head_timeout: Duration,
    /// Between two pieces of a body.
    pub body_timeout: Duration,
    /// Until the origin is connected.
    pub connect_timeout: Duration,
    /// Until the origin's answer begins.
    pub response_timeout: Duration,
    /// For requests under way when the server is told to stop.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_head: 64 << 10,
            max_body: 64 << 20,
            max_connections: 10_000,
            max_waiting: MAX_WAITING,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(60),
            shutdown_grace: Duration::from_secs(30),
        }
    }
}

/// What is logged of decisions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogSettings {
    /// Whether there is a line per decision at all.
    pub decisions: bool,
    /// Of admissions, one in so many; every refusal has its line.
    pub admit_sample: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Settings {
            listen: local(8080),
            api: local(8081),
            resp: None,
            resp_password: None,
            rls: None,
            admin: local(9090),
            admin_token: None,
            store: StoreSettings::default(),
            upstream: Vec::new(),
            upstream_ca: None,
            upstream_http2: false,
            trust: Trust::default(),
            proxy_protocol: false,
            tls: None,
            contract: Contract::default(),
            cors_origin: None,
            limits: Limits::default(),
            shed: None,
            log: LogSettings { decisions: true, admit_sample: 1 },
            salt_file: None,
        }
    }
}

/// Reads a whole file: the server's settings and the policies, with every problem at once. A store that is given stands above
/// the file's.
///
/// # Errors
/// [`Problems`].
pub fn read(name: &str, text: &str, store: Option<&StoreUrl>) -> Result<(Settings, PolicySet), Problems> {
    let document = Document::parse(name, text);
    let root = document.root();
    let mut settings = Settings::default();
    if let Some(server) = root.section("server") {
        read_server(&server, &mut settings);
    }
    match root.section("store") {
        Some(section) => settings.store = StoreSettings::read(&section, store),
        None => settings.store = StoreSettings::at(store.cloned().unwrap_or_default()),
    }
    if let Some(log) = root.section("log") {
        settings.log.decisions = log.boolean("decisions").unwrap_or(true);
        settings.log.admit_sample = log.integer("admit_sample", 1..=1_000_000).unwrap_or(1);
        log.finish();
    }
    if let Some(keys) = root.section("keys") {
        settings.salt_file = keys.text("salt_file").map(|file| document.beside(file));
    }
    // Without a place of its own the salt is kept beside the file.
    settings.salt_file = settings.salt_file.or_else(|| Some(PathBuf::from(format!("{name}.salt"))));
    let set = PolicySet::read(&root, &settings.store.url.host(settings.store.instances));
    root.finish();
    document.finish().map(|()| (settings, set))
}

fn read_server(server: &Section<'_>, settings: &mut Settings) {
    let address = |text: &str| {
        text.parse::<SocketAddr>()
            .map_err(|_| format!("`{text}` is no address; expected one such as 127.0.0.1:8080"))
    };
    settings.listen = server.parse("listen", address).unwrap_or(settings.listen);
    settings.api = server.parse("api", address).unwrap_or(settings.api);
    settings.resp = server.parse("resp", address);
    settings.resp_password = server.parse("resp_password", token);
    settings.rls = server.parse("rls", address);
    settings.admin = server.parse("admin", address).unwrap_or(settings.admin);
    settings.admin_token = server.parse("admin_token", token);
    settings.upstream = server.list("upstream", parse_upstream);
    if settings.upstream.len() > MAX_UPSTREAMS {
        server.problem("upstream", format!("at most {MAX_UPSTREAMS} origins"));
    }
    settings.upstream_ca = server.text("upstream_ca").map(|file| server.document().beside(file));
    settings.upstream_http2 = server.boolean("upstream_http2").unwrap_or(false);
    settings.trust.proxies = server.list("trusted_proxies", |text| {
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from));
        network
            .map(tollgate::fold_network)
            .map_err(|_| format!("`{text}` is no network; expected one such as 10.0.0.0/8"))
    });
    settings.trust.forwarding = server.parse("forwarded", str::parse).unwrap_or_default();
    settings.proxy_protocol = server.boolean("proxy_protocol").unwrap_or(false);
    if settings.proxy_protocol && settings.trust.proxies.is_empty() {
        server.problem(
            "proxy_protocol",
            "needs trusted_proxies, the networks whose PROXY headers are believed",
        );
    }
    let (certificate, key) = (server.text("tls_certificate"), server.text("tls_key"));
    match (certificate, key) {
        (Some(chain), Some(key)) => {
            settings.tls = Some((server.document().beside(chain), server.document().beside(key)));
        }
        (None, None) => {}
        _ => server.problem("tls_key", "tls_certificate and tls_key go together"),
    }
    settings.cors_origin = server.parse("cors_origin", |text| {
        text.parse::<http::HeaderValue>().map(|_| text.to_owned()).map_err(|_| "expected an origin, or *")
    });
    read_contract(server, &mut settings.contract);
    settings.shed = server.section("shed").and_then(|shed| ShedSettings::read(&shed));
    if let Some(limits) = server.section("limits") {
        read_limits(&limits, &mut settings.limits);
    }
    server.finish();
}

fn read_contract(server: &Section<'_>, contract: &mut Contract) {
    if server.has("headers") {
        let known = |text: &str| match text {
            "draft" | "x-ratelimit" => Ok(text.to_owned()),
            _ => Err(format!("`{text}` is no set of headers; expected draft, x-ratelimit, or an empty list")),
        };
        let chosen = server.list("headers", known);
        contract.draft = chosen.iter().any(|name| name == "draft");
        contract.x_ratelimit = chosen.iter().any(|name| name == "x-ratelimit");
    }
    let reset = server.parse("x_ratelimit_reset", |text| match text {
        "delta" => Ok(false),
        "epoch" => Ok(true),
        _ => Err("expected delta (seconds from now) or epoch (seconds since 1970)"),
    });
    contract.epoch_reset = reset.unwrap_or(contract.epoch_reset);
    contract.retry_jitter = server.duration("retry_jitter").unwrap_or(contract.retry_jitter);
}

fn read_limits(section: &Section<'_>, limits: &mut Limits) {
    let time = |key, usual: Duration| section.duration(key).map_or(usual, Duration::from_nanos);
    let count = |key, range, usual: usize| {
        section.integer(key, range).and_then(|n| usize::try_from(n).ok()).unwrap_or(usual)
    };
    let head = section.size("max_head", 8 << 10..=1 << 20).and_then(|size| usize::try_from(size).ok());
    limits.max_head = head.unwrap_or(limits.max_head);
    limits.max_body = section.size("max_body", 0..=1 << 50).unwrap_or(limits.max_body);
    limits.max_connections = count("max_connections", 1..=1_000_000, limits.max_connections);
    limits.max_waiting = count("max_waiting", 1..=1_000_000, limits.max_waiting);
    limits.head_timeout = time("head_timeout", limits.head_timeout);
    limits.body_timeout = time("body_timeout", limits.body_timeout);
    limits.connect_timeout = time("connect_timeout", limits.connect_timeout);
    limits.response_timeout = time("response_timeout", limits.response_timeout);
    limits.shutdown_grace = time("shutdown_grace", limits.shutdown_grace);
    section.finish();
}

/// A token that somebody has to know.
fn token(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    if text.len() < 8 { Err("a token has at least 8 characters") } else { Ok(text.to_owned()) }
}

/// An origin: scheme, host and perhaps a port; no path, for requests keep theirs.
fn parse_upstream(text: &str) -> Result<Uri, String> {
    let wrong = || format!("`{text}` is no origin; expected one such as http://127.0.0.1:3000");
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    if scheme && bare && uri.authority().is_some() { Ok(uri) } else { Err(wrong()) }
}

/// The settings and policies of a command line: its file, or the default policy, under its flags.
///
/// # Errors
/// [`Failure`] when the file cannot be read or is wrong, or a flag is.
pub fn load(arguments: &ServeArgs) -> Result<(Settings, PolicySet), Failure> {
    let store = arguments.store.as_deref().map(StoreUrl::parse).transpose().map_err(Failure::Wrong)?;
    let (mut settings, set) = match &arguments.config {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
            read(&path.display().to_string(), &text, store.as_ref())?
        }
        None => {
            let store = store.unwrap_or_default();
            let mut set = default_set(arguments.limit, arguments.resp.is_some())?;
            set.policies.iter_mut().for_each(|policy| policy.placement = policy.placed(store.placement()));
            // A file of counts needs the salt that it was written under.
            let salt_file = match &store {
                StoreUrl::Sqlite(path) => Some(PathBuf::from(format!("{}.salt", path.display()))),
                _ => None,
            };
            if store.is_shared() && arguments.salt.is_none() {
                return Err(Failure::Wrong(
                    "a store that instances share needs the salt that they share: set TOLLGATE_SALT"
                        .to_owned(),
                ));
            }
            let store = StoreSettings::at(store);
            (Settings { store, salt_file, ..Settings::default() }, set)
        }
    };
    settings.listen = arguments.listen.unwrap_or(settings.listen);
    settings.api = arguments.api.unwrap_or(settings.api);
    settings.resp = arguments.resp.or(settings.resp);
    settings.rls = arguments.rls.or(settings.rls);
    settings.admin = arguments.admin.unwrap_or(settings.admin);
    if let Some(text) = &arguments.resp_password {
        settings.resp_password =
            Some(token(text).map_err(|error| Failure::Wrong(format!("TOLLGATE_RESP_PASSWORD: {error}")))?);
    }
    if let Some(text) = &arguments.admin_token {
        settings.admin_token =
            Some(token(text).map_err(|error| Failure::Wrong(format!("TOLLGATE_ADMIN_TOKEN: {error}")))?);
    }
    if !arguments.upstream.is_empty() {
        let parsed: Result<Vec<Uri>, String> =
            arguments.upstream.iter().map(|text| parse_upstream(text)).collect();
        settings.upstream = parsed.map_err(Failure::Wrong)?;
    }
    if !settings.admin.ip().is_loopback() && settings.admin_token.is_none() {
        let address = settings.admin;
        return Err(Failure::Wrong(format!(
            "server.admin: {address} is not loopback, so administration needs a token: set TOLLGATE_ADMIN_TOKEN"
        )));
    }
    Ok((settings, set))
}

/// What a server without a file lets clients of `CL.THROTTLE` choose at most.
const DEFAULT_CEILING: &str = "1000000/1s burst 1000000";

/// The keys of `CL.THROTTLE` that a server without a file counts.
const DEFAULT_THROTTLE_KEYS: usize = 1_000_000;

fn default_set(limit: Option<Quota>, resp: bool) -> Result<PolicySet, Failure> {
    let quota = match limit {
        Some(quota) if quota.queue() > 0 => {
            return Err(Failure::Wrong(
                "--limit: a queue needs a file with algorithm = \"leaky-queue\"".to_owned(),
            ));
        }
        Some(quota) => quota,
        None => DEFAULT_LIMIT
            .parse()
            .map_err(|error| Failure::Impossible(format!("the default limit: {error}")))?,
    };
    let mut policies = vec![Policy::named("default", Rule::gcra(quota))];
    if resp {
        let ceiling = DEFAULT_CEILING.parse();
        let ceiling =
            ceiling.map_err(|error| Failure::Impossible(format!("the default ceiling: {error}")))?;
        let mut throttle = Policy::named("throttle", Rule::gcra(ceiling));
        (throttle.matches.about, throttle.client_quota) = (About::Throttle, true);
        throttle.keys = DEFAULT_THROTTLE_KEYS;
        policies.push(throttle);
    }
    Ok(PolicySet { policies, ..PolicySet::default() })
}

/// The part of a fingerprint that people see.
pub fn shown(key: Fingerprint) -> String {
    let mut text = key.to_string();
    text.truncate(16);
    text
}
