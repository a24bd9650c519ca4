//! Real servers for tests, each on a free port of this machine. They end with the test: a shell between holds a pipe to them,
//! and ends them when that closes, however the test ends.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::runtime::Handle;
use tollgate_store::{Answer, Demand, Store, Unanswered};

/// A store on a server, awaited in place: laws run on threads of their own.
#[derive(Debug)]
pub struct Blocking<S> {
    store: S,
    runtime: Handle,
}

impl<S> Blocking<S> {
    /// This store, awaited on that runtime.
    pub fn new(store: S, runtime: &Handle) -> Self {
        Blocking { store, runtime: runtime.clone() }
    }
}

impl<S: Store> Store for Blocking<S> {
    fn decide(
        &self,
        demand: &Demand<'_>,
        now: u64,
    ) -> impl Future<Output = Result<Answer, Unanswered>> + Send {
        std::future::ready(self.runtime.block_on(self.store.decide(demand, now)))
    }
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

/// A program that ends when this is dropped.
#[derive(Debug)]
struct Lifeline {
    shell: Child,
    folder: PathBuf,
}

impl Lifeline {
    /// Runs a program in a folder of its own. `end` is the signal that ends it.
    fn start(program: &str, arguments: &[&str], folder: &Path, end: &str) -> Self {
        let script = format!(
            "\"$0\" \"$@\" >\"$LOG\" 2>&1 & echo $! >\"$LOG.pid\"; read -r word; kill -CONT $!; kill -{end} $!; wait; \
             [ \"$word\" = keep ] || rm -rf \"$FOLDER\""
        );
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, program])
            .args(arguments)
            .env("LOG", folder.join("log"))
            .env("FOLDER", folder);
        let shell = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Lifeline { shell: shell.expect("a shell"), folder: folder.to_owned() }
    }

    fn pid(&self) -> String {
        let file = self.folder.join("log.pid");
        for _ in 0..2_000 {
            match std::fs::read_to_string(&file) {
                Ok(pid) if pid.ends_with('\n') => return pid.trim().to_owned(),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        panic!("{} tells no process", file.display());
    }

    /// Ends the program, and leaves its folder.
    fn end(mut self) {
        if let Some(pipe) = &mut self.shell.stdin {
            let _already_gone = pipe.write_all(b"keep\n");
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.pid()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {name}");
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _reaped = self.shell.wait();
    }
}

fn folder(name: &str, port: u16) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tollgate-{name}-{}-{port}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn wait_for(port: u16, program: &str, folder: &Path) {
    for _ in 0..4_000 {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    panic!("{program} does not start; ./test.sh installs it\n{log}");
}

/// A Redis or Valkey.
#[derive(Debug)]
pub struct RedisServer {
    lifeline: Option<Lifeline>,
    program: String,
    arguments: Vec<String>,
    folder: PathBuf,
    /// Where it listens.
    pub port: u16,
    /// Its URL.
    pub url: String,
}

impl RedisServer {
    /// Starts one that keeps nothing.
    pub fn start(program: &str) -> Self {
        RedisServer::with(program, &[])
    }

    /// Starts one with these arguments too.
    pub fn with(program: &str, arguments: &[&str]) -> Self {
        let port = free_port();
        let folder = folder("redis", port);
        let usual = format!("--port {port} --bind 127.0.0.1 --appendonly no --dir {}", folder.display());
        let mut all: Vec<String> = usual.split(' ').map(str::to_owned).collect();
        all.extend(["--save".to_owned(), String::new()]);
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let url = format!("redis://127.0.0.1:{port}");
        let mut server =
            RedisServer { lifeline: None, program: program.to_owned(), arguments: all, folder, port, url };
        server.restart();
        server
    }

    /// Starts a Sentinel with this file, which it rewrites.
    pub fn sentinel(file: &Path) -> Self {
        let port = free_port();
        let folder = folder("sentinel", port);
        let arguments =
            [file.display().to_string(), "--sentinel".to_owned(), "--port".to_owned(), port.to_string()];
        let url = format!("redis://127.0.0.1:{port}");
        let program = "redis-server".to_owned();
        let mut server =
            RedisServer { lifeline: None, program, arguments: arguments.to_vec(), folder, port, url };
        server.restart();
        server
    }

    /// Starts it (again), on the same port, empty.
    pub fn restart(&mut self) {
        self.kill();
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.lifeline = Some(Lifeline::start(&self.program, &arguments, &self.folder, "KILL"));
        wait_for(self.port, &self.program, &self.folder);
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.lifeline.take().into_iter().for_each(Lifeline::end);
    }

    /// Sends a signal, such as `-STOP`.
    pub fn signal(&self, name: &str) {
        self.lifeline.as_ref().expect("a running server").signal(name);
    }

    /// Runs a command by the server's own client.
    pub fn command(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output().expect("redis-cli");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A number of `INFO`.
    pub fn info(&self, name: &str) -> u64 {
        let told = self.command(&["INFO", "all"]);
        let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.lifeline = None;
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

/// A PostgreSQL with one superuser, `postgres`, and no password.
#[derive(Debug)]
pub struct PostgresServer {
    lifeline: Option<Lifeline>,
    programs: PathBuf,
    folder: PathBuf,
    /// Where it listens.
    pub port: u16,
    /// The URL of its database.
    pub url: String,
}

impl PostgresServer {
    /// Makes and starts one.
    pub fn start() -> Self {
        let port = free_port();
        let folder = folder("postgres", port);
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL; ./test.sh installs it");
        let mut versions: Vec<PathBuf> = versions.filter_map(|entry| Some(entry.ok()?.path())).collect();
        versions.sort();
        let programs = versions.pop().expect("a version of PostgreSQL").join("bin");
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let server = PostgresServer { lifeline: None, programs, folder, port, url };
        assert!(Command::new("chown").arg("postgres").arg(&server.folder).status().is_ok());
        let data = server.folder.join("data");
        let made = server
            .program("initdb")
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status();
        assert!(made.is_ok_and(|status| status.success()), "initdb");
        let mut server = server;
        server.restart();
        server
    }

    /// A program of PostgreSQL, as a user that is not root.
    fn program(&self, name: &str) -> Command {
        let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.starts_with(b"0\n"));
        let path = self.programs.join(name);
        if !root {
            return Command::new(path);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path);
        command
    }

    /// Starts it (again), on the same port, with what it had.
    pub fn restart(&mut self) {
        self.stop();
        let program = self.program("postgres");
        let data = self.folder.join("data");
        let port = self.port.to_string();
        let mut arguments: Vec<String> =
            program.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
        let (data, socket) = (data.display().to_string(), self.folder.display().to_string());
        for argument in
            ["-D", &data, "-p", &port, "-k", &socket, "-h", "127.0.0.1", "-c", "max_connections=60"]
        {
            arguments.push(argument.to_owned());
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let name = program.get_program().to_string_lossy().into_owned();
        self.lifeline = Some(Lifeline::start(&name, &arguments, &self.folder, "INT"));
        wait_for(self.port, "postgres", &self.folder);
        for _ in 0..1_000 {
            if self.query("SELECT 1") == "1" {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("PostgreSQL does not answer");
    }

    /// Ends it: connections are cut.
    pub fn stop(&mut self) {
        self.lifeline.take().into_iter().for_each(Lifeline::end);
    }

    /// Sends a signal to its first process and all that it made.
    pub fn signal(&self, name: &str) {
        let pid = self.lifeline.as_ref().expect("a running server").pid();
        let children = Command::new("pgrep").args(["-P", &pid]).output().expect("pgrep").stdout;
        let children = String::from_utf8_lossy(&children).into_owned();
        for process in std::iter::once(pid.as_str()).chain(children.split_whitespace()) {
            let _gone = Command::new("kill").args([name, process]).status();
        }
    }

    /// Lets it speak TLS with this certificate.
    pub fn certify(&self, certificate: &str, key: &str) {
        let data = self.folder.join("data");
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let file = data.join(name);
            std::fs::write(&file, text).expect("a file");
            for change in [["chown", "postgres"], ["chmod", "600"]] {
                let _as_it_may = Command::new(change[0]).arg(change[1]).arg(&file).status();
            }
        }
        self.query("ALTER SYSTEM SET ssl = on");
        self.query("SELECT pg_reload_conf()");
    }

    /// Runs a statement, and gives what it says.
    pub fn query(&self, statement: &str) -> String {
        let port = self.port.to_string();
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-AtqX", "-c", statement]);
        let output = command.output().expect("psql");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.lifeline = None;
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}
