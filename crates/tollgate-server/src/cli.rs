//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tollgate::Quota;

/// A rate limiter that keeps its word: the number published is the number enforced.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway, the check API and the admin listener
    Serve(Box<ServeArgs>),
    /// Say whether a policy file is valid, and everything that is wrong with it
    Check {
        /// The policy file
        file: PathBuf,
    },
    /// Print what each policy promises, and what it would make of a request
    Explain(ExplainArgs),
    /// Try every law against your own store, under names of their own that are cleaned up after
    Verify(VerifyArgs),
    /// Write the limits of another program's configuration as policies, and say what could not be carried over
    Import(ImportArgs),
    /// Run access logs through the policies, on the log's own clock, and report who would have been refused
    Replay(ReplayArgs),
}

/// `tollgate serve`. Every flag but `--config` may also come from the environment; both stand above the file.
#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    /// The policy file. Without one, a single policy counts by client address
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the gateway listens, when there is an upstream [default: 127.0.0.1:8080]
    #[arg(long, env = "TOLLGATE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Where checks and forward-auth are answered [default: 127.0.0.1:8081]
    #[arg(long, env = "TOLLGATE_API", value_name = "ADDRESS")]
    pub api: Option<SocketAddr>,
    /// Where Redis clients are answered (CL.THROTTLE, TOLLGATE); they are not unless this is given
    #[arg(long, env = "TOLLGATE_RESP", value_name = "ADDRESS")]
    pub resp: Option<SocketAddr>,
    /// What Redis clients have to say first (AUTH)
    #[arg(long, env = "TOLLGATE_RESP_PASSWORD", value_name = "TEXT", hide_env_values = true)]
    pub resp_password: Option<String>,
    /// Where Envoy's rate limit service (gRPC) is answered; it is not unless this is given
    #[arg(long, env = "TOLLGATE_RLS", value_name = "ADDRESS")]
    pub rls: Option<SocketAddr>,
    /// Where metrics, health and administration are served [default: 127.0.0.1:9090]
    #[arg(long, env = "TOLLGATE_ADMIN", value_name = "ADDRESS")]
    pub admin: Option<SocketAddr>,
    /// The origin that the gateway stands in front of; several take turns
    #[arg(long, env = "TOLLGATE_UPSTREAM", value_name = "URL", value_delimiter = ',')]
    pub upstream: Vec<String>,
    /// Where the counts live: memory:, sqlite:PATH, redis://HOST:PORT or postgres://HOST/DB [default: memory:]
    #[arg(long, env = "TOLLGATE_STORE", value_name = "URL")]
    pub store: Option<String>,
    /// Without a file: how much each client address is allowed [default: 100/1m burst 100]
    #[arg(long, env = "TOLLGATE_LIMIT", value_name = "QUOTA", conflicts_with = "config")]
    pub limit: Option<Quota>,
    /// The deployment's salt, at least 16 characters (better in the environment or a file than here)
    #[arg(long, env = "TOLLGATE_SALT", value_name = "TEXT", hide_env_values = true)]
    pub salt: Option<String>,
    /// The token that administration asks for; needed when it does not listen on loopback
    #[arg(long, env = "TOLLGATE_ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub admin_token: Option<String>,
}

/// `tollgate explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The policy file
    pub file: PathBuf,
    /// A request: its URL or path, after its method if that is not GET
    #[arg(value_name = "REQUEST", num_args = 0..=2)]
    pub request: Vec<String>,
    /// A header field of the request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// The client's address
    #[arg(long, value_name = "ADDRESS", default_value = "192.0.2.1")]
    pub address: std::net::IpAddr,
}

/// `tollgate verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The store: memory:, sqlite:PATH, redis://HOST:PORT or postgres://HOST/DB
    #[arg(long, env = "TOLLGATE_STORE", value_name = "URL", hide_env_values = true)]
    pub store: String,
    /// Try with few seeds: in about a quarter of the time
    #[arg(long)]
    pub quick: bool,
    /// Try only the laws whose name has this in it; may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub law: Vec<String>,
    /// What the names of its keys, or of its schema, begin with
    #[arg(long, value_name = "TEXT", default_value = "tollgate-verify-")]
    pub prefix: String,
    /// The certificates that the server is verified by, instead of the web's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

/// `tollgate import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Whose configuration it is
    #[arg(value_enum)]
    pub kind: ImportKind,
    /// The configuration
    pub file: PathBuf,
    /// Write the policies here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Whose configuration is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImportKind {
    /// The YAML of envoyproxy/ratelimit: a domain and its descriptors
    Envoy,
    /// nginx: limit_req_zone and limit_req
    Nginx,
}

/// `tollgate replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The policy file
    pub file: PathBuf,
    /// Access logs: common, combined, or JSON lines; .gz is read as it is, - is standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// How to report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Write the report here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// How a replay is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For a terminal
    Text,
    /// For a program
    Json,
    /// One self-contained page with plots
    Html,
}
