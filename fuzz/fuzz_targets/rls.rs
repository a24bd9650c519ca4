//! What may be sent to Envoy's rate limit service: a status for each descriptor, or an error.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tollgate_server::app::App;
use tollgate_server::rls::protocol::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate_server::rls::should_rate_limit;

static APP: LazyLock<Arc<App>> = LazyLock::new(tollgate_fuzz::app);

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    if let Ok(answer) = pollster::block_on(should_rate_limit(&APP, &request)) {
        assert_eq!(answer.statuses.len(), request.descriptors.len());
        let over = answer.statuses.iter().any(|status| status.code == 2);
        assert!(!over || answer.overall_code == 2);
        assert!(answer.encode_to_vec().len() < 1 << 20);
    }
});
