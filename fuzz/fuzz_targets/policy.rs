//! A policy file: it is read or refused with places, and what was read can be asked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::Policies;

fuzz_target!(|text: &str| {
    match tollgate_server::settings::read("fuzz.toml", text, None) {
        Ok((settings, set)) => {
            for policy in &set.policies {
                tollgate_server::explain::explain(policy, &settings.store);
            }
            let policies = Policies::new(set, &tollgate::Salt::random(), 1);
            let headers = http::HeaderMap::new();
            let request = tollgate::Request {
                method: "GET",
                host: "example.com",
                path: "/a/b",
                query: Some("a=b"),
                headers: &headers,
                address: Some([192, 0, 2, 1].into()),
                size: None,
            };
            policies.explain(&request);
        }
        Err(problems) => {
            let lines = text.matches('\n').count() + 1;
            assert!(!problems.0.is_empty());
            assert!(problems.0.iter().all(|problem| (1..=lines).contains(&problem.line)));
        }
    }
});
