//! The shared store on PostgreSQL: one count for a fleet, one statement and one round trip a decision.
//!
//! The server's clock decides. The statement is a function that the schema brings along (`postgres.sql`, beside this file); rows are
//! locked in one order, and a refusal locks and writes nothing. Rows whose time has passed are taken away a few pages at a
//! time. Connections are few and each is used by many at once.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::sync::Mutex;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollgate_core::{Charge, Fingerprint, Shape};

use crate::remote::{Mode, Question, Reply, Server};
use crate::rows::{key, read, shape, signed, text};

/// The version of the schema.
const SCHEMA: i64 = 2;

/// How long a connection may take to be made, if a decision's deadline is not longer.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Pages that are looked through for passed rows at once.
const REAPED_PAGES: i64 = 64;

/// In how many steps, one a second, the whole table is looked through.
const REAPING_STEPS: i64 = 60;

/// Locks the making of the schema, among instances that start together.
const MIGRATION_LOCK: i64 = 0x746F_6C6C_6761_7465;

/// How the count is kept on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The schema that holds tables and functions: made when it is not there.
    pub schema: String,
    /// Whether counts survive a crash of the server. Without, writing is cheaper.
    pub logged: bool,
    /// How many connections.
    pub connections: usize,
    /// How long a state is kept after it has lost its meaning, so that the server's clock may step back so far.
    pub clock_slack: Duration,
    /// How long a statement may take on the server.
    pub deadline: Duration,
    /// A number that only the deployment's salt gives.
    pub salt: Option<u64>,
    /// The certificates that the server is verified by, in PEM, instead of the web's.
    pub authority: Option<Vec<u8>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            schema: "tollgate".to_owned(),
            logged: true,
            connections: 4,
            clock_slack: Duration::from_secs(10),
            deadline: Duration::from_millis(50),
            salt: None,
            authority: None,
        }
    }
}

/// A count on a server.
pub struct Postgres {
    inner: Arc<Inner>,
    next: AtomicUsize,
    /// Whether passed rows are being taken away.
    reaping: Arc<AtomicBool>,
}

struct Inner {
    config: Config,
    options: Options,
    lines: Vec<Arc<Mutex<Option<Arc<Line>>>>>,
}

/// A connection, and what is prepared on it.
struct Line {
    client: Client,
    decide: Statement,
    forget: Statement,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("schema", &self.inner.options.schema).finish_non_exhaustive()
    }
}

impl Postgres {
    /// A count on the server of a `postgres://[USER[:PASSWORD]@]HOST[:PORT]/DB[?sslmode=..]` URL. Nothing is connected before the
    /// first decision. On another host than this one TLS is asked for unless `sslmode` says otherwise, and verified.
    ///
    /// # Errors
    /// What is wrong with the URL or a name, without repeating a password.
    pub fn new(url: &str, options: Options) -> Result<Self, String> {
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| error.to_string())?;
        if config.get_hosts().is_empty() {
            return Err("no host; expected postgres://HOST/DB".to_owned());
        }
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let name = &options.schema;
        let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        if !begins || name.len() > 63 || !name.chars().all(fine) {
            return Err(format!(
                "`{name}` is no schema; 1 to 63 of a-z, 0-9 and _, not beginning with a digit"
            ));
        }
        let here = |host: &Host| match host {
            Host::Tcp(name) => name == "localhost" || name.starts_with("127.") || name == "::1",
            Host::Unix(_) => true,
        };
        if !url.contains("sslmode=") {
            let all_here = config.get_hosts().iter().all(here);
            config.ssl_mode(if all_here { SslMode::Disable } else { SslMode::Require });
        }
        let within = options.deadline.max(CONNECT_WITHIN);
        // A statement whose caller has left ends by itself.
        let timeout = options.deadline.as_millis().max(1);
        config.connect_timeout(within).application_name("tollgate").options(format!(
            "-c statement_timeout={timeout} -c lock_timeout={timeout} -c default_transaction_isolation=read\\ committed"
        ));
        let lines = (0..options.connections.max(1)).map(|_| Arc::default()).collect();
        Ok(Postgres {
            inner: Arc::new(Inner { config, options, lines }),
            next: AtomicUsize::new(0),
            reaping: Arc::default(),
        })
    }

    /// A connection, each in turn; made when there is none, to the end also when nobody waits any longer.
    async fn line(&self) -> Result<Arc<Line>, String> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let lines = &self.inner.lines;
        let slot = lines.get(turn.checked_rem(lines.len()).unwrap_or(0)).ok_or("no connection")?;
        let mut held = Arc::clone(slot).lock_owned().await;
        if let Some(line) = held.as_ref().filter(|line| !line.client.is_closed()) {
            return Ok(Arc::clone(line));
        }
        let (inner, reaping) = (Arc::clone(&self.inner), Arc::clone(&self.reaping));
        let connected = tokio::spawn(async move {
            let within = inner.options.deadline.max(CONNECT_WITHIN);
            let line = tokio::time::timeout(within, inner.connect()).await;
            let line = Arc::new(line.unwrap_or_else(|_| Err(format!("no connection within {within:?}")))?);
            if !reaping.swap(true, Ordering::Relaxed) {
                tokio::spawn(reap(Arc::downgrade(&inner)));
            }
            *held = Some(Arc::clone(&line));
            Ok(line)
        });
        connected.await.unwrap_or_else(|_| Err("connecting failed".to_owned()))
    }

    /// Takes the schema away with all that is in it: for one that nobody else uses.
    ///
    /// # Errors
    /// What the server says.
    pub async fn clear(&self) -> Result<(), String> {
        let line = self.line().await?;
        let drop_all = format!("DROP SCHEMA {} CASCADE", self.inner.options.schema);
        let done = line.client.batch_execute(&drop_all).await.map_err(|error| plain(&error));
        self.hang_up();
        done
    }

    async fn query(
        &self,
        line: &Line,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, String> {
        let row = line.client.query_one(statement, parameters).await;
        row.map_err(|error| plain(&error))
    }
}

/// PostgreSQL's words.
fn plain(error: &tokio_postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), |error| format!("{} ({})", error.message(), error.code().code()))
}

impl Inner {
    async fn connect(&self) -> Result<Line, String> {
        let (mut client, connection) =
            self.config.connect(self.tls()?).await.map_err(|error| plain(&error))?;
        // It ends when the client is dropped.
        tokio::spawn(connection);
        self.prepare(&mut client).await.map_err(|error| plain(&error))?;
        self.same_salt(&client).await?;
        let schema = &self.options.schema;
        let decide = format!(
            "SELECT * FROM {schema}.decide($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
        );
        let forget = format!(
            "WITH gone AS (DELETE FROM {schema}.counts WHERE key = ANY ($1) AND ends > 0 RETURNING 1) SELECT count(*) FROM gone"
        );
        let decide = client.prepare(&decide).await.map_err(|error| plain(&error))?;
        let forget = client.prepare(&forget).await.map_err(|error| plain(&error))?;
        Ok(Line { client, decide, forget })
    }

    fn tls(&self) -> Result<MakeRustlsConnect, String> {
        let mut roots = rustls::RootCertStore::empty();
        match &self.options.authority {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let certificate = certificate.map_err(|error| format!("ca: {error}"))?;
                    roots.add(certificate).map_err(|error| format!("ca: {error}"))?;
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        Ok(MakeRustlsConnect::new(config.with_root_certificates(roots).with_no_client_auth()))
    }

    /// Makes the schema, unless this version of it is there: then no right to make anything is needed.
    async fn prepare(&self, client: &mut Client) -> Result<(), tokio_postgres::Error> {
        let schema = &self.options.schema;
        let version = format!("SELECT value FROM {schema}.meta WHERE name = 'schema'");
        if let Ok(row) = client.query_one(&version, &[]).await
            && row.get::<_, i64>(0) >= SCHEMA
        {
            return Ok(());
        }
        let transaction = client.transaction().await?;
        transaction.batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0").await?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        let logged = if self.options.logged { "" } else { "UNLOGGED" };
        let script = include_str!("postgres.sql").replace("{schema}", schema).replace("{logged}", logged);
        transaction.batch_execute(&script).await?;
        let set = format!(
            "INSERT INTO {schema}.meta VALUES ('schema', {SCHEMA}) ON CONFLICT (name) DO UPDATE SET value = {SCHEMA}"
        );
        transaction.batch_execute(&set).await?;
        transaction.commit().await
    }

    async fn same_salt(&self, client: &Client) -> Result<(), String> {
        let Some(salt) = self.options.salt.and_then(|salt| i64::try_from(salt).ok()) else { return Ok(()) };
        let schema = &self.options.schema;
        let leave = format!("INSERT INTO {schema}.meta VALUES ('salt', $1) ON CONFLICT (name) DO NOTHING");
        client.execute(&leave, &[&salt]).await.map_err(|error| plain(&error))?;
        let find = format!("SELECT value FROM {schema}.meta WHERE name = 'salt'");
        let row = client.query_one(&find, &[]).await.map_err(|error| plain(&error))?;
        if row.get::<_, i64>(0) == salt {
            return Ok(());
        }
        Err(format!(
            "other instances count here under another salt; give all the same TOLLGATE_SALT, or delete `salt` from {schema}.meta"
        ))
    }

    /// Looks through some pages for passed rows, and gives where to go on.
    async fn reap(&self, page: i64) -> Result<i64, tokio_postgres::Error> {
        let slot = self.lines.first().map(Arc::clone).unwrap_or_default();
        let Some(line) = slot.lock().await.clone() else { return Ok(page) };
        let schema = &self.options.schema;
        let size =
            format!("SELECT pg_relation_size('{schema}.counts') / current_setting('block_size')::bigint");
        let size: i64 = line.client.query_one(&size, &[]).await?.get(0);
        let slack = i64::try_from(self.options.clock_slack.as_nanos()).unwrap_or(i64::MAX);
        let steps = size.checked_div(REAPING_STEPS).unwrap_or(0).max(REAPED_PAGES);
        let (mut page, mut left) = (if page < size { page } else { 0 }, steps);
        while left > 0 && page < size {
            let reap = format!("SELECT {schema}.reap($1, $2, {schema}.clock() - $3)");
            line.client.query_one(&reap, &[&page, &REAPED_PAGES, &slack]).await?;
            (page, left) = (page.saturating_add(REAPED_PAGES), left.saturating_sub(REAPED_PAGES));
        }
        Ok(page)
    }
}

/// Takes away passed rows while somebody counts here.
async fn reap(inner: Weak<Inner>) {
    let mut page = 0;
    loop {
        // Instances keep out of each other's way.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(750..1_250))).await;
        let Some(inner) = inner.upgrade() else { return };
        // What could not be taken away now is later.
        page = inner.reap(page).await.unwrap_or(page);
    }
}

impl Server for Postgres {
    async fn ask(&self, question: &Question<'_>) -> Result<Reply, String> {
        let line = self.line().await?;
        let each = |number: fn(&Charge<'_>) -> u64| -> Vec<i64> {
            question.charges.iter().map(|charge| signed(number(charge))).collect()
        };
        let keys: Vec<Vec<u8>> = question.charges.iter().map(|charge| key(charge.key)).collect();
        let rules: Vec<String> = question.charges.iter().map(|charge| charge.rule.to_string()).collect();
        let shapes: Vec<&str> = question.charges.iter().map(|charge| shape(charge.rule)).collect();
        let increments = each(|charge| charge.cost.saturating_mul(charge.rule.terms().0).max(1));
        let capacities = each(|charge| charge.rule.terms().1);
        let wins = each(|charge| match charge.rule.shape() {
            Shape::Cell => charge.rule.terms().2,
            _ => charge.rule.quota().window(),
        });
        let phases = each(|charge| charge.phase());
        let units = each(|charge| charge.rule.quota().limit());
        let costs = each(|charge| charge.cost);
        let spare_increments = each(|charge| charge.spare.saturating_mul(charge.rule.terms().0));
        let spares = each(|charge| charge.spare);
        let swaps = &question.swaps;
        let expected: Vec<&str> = swaps.iter().map(|swap| swap.found.rule.as_str()).collect();
        let expected_numbers: Vec<String> = swaps.iter().map(|swap| text(&swap.found.numbers)).collect();
        let replacements: Vec<String> = swaps.iter().map(|swap| text(&swap.numbers)).collect();
        let (times, now) = (signed(question.times), question.now.map(signed));
        let (how, charged) = match question.mode {
            Mode::Take => ("", None),
            Mode::Owe => ("owe", None),
            Mode::Back(charged) => ("back", charged.map(signed)),
            Mode::Put => ("put", None),
        };
        let parameters: [&(dyn ToSql + Sync); 18] = [
            &times,
            &how,
            &charged,
            &now,
            &keys,
            &rules,
            &shapes,
            &increments,
            &capacities,
            &wins,
            &phases,
            &units,
            &costs,
            &spare_increments,
            &spares,
            &expected,
            &expected_numbers,
            &replacements,
        ];
        let row = self.query(&line, &line.decide, &parameters).await?;
        read(&row).ok_or_else(|| "an answer that makes no sense".to_owned())
    }

    async fn forget(&self, keys: &[Fingerprint]) -> Result<u64, String> {
        let line = self.line().await?;
        let keys: Vec<Vec<u8>> = keys.iter().map(|one| key(*one)).collect();
        let known: i64 = self.query(&line, &line.forget, &[&keys]).await?.get(0);
        Ok(u64::try_from(known).unwrap_or(0))
    }

    fn hang_up(&self) {
        for line in &self.inner.lines {
            if let Ok(mut held) = line.try_lock() {
                *held = None;
            }
        }
    }
}
