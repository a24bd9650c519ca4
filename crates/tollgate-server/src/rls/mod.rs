//! Envoy's rate limit service: the gRPC door, with health and reflection beside it.

mod answer;
mod read;
mod until;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tonic::Status;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::app::{App, Door};
use crate::body::{Body, Guarded};
use crate::http::Handler;
use crate::listen::{Peer, Stop};
use crate::rls::protocol::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use crate::rls::protocol::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::rls::until::Until;

/// The messages and the service, as `proto/` has them.
#[allow(missing_docs, clippy::all, clippy::disallowed_methods, unreachable_pub)]
pub mod protocol {
    include!(concat!(env!("OUT_DIR"), "/protocol.rs"));
}

const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rls.descriptors"));

/// The full name of the service.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The largest message, in bytes: descriptors may each have a request's largest header in them.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// A service beside the one that this door is for.
type Beside = Box<dyn Fn(Request<tonic::body::Body>) -> BoxFuture<Response<tonic::body::Body>> + Send + Sync>;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

fn beside<S>(service: S) -> (&'static str, Beside)
where
    S: NamedService + Clone + Send + Sync + 'static,
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>, Error = Infallible>,
    S::Future: Send,
{
    let answer = move |request| -> BoxFuture<Response<tonic::body::Body>> {
        let mut service = service.clone();
        Box::pin(async move {
            let Ok(response) = service.call(request).await;
            response
        })
    };
    (S::NAME, Box::new(answer))
}

/// The gRPC door.
pub struct Rls {
    app: Arc<App>,
    limits: RateLimitServiceServer<Limits>,
    beside: Vec<(&'static str, Beside)>,
    stop: Stop,
}

impl Rls {
    /// The door over an app. Health turns to not serving when the server is told to stop.
    ///
    /// # Errors
    /// A message when the description of the protocol is broken, which a test would show.
    pub async fn new(app: Arc<App>, stop: Stop) -> Result<Self, String> {
        let describe = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let wrong = |error: tonic_reflection::server::Error| error.to_string();
        let reporter = HealthReporter::new();
        for service in ["", SERVICE] {
            reporter.set_service_status(service, ServingStatus::Serving).await;
        }
        tokio::spawn(report(reporter.clone(), stop.clone()));
        Ok(Rls {
            limits: RateLimitServiceServer::new(Limits { app: Arc::clone(&app) })
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
            beside: vec![
                beside(HealthServer::new(HealthService::from_health_reporter(reporter))),
                beside(describe().build_v1().map_err(wrong)?),
                beside(describe().build_v1alpha().map_err(wrong)?),
            ],
            app,
            stop,
        })
    }

    async fn route(&self, request: Request<tonic::body::Body>) -> Response<Body> {
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split('/').next()).unwrap_or_default();
        if service == SERVICE {
            let Ok(response) = self.limits.clone().call(request).await;
            return response.map(|body| body.map_err(Into::into).boxed_unsync());
        }
        let response = match self.beside.iter().find(|(name, _)| *name == service) {
            Some((_, beside)) => beside(request).await,
            None => {
                let expected = "no such service; expected ShouldRateLimit, health or reflection";
                Status::unimplemented(expected).into_http()
            }
        };
        // A watcher of health would keep the server from ending.
        response.map(|body| Until::new(body, self.stop.clone()).map_err(Into::into).boxed_unsync())
    }
}

async fn report(reporter: HealthReporter, mut stop: Stop) {
    stop.told().await;
    for service in ["", SERVICE] {
        reporter.set_service_status(service, ServingStatus::NotServing).await;
    }
}

impl Handler for Rls {
    async fn answer(&self, request: Request<Incoming>, _peer: &Peer) -> Response<Body> {
        let pause = self.app.settings.limits.body_timeout;
        let most = self.app.settings.limits.max_body;
        let request = request.map(|body| tonic::body::Body::new(Guarded::new(body, most, pause).0));
        let response = self.route(request).await;
        let status = response.headers().get("grpc-status").and_then(|status| status.to_str().ok());
        self.app.metrics.responses.with_label_values(&["rls", status.unwrap_or("0")]).inc();
        response
    }
}

/// Answers one message.
///
/// # Errors
/// A status when what is asked makes no sense, or names a policy that there is not.
pub async fn should_rate_limit(app: &App, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
    let entries = read::entries(request);
    let said = read::Said::read(request, &entries).map_err(Status::invalid_argument)?;
    let requests = said.requests();
    let ruling = app.decide(Door::Rls, &said.asked(&requests)).await;
    answer::answer(&app.settings.contract, &said, &ruling)
}

/// The service itself.
#[derive(Debug)]
struct Limits {
    app: Arc<App>,
}

#[tonic::async_trait]
impl RateLimitService for Limits {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        should_rate_limit(&self.app, &request.into_inner()).await.map(tonic::Response::new)
    }
}
