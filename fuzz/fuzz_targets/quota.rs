//! A quota's text: what parses is valid, and reads back from what it shows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::{Algorithm, Quota, Rule};

fuzz_target!(|text: &str| {
    let _duration = tollgate::parse_duration(text);
    let Ok(quota) = text.parse::<Quota>() else { return };
    assert_eq!(quota.to_string().parse(), Ok(quota), "{text}");
    let spent = u128::from(quota.interval()) * u128::from(quota.limit());
    assert!(spent >= u128::from(quota.window()) && spent * 100 <= u128::from(quota.window()) * 101);
    for algorithm in Algorithm::ALL {
        if let Ok(rule) = Rule::new(quota, algorithm) {
            assert!(rule.bound().at(0) >= 1 && rule.capacity() >= 1);
        }
    }
});
