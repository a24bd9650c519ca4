//! Every door of one server on a manual clock, in this process.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tollgate::{Clock, PolicySet, SECOND, Salt};
use tollgate_server::app::App;
use tollgate_server::check::Api;
use tollgate_server::gateway::Gateway;
use tollgate_server::http::{Http, Wire};
use tollgate_server::listen::{self, Protocol, Stop};
use tollgate_server::resp::Resp;
use tollgate_server::rls::Rls;
use tollgate_server::settings::{LogSettings, Settings};

/// The first moment of an hour.
pub(crate) const START: u64 = 1_800_057_600 * SECOND;

/// The policies of a scenario, as if the store that some of them ask for were there; it is never connected to.
pub(crate) fn policies(text: &str) -> PolicySet {
    let text = text.split("[[step]]").next().unwrap();
    let url = "[store]\nurl = \"redis://127.0.0.1:1\"\n";
    let (_, mut set) = tollgate_server::settings::read("scenario", &format!("{url}{text}"), None)
        .unwrap_or_else(|problems| panic!("{problems}"));
    let asks_for_store = |name: &str| ["spend", "read"].contains(&name);
    for policy in set.policies.iter_mut().filter(|policy| !asks_for_store(&policy.name)) {
        policy.placement = tollgate::Placement::Local;
    }
    set
}

/// A server whose doors are all open.
pub(crate) struct Running {
    pub(crate) clock: Clock,
    pub(crate) gateway: SocketAddr,
    pub(crate) api: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) rls: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl Running {
    pub(crate) async fn start(text: &str) -> Self {
        let clock = Clock::manual(START);
        let origin = origin().await;
        let settings = Settings {
            upstream: vec![format!("http://{origin}").parse().unwrap()],
            log: LogSettings { decisions: false, admit_sample: 1 },
            ..Settings::default()
        };
        // Without a store, what is counted in one is out of reach.
        let salt = Salt::random();
        let app = Arc::new(App::new(settings, policies(text), salt, None, clock.clone()).unwrap());
        let (stop, stopped) = watch::channel(false);
        let stopped = Stop::new(stopped);
        let gateway = Http::new(Wire::default(), Gateway::new(Arc::clone(&app)).unwrap());
        let api = Http::new(Wire::default(), Api::new(Arc::clone(&app)));
        let rls = Http::new(Wire::default(), Rls::new(Arc::clone(&app), stopped.clone()).await.unwrap());
        Running {
            clock,
            gateway: open(&app, gateway, &stopped).await,
            api: open(&app, api, &stopped).await,
            resp: open(&app, Resp, &stopped).await,
            rls: open(&app, rls, &stopped).await,
            _stop: stop,
        }
    }
}

async fn open(app: &Arc<App>, protocol: impl Protocol, stop: &Stop) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(listen::serve(listener, Arc::clone(app), Arc::new(protocol), stop.clone()));
    address
}

/// An origin that has nothing to say.
async fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 4_096];
                while stream.read(&mut head).await.is_ok_and(|read| read > 0) {
                    let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                }
            });
        }
    });
    address
}
