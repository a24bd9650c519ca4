//! A server for fuzz targets: policies of every kind, on a clock that stands still.

use std::sync::Arc;

use tollgate::{Clock, SECOND, Salt};
use tollgate_server::app::App;
use tollgate_server::settings::{self, LogSettings};

const POLICIES: &str = r#"
[[policy]]
name = "p"
subject = ["header:x-user", "query:user", "cookie:user", "address"]
quota = "100/1s burst 5"
cost = { header = "x-cost", max = 9 }

[[policy]]
name = "log"
match = { path = "/a/**", host = "*.example.com" }
quota = "3/1m"
algorithm = "sliding-log"
missing = "skip"

[[policy]]
name = "d"
match = { domain = "d", descriptor = "a" }
quota = "5/1m"

[[policy]]
name = "dd"
match = { domain = "d", descriptor = ["a=x*", "b"] }
quota = "5/1m"
client_quota = true

[[policy]]
name = "r"
match = { by_name = true }
quota = "1000/1h"
reserve = { within = "10m", open = 1000 }
ban = { after = 5, within = "1m", for = "1s" }

[[policy]]
name = "s"
match = { path = "/s" }
quota = "1000/1h"
sample = "1/10"

[[policy]]
name = "t"
match = { command = "CL.THROTTLE" }
quota = "1000/1s burst 1000"
"#;

/// The server's inside.
pub fn app() -> Arc<App> {
    let (mut settings, set) = settings::read("fuzz.toml", POLICIES, None).expect("valid policies");
    settings.log = LogSettings { decisions: false, admit_sample: 1 };
    let clock = Clock::manual(1_800_057_600 * SECOND);
    Arc::new(App::new(settings, set, Salt::random(), None, clock).expect("an app"))
}
