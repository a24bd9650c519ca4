//! A running server, an origin that tells what it was sent, and a client.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take that should take no time at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A folder of this test's own, gone when the test is.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tollgate-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// `tollgate serve` on free ports.
pub(crate) struct Server {
    child: Child,
    pub(crate) gateway: String,
    pub(crate) api: String,
    pub(crate) admin: String,
    pub(crate) resp: String,
    pub(crate) rls: String,
    pub(crate) out: Arc<Mutex<String>>,
    pub(crate) errors: Arc<Mutex<String>>,
}

pub(crate) fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let names = ["CONFIG", "LISTEN", "API", "ADMIN", "UPSTREAM", "STORE", "LIMIT", "SALT", "ADMIN_TOKEN"];
    for name in names.iter().chain(&["RESP", "RESP_PASSWORD", "RLS"]) {
        command.env_remove(format!("TOLLGATE_{name}"));
    }
    command
}

impl Server {
    /// A server with these flags.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Server::run(tollgate().args(flags_with_ports(flags)))
    }

    /// A server with this file and upstream.
    pub(crate) fn with_file(file: &Path, upstream: &str) -> Self {
        let mut flags = vec!["--config", file.to_str().unwrap()];
        if !upstream.is_empty() {
            flags.extend(["--upstream", upstream]);
        }
        Server::start(&flags)
    }

    /// A server with this file, which says where its doors are.
    pub(crate) fn run_file(file: &Path) -> Self {
        let config = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"];
        Server::run(tollgate().args(config).arg(file))
    }

    pub(crate) fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = drain(child.stdout.take().unwrap());
        let errors = drain(child.stderr.take().unwrap());
        wait_for("the start message", || errors.lock().unwrap().contains("  salt "));
        let text = errors.lock().unwrap().clone();
        let address = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_default();
            let url = line.split_whitespace().nth(1).unwrap_or_default();
            let rest = url.split_once("://").map_or("", |(_, rest)| rest);
            rest.split('/').next().unwrap_or_default().to_owned()
        };
        let (gateway, api, admin) = (address("gateway"), address("checks"), address("admin"));
        let (resp, rls) = (address("resp"), address("rls"));
        Server { child, gateway, api, admin, resp, rls, out, errors }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Waits for the process to end by itself.
    pub(crate) fn ended(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = get(&self.admin, "/metrics", &[]).body;
        let line = text
            .lines()
            .find(|line| line.starts_with(name) && line.as_bytes().get(name.len()) == Some(&b' '));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }

    /// Decision lines so far.
    pub(crate) fn decisions(&self) -> Vec<Value> {
        let out = self.out.lock().unwrap();
        out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn flags_with_ports(flags: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = vec!["serve".into()];
    for port in ["--listen", "--api", "--admin"] {
        if !flags.contains(&port) {
            all.extend([port.to_owned(), "127.0.0.1:0".to_owned()]);
        }
    }
    all.extend(flags.iter().map(|flag| (*flag).to_owned()));
    all
}

fn drain(stream: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&text);
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut text = sink.lock().unwrap();
            text.push_str(&line);
            text.push('\n');
        }
    });
    text
}

pub(crate) fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        thread::sleep(Duration::from_millis(5));
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

pub(crate) fn get(address: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    send("GET", address, path, headers, "")
}

/// The status of a GET, `None` when there is none: the server may be gone.
pub(crate) fn try_get(address: &str, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    let _gone = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    // A head that is not whole is no answer.
    answer.contains("\r\n\r\n").then(|| answer.split(' ').nth(1)?.parse().ok()).flatten()
}

pub(crate) fn post(address: &str, path: &str, body: &str) -> Answer {
    send("POST", address, path, &[("content-type", "application/json")], body)
}

pub(crate) fn send(method: &str, address: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
    let agent: ureq::Agent = config.max_redirects(0).allow_non_standard_methods(true).build().into();
    let mut request = ureq::http::Request::builder().method(method).uri(format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let sent = if body.is_empty() {
        agent.run(request.body(()).unwrap())
    } else {
        agent.run(request.body(body.to_owned()).unwrap())
    };
    let mut response = sent.unwrap_or_else(|error| panic!("{method} {address}{path}: {error}"));
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in response.headers() {
        let field = fields.entry(name.to_string()).or_default();
        field.push_str(if field.is_empty() { "" } else { ", " });
        field.push_str(value.to_str().unwrap());
    }
    let status = response.status().as_u16();
    Answer { status, headers: fields, body: response.body_mut().read_to_string().unwrap_or_default() }
}

/// Sends bytes as they are, and reads until the other side ends.
pub(crate) fn raw(address: &str, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    read_all(&mut stream)
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn read_all(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A connection that is reset after its answer has answered.
    let _ended = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// An origin of one's own: `answer` gets each connection's request head, and writes what it likes.
pub(crate) fn origin(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            thread::spawn(move || serve_origin(stream, &*answer));
        }
    });
    format!("http://{address}")
}

fn serve_origin(mut stream: TcpStream, answer: &(dyn Fn(&str, &mut TcpStream) + Send + Sync)) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        head.push(byte[0]);
    }
    answer(&String::from_utf8_lossy(&head), &mut stream);
}

/// An origin that answers with the head that it was sent.
pub(crate) fn mirror() -> String {
    origin(|head, stream| {
        let length = head.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\nx-origin: mirror\r\n\r\n{head}"
        );
        let _gone = stream.write_all(answer.as_bytes());
    })
}

/// A real nginx with a page, on a free port.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) url: String,
    _folder: Folder,
}

impl Nginx {
    pub(crate) fn start() -> Self {
        Nginx::with("", "")
    }

    /// One with these directives for its HTTP and its server.
    pub(crate) fn with(http: &str, server: &str) -> Self {
        let folder = Folder::new();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        folder.write("index.html", "<h1>the origin</h1>\n");
        let root = folder.0.display();
        let config = format!(
            "daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log;\n\
             events {{ worker_connections 2048; }}\n\
             http {{ access_log off; {http} client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;\n\
             uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n\
             server {{ listen 127.0.0.1:{port} backlog=2048; root {root}; {server} }} }}\n"
        );
        let file = folder.write("nginx.conf", &config);
        // Workers of another user cannot read a folder that only its maker may.
        let user = format!("user root; {}", std::fs::read_to_string(&file).unwrap());
        std::fs::write(&file, user).unwrap();
        let mut command = Command::new("/usr/sbin/nginx");
        let child = command.arg("-c").arg(&file).stderr(Stdio::null()).spawn();
        let child = child.expect("nginx is installed: ./test.sh does that");
        wait_for("nginx", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Nginx { child, url: format!("http://127.0.0.1:{port}"), _folder: folder }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _told = Command::new("kill").arg(self.child.id().to_string()).status();
        let _reaped = self.child.wait();
    }
}

impl Server {
    /// Bytes of memory that it holds.
    pub(crate) fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().split(' ').next().unwrap().parse::<usize>().unwrap() << 10
    }
}

/// Where ./test.sh puts what it installs.
pub(crate) fn tools() -> PathBuf {
    std::env::var_os("TOLLGATE_TOOLS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python"),
        PathBuf::from,
    )
}

/// Runs one of the Python clients, and gives what it says.
pub(crate) fn python(script: &str, arguments: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/clients").join(script);
    let mut command = Command::new("python3");
    let output = command.arg(path).args(arguments).env("PYTHONPATH", tools()).output().expect("python3");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}
