//! `/v1/auth`: what nginx, Caddy and Traefik ask.

use crate::rig::{Folder, Server, get, send};

const POLICY: &str =
    "[[policy]]\nname = \"p\"\nmatch = { method = \"POST\", path = \"/login\" }\nquota = \"1/1m\"\n";

fn ask(server: &Server, path: &str, headers: &[(&str, &str)]) -> u16 {
    get(&server.api, path, headers).status
}

#[test]
fn the_request_is_the_one_that_the_proxy_describes() {
    let folder = Folder::new();
    let server = Server::with_file(&folder.write("p.toml", POLICY), "");
    let caddy = |client: &'static str| {
        [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login?a=b"), ("x-forwarded-for", client)]
    };
    assert_eq!(ask(&server, "/v1/auth", &caddy("192.0.2.1")), 200);
    assert_eq!(ask(&server, "/v1/auth", &caddy("192.0.2.1")), 429);
    assert_eq!(ask(&server, "/v1/auth", &caddy("192.0.2.2")), 200, "a proxy on this machine is believed");
    let nginx =
        [("x-original-method", "POST"), ("x-original-uri", "/login"), ("x-forwarded-for", "192.0.2.1")];
    let refused = get(&server.api, "/v1/auth?deny_status=403", &nginx);
    assert_eq!((refused.status, refused.header("x-rl-status")), (403, "429"));
    assert!(!refused.header("retry-after").is_empty() && refused.header("cache-control") == "no-store");
    let get_request =
        [("x-original-method", "GET"), ("x-original-uri", "/login"), ("x-forwarded-for", "192.0.2.1")];
    assert_eq!(ask(&server, "/v1/auth", &get_request), 200, "another method, another matter");
    assert_eq!(
        ask(&server, "/v1/auth", &[("x-original-method", "POST"), ("x-original-url", "http://h/login")]),
        200
    );
    assert_eq!(
        ask(&server, "/v1/auth?deny_status=403&x=y", &caddy("192.0.2.1")),
        429,
        "Caddy adds its client's query"
    );
    assert_eq!(ask(&server, "/v1/auth?deny_status=200", &[]), 400);
    assert_eq!(ask(&server, "/v1/auth?bogus=1", &[]), 400);
}

#[test]
fn a_client_cannot_describe_its_request_itself() {
    let folder = Folder::new();
    let server = Server::with_file(&folder.write("p.toml", POLICY), "");
    let nginx = [("x-original-method", "POST"), ("x-original-uri", "/login?next=http://a/ok")];
    assert_eq!(ask(&server, "/v1/auth", &nginx), 200);
    assert_eq!(ask(&server, "/v1/auth", &nginx), 429, "a URL in the query does not change the path");
    let grpc = [nginx[0], nginx[1], ("content-type", "application/grpc")];
    assert_eq!(
        ask(&server, "/v1/auth", &grpc),
        429,
        "the proxy reads the status, whatever its client speaks"
    );
    for half in [&nginx[..1], &nginx[1..], &[]] {
        assert_eq!(ask(&server, "/v1/auth", half), 400, "{half:?}");
        assert_eq!(ask(&server, "/v1/auth?deny_status=403", half), 403, "{half:?}");
    }
    let twice = [nginx[0], nginx[1], ("x-original-uri", "/x")];
    assert_eq!(ask(&server, "/v1/auth", &twice), 400, "a proxy that adds instead of setting");
    for smuggled in [("x-forwarded-uri", "/x"), ("x-forwarded-method", "OPTIONS")] {
        let both =
            [nginx[0], nginx[1], smuggled, ("origin", "https://a"), ("access-control-request-method", "GET")];
        assert_eq!(ask(&server, "/v1/auth", &both), 400, "{smuggled:?}");
    }
}

#[test]
fn answers_carry_the_contract_and_preflights_are_free() {
    let folder = Folder::new();
    let server = Server::with_file(&folder.write("p.toml", POLICY), "");
    let admitted =
        get(&server.api, "/v1/auth", &[("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login")]);
    assert_eq!((admitted.status, admitted.header("x-ratelimit-remaining")), (200, "0"));
    assert_eq!(admitted.header("ratelimit"), "\"p\";r=0;t=60");
    let preflight = [
        ("x-forwarded-method", "OPTIONS"),
        ("x-forwarded-uri", "/login"),
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
    ];
    assert_eq!(ask(&server, "/v1/auth", &preflight), 200);
    assert_eq!(send("HEAD", &server.api, "/v1/auth", &preflight[..2], "").status, 200);
}
