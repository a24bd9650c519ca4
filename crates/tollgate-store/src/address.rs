//! Where a Redis or Valkey is: alone, behind Sentinel, or in a Cluster; and how it is connected to.

use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::cluster::ClusterClient;
use ::redis::cluster_async::ClusterConnection;
use ::redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo,
    RedisError, RedisResult, TlsCertificates,
};

/// How long a connection may take to be made, if a decision's deadline is not longer.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// The most nodes that an address names.
const MAX_NODES: usize = 64;

/// Where the server is.
#[derive(Clone)]
pub struct Address {
    kind: Kind,
    nodes: Vec<ConnectionInfo>,
    /// The certificates that the server is verified by, in PEM, instead of the system's.
    authority: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Alone,
    Sentinel { master: String },
    Cluster,
}

/// A connection.
#[derive(Clone)]
pub(crate) enum Line {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Address").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Address {
    /// Reads `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` for TLS, `redis+cluster://HOST:PORT,HOST:PORT` and
    /// `redis+sentinel://HOST:PORT,HOST:PORT/MASTER[/DB]` (`rediss+cluster`, `rediss+sentinel` for TLS). `?protocol=resp3` may
    /// follow each.
    ///
    /// # Errors
    /// What is wrong with it, without repeating a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("expected redis://HOST:PORT")?;
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        if !matches!(base, "redis" | "rediss") {
            return Err("expected redis:// or rediss://".to_owned());
        }
        let (rest, query) = rest.split_once('?').map_or((rest, String::new()), |(r, q)| (r, format!("?{q}")));
        let (user, rest) = rest.rsplit_once('@').map_or((String::new(), rest), |(u, r)| (format!("{u}@"), r));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (kind, path) = match kind {
            "" => (Kind::Alone, path),
            "cluster" => (Kind::Cluster, path),
            "sentinel" => {
                let (master, path) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(
                        "behind Sentinel the master's name follows: redis+sentinel://HOST:PORT/MASTER"
                            .to_owned(),
                    );
                }
                (Kind::Sentinel { master: master.to_owned() }, path)
            }
            _ => return Err("expected redis+cluster:// or redis+sentinel://".to_owned()),
        };
        let hosts: Vec<&str> = hosts.split(',').collect();
        if hosts.len() > MAX_NODES || (kind == Kind::Alone && hosts.len() > 1) {
            return Err(
                "one HOST:PORT; several, at most 64, only with redis+cluster or redis+sentinel".to_owned()
            );
        }
        let node = |host: &&str| format!("{base}://{user}{host}/{path}{query}").into_connection_info();
        let nodes: RedisResult<Vec<ConnectionInfo>> = hosts.iter().map(node).collect();
        // The client's own words would repeat the password.
        let nodes = nodes.map_err(|error| error.category().to_owned())?;
        Ok(Address { kind, nodes, authority: None })
    }

    /// Verifies the server by these certificates, in PEM.
    #[must_use]
    pub fn with_authority(mut self, pem: Vec<u8>) -> Self {
        self.authority = Some(pem);
        self
    }

    /// Whether keys of one demand may be on different servers.
    pub fn is_cluster(&self) -> bool {
        self.kind == Kind::Cluster
    }

    fn certificates(&self) -> TlsCertificates {
        TlsCertificates { client_tls: None, root_cert: self.authority.clone() }
    }

    /// Connects.
    pub(crate) async fn connect(&self, deadline: Duration) -> RedisResult<Line> {
        let within = deadline.max(CONNECT_WITHIN);
        let connect = async {
            match &self.kind {
                Kind::Alone => self.alone(within).await.map(Line::One),
                Kind::Sentinel { master } => self.behind_sentinel(master, within).await.map(Line::One),
                Kind::Cluster => self.in_cluster(within).await.map(Line::Cluster),
            }
        };
        let late = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        tokio::time::timeout(within, connect).await.unwrap_or_else(|_| Err(late()))
    }

    async fn alone(&self, within: Duration) -> RedisResult<MultiplexedConnection> {
        let node = self.nodes.first().cloned().ok_or_else(no_node)?;
        let client = if self.is_tls() {
            Client::build_with_tls(node, self.certificates())?
        } else {
            Client::open(node)?
        };
        client.get_multiplexed_async_connection_with_config(&config(within)).await
    }

    async fn behind_sentinel(&self, master: &str, within: Duration) -> RedisResult<MultiplexedConnection> {
        let node = self.nodes.first().ok_or_else(no_node)?;
        let addresses = self.nodes.iter().map(|node| node.addr().clone());
        let settings = node.redis_settings();
        let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?
            .set_client_to_redis_db(settings.db())
            .set_client_to_redis_protocol(settings.protocol());
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if self.is_tls() {
            builder = builder
                .set_client_to_redis_tls_mode(::redis::TlsMode::Secure)
                .set_client_to_redis_certificates(self.certificates())
                .set_client_to_sentinel_tls_mode(::redis::TlsMode::Secure)
                .set_client_to_sentinel_certificates(self.certificates());
        }
        builder.build()?.get_async_connection_with_config(&config(within)).await
    }

    async fn in_cluster(&self, within: Duration) -> RedisResult<ClusterConnection> {
        // A command whose outcome is unknown is never sent again, so nothing is retried; what is sent elsewhere by the
        // server is followed by the caller.
        let mut builder = ClusterClient::builder(self.nodes.clone())
            .retries(0)
            .connection_timeout(within)
            .overall_response_timeout(None);
        if self.is_tls() {
            builder = builder.certs(self.certificates());
        }
        builder.build()?.get_async_connection().await
    }

    fn is_tls(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node.addr(), ConnectionAddr::TcpTls { .. }))
    }
}

fn config(within: Duration) -> AsyncConnectionConfig {
    // The deadline of a decision is kept outside, so that it holds for all of it.
    AsyncConnectionConfig::new().set_connection_timeout(Some(within)).set_response_timeout(None)
}

fn no_node() -> RedisError {
    RedisError::from(std::io::Error::from(std::io::ErrorKind::NotFound))
}

impl Line {
    /// Asks with one command.
    pub(crate) async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let value = match self {
            Line::One(connection) => connection.req_packed_command(command).await,
            Line::Cluster(connection) => connection.req_packed_command(command).await,
        };
        Ok(T::from_redis_value(value?.extract_error()?)?)
    }
}
