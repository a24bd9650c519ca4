//! The configurations in `examples/`, each run by the proxy that it is for, in front of a real origin.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::rig::{Answer, Folder, Nginx, Server, get, send, tools, wait_for};

/// One policy for each thing that a door has to say.
const POLICIES: &str = r#"
[server]
api = "127.0.0.1:0"
rls = "127.0.0.1:0"
[server.limits]
head_timeout = "60s"

[[policy]]
name    = "login"
match   = { method = "POST", path = "/login" }
subject = ["header:x-user-id", "address"]
quota   = "2/1m"
deny    = ["subject:mallory"]

[[policy]]
name    = "pages"
match   = { path = "/public/**" }
quota   = "3/1m"

[[policy]]
name    = "users"
match   = { path = "/me" }
subject = "header:x-user-id"
quota   = "3/1m"
"#;

/// A policy whose store is out of reach.
const OUT_OF_REACH: &str = r#"
[server]
api = "127.0.0.1:0"
rls = "127.0.0.1:0"
[store]
url = "redis://127.0.0.1:1"

[[policy]]
name    = "spend"
quota   = "2/1m"
class   = "spend"
"#;

/// A proxy with its example, on a free port.
struct Proxy {
    child: Child,
    address: String,
    folder: Folder,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _told = Command::new("kill").arg(self.child.id().to_string()).status();
        let _reaped = self.child.wait();
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// The text of an example, with the ports of this test in it.
fn with_ports(name: &str, ports: &[(&str, &str)]) -> String {
    let mut text = std::fs::read_to_string(example(name)).unwrap();
    for (usual, here) in ports {
        assert!(text.contains(usual), "{name} has {usual}");
        text = text.replace(usual, here);
    }
    text
}

fn run(mut command: Command, folder: Folder, address: String) -> Proxy {
    let log = std::fs::File::create(folder.0.join("log")).unwrap();
    let child = command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}; ./test.sh installs it"));
    let proxy = Proxy { child, address, folder };
    let log = || std::fs::read_to_string(proxy.folder.0.join("log")).unwrap_or_default();
    for _ in 0..4_000 {
        if TcpStream::connect(&proxy.address).is_ok() {
            return proxy;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("it does not start: {}", log());
}

fn free_address() -> String {
    format!("127.0.0.1:{}", tollgate_harness::servers::free_port())
}

fn origin(nginx: &Nginx) -> &str {
    nginx.url.strip_prefix("http://").unwrap()
}

fn nginx(origin: &str, server: &Server) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let text = with_ports(
        "nginx.conf",
        &[("127.0.0.1:3000", origin), ("127.0.0.1:8081", &server.api), ("127.0.0.1:8000", &address)],
    );
    let root = folder.0.display();
    let paths =
        format!("user root; daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log;\n");
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind}; "));
    let text = paths + &text.replace("http {", &format!("http {{ access_log off; {}", temporary.concat()));
    let file = folder.write("nginx.conf", &text);
    let mut command = Command::new("/usr/sbin/nginx");
    command.arg("-c").arg(file);
    run(command, folder, address)
}

fn caddy(origin: &str, server: &Server) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let ports = [("127.0.0.1:3000", origin), ("127.0.0.1:8081", &server.api), ("127.0.0.1:8000", &address)];
    let file = folder.write("Caddyfile", &with_ports("Caddyfile", &ports));
    let mut command = Command::new(tools().join("bin/caddy"));
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file).env("HOME", &folder.0);
    run(command, folder, address)
}

fn traefik(origin: &str, server: &Server) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let routes =
        with_ports("traefik/routes.toml", &[("127.0.0.1:3000", origin), ("127.0.0.1:8081", &server.api)]);
    let routes = folder.write("routes.toml", &routes);
    let ports =
        [("127.0.0.1:8000", address.as_str()), ("examples/traefik/routes.toml", routes.to_str().unwrap())];
    let file = folder.write("traefik.toml", &with_ports("traefik/traefik.toml", &ports));
    let mut command = Command::new(tools().join("bin/traefik"));
    command.arg(format!("--configFile={}", file.display()));
    let proxy = run(command, folder, address);
    // It listens before it has its routes.
    wait_for("the routes", || get(&proxy.address, "/", &[]).status != 404);
    proxy
}

fn envoy(origin: &str, server: &Server, text: Option<&str>) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let port = |address: &str| format!("port_value: {}", address.rsplit(':').next().unwrap());
    let (listen, origin, rls) = (port(&address), port(origin), port(&server.rls));
    let ports =
        [("port_value: 3000", origin.as_str()), ("port_value: 8082", &rls), ("port_value: 8000", &listen)];
    let mut config = text.map_or_else(|| with_ports("envoy.yaml", &[]), str::to_owned);
    for (usual, here) in ports {
        config = config.replace(usual, here);
    }
    let file = folder.write("envoy.yaml", &config);
    let mut command = Command::new(tools().join("envoy/_bin/envoy"));
    command.arg("-c").arg(file);
    command.args(["--concurrency", "1", "--log-level", "warn", "--disable-hot-restart"]);
    run(command, folder, address)
}

fn login(proxy: &Proxy, user: &str) -> Answer {
    send("POST", &proxy.address, "/login", &[("x-user-id", user)], "x=1")
}

/// What every proxy has to pass on: who is limited, when to come back, who is denied and who is nobody.
fn limits_as_the_policies_say(proxy: &Proxy) {
    for user in ["alice", "bob"] {
        // The origin has no such page, or takes no form there: it answered.
        let admitted = [login(proxy, user).status, login(proxy, user).status];
        assert!(admitted.iter().all(|status| [404, 405].contains(status)), "{user}: {admitted:?}");
    }
    let refused = login(proxy, "alice");
    assert_eq!(refused.status, 429, "{refused:?}");
    let wait: u64 = refused.header("retry-after").parse().unwrap_or_else(|_| panic!("{refused:?}"));
    assert!((29..=30).contains(&wait), "{refused:?}");
    assert_eq!(refused.header("cache-control"), "no-store");
    assert!(refused.header("ratelimit").starts_with("\"login\";r=0;t="), "{refused:?}");
    assert_eq!(get(&proxy.address, "/", &[]).status, 200, "what no policy is about");
    let pages = |path| (0..5).map(|_| get(&proxy.address, path, &[]).status).collect::<Vec<_>>();
    assert_eq!(pages("/public/?a=b")[..], [404, 404, 404, 429, 429], "by address");
    // A client's own account of where it comes from, and of what it asks for.
    let lies = [
        ("x-forwarded-for", "192.0.2.7"),
        ("x-forwarded-uri", "/"),
        ("x-original-uri", "/"),
        ("x-forwarded-method", "GET"),
    ];
    let lied = get(&proxy.address, "/public/x", &lies).status;
    assert!([429, 400].contains(&lied), "{lied}");
    assert_eq!(login(proxy, "mallory").status, 403);
    assert_eq!(get(&proxy.address, "/me", &[]).status, 400);
}

fn policies() -> (Server, Folder) {
    let folder = Folder::new();
    (Server::run_file(&folder.write("p.toml", POLICIES)), folder)
}

fn out_of_reach() -> (Server, Folder) {
    let folder = Folder::new();
    let file = folder.write("p.toml", OUT_OF_REACH);
    folder.write("p.toml.salt", "a salt of sixteen bytes and more\n");
    (Server::run_file(&file), folder)
}

#[test]
fn nginx_asks_by_auth_request() {
    let (page, (server, _folder)) = (Nginx::start(), policies());
    let proxy = nginx(origin(&page), &server);
    limits_as_the_policies_say(&proxy);
    drop(server);
    let down = get(&proxy.address, "/", &[]);
    assert_eq!(down.status, 503, "refused when the limiter is gone");
    assert_eq!(get(&proxy.address, "/public/", &[]).status, 404, "passed on where it is configured so");
    let (server, _folder) = out_of_reach();
    let proxy = nginx(origin(&page), &server);
    let unavailable = get(&proxy.address, "/", &[]);
    assert_eq!((unavailable.status, unavailable.header("retry-after").is_empty()), (503, false));
}

#[test]
fn caddy_asks_by_forward_auth() {
    let (page, (server, _folder)) = (Nginx::start(), policies());
    let proxy = caddy(origin(&page), &server);
    limits_as_the_policies_say(&proxy);
    drop(server);
    assert_eq!(get(&proxy.address, "/", &[]).status, 503, "refused when the limiter is gone");
    assert_eq!(get(&proxy.address, "/public/", &[]).status, 404, "passed on where it is configured so");
    let (server, _folder) = out_of_reach();
    let unavailable = get(&caddy(origin(&page), &server).address, "/", &[]);
    assert_eq!((unavailable.status, unavailable.header("retry-after").is_empty()), (503, false));
}

#[test]
fn traefik_asks_by_forward_auth() {
    let (page, (server, _folder)) = (Nginx::start(), policies());
    let proxy = traefik(origin(&page), &server);
    limits_as_the_policies_say(&proxy);
    drop(server);
    assert_eq!(get(&proxy.address, "/", &[]).status, 500, "its own answer when the limiter is gone");
    let (server, _folder) = out_of_reach();
    let unavailable = get(&traefik(origin(&page), &server).address, "/", &[]);
    assert_eq!((unavailable.status, unavailable.header("retry-after").is_empty()), (503, false));
}

#[test]
fn envoy_asks_the_rate_limit_service() {
    let (page, (server, _folder)) = (Nginx::start(), policies());
    let proxy = envoy(origin(&page), &server, None);
    limits_as_the_policies_say(&proxy);
    let refused = login(&proxy, "alice");
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert_eq!(
        (&refused.json()["scope"], &refused.json()["error"]),
        (&"login".into(), &"rate_limited".into())
    );
    let grpc = send(
        "POST",
        &proxy.address,
        "/login",
        &[("x-user-id", "alice"), ("content-type", "application/grpc")],
        "",
    );
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, "8"), "{grpc:?}");
    drop(server);
    assert_eq!(get(&proxy.address, "/", &[]).status, 503, "refused when the limiter is gone");
    let (server, _folder) = out_of_reach();
    let unavailable = get(&envoy(origin(&page), &server, None).address, "/", &[]);
    assert_eq!(
        (unavailable.status, unavailable.header("retry-after").is_empty()),
        (503, false),
        "{unavailable:?}"
    );
}

#[test]
fn envoy_asks_by_descriptors_that_were_imported() {
    let folder = Folder::new();
    let yaml = "domain: messages\ndescriptors:\n  - key: kind\n    value: news\n    descriptors:\n      - key: to\n        \
                rate_limit: { unit: day, requests_per_unit: 5 }\n";
    let yaml = folder.write("limits.yaml", yaml);
    let imported = crate::rig::tollgate().args(["import", "envoy"]).arg(yaml).output().unwrap();
    let server = "[server]\napi = \"127.0.0.1:0\"\nrls = \"127.0.0.1:0\"\n";
    let policies = server.to_owned() + &String::from_utf8_lossy(&imported.stdout);
    let server = Server::run_file(&folder.write("p.toml", &policies));
    let example = with_ports("envoy.yaml", &[("domain: tollgate.request", "domain: messages")]);
    let (before, rest) = example.split_once("                            - request_headers:").unwrap();
    let (_, after) = rest.split_once("  clusters:").unwrap();
    let actions = [
        "- generic_key: { descriptor_key: kind, descriptor_value: news }",
        "- request_headers: { header_name: x-to, descriptor_key: to }",
    ];
    let actions = actions.map(|action| format!("{:28}{action}\n", "")).concat();
    let text = format!("{before}{actions}  clusters:{after}");
    let timeout = "timeout: 0.1s\n                      enable_x_ratelimit_headers: DRAFT_VERSION_03";
    let text = text.replace("timeout: 0.1s", timeout);
    let page = Nginx::start();
    let proxy = envoy(origin(&page), &server, Some(&text));
    let ask = |to: &str| get(&proxy.address, "/", &[("x-to", to)]);
    let statuses: Vec<u16> = (0..6).map(|_| ask("1").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    let other = ask("2");
    assert_eq!(other.status, 200);
    let limit = other.header("x-ratelimit-limit");
    assert!(limit.contains("5, 5;w=86400"), "Envoy reads the limit and its unit: {limit}");
    assert_eq!(get(&proxy.address, "/", &[]).status, 200, "no header, no descriptor, no limit");
}
