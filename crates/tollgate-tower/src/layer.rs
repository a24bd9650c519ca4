use std::net::IpAddr;
use std::sync::Arc;

use http::Extensions;
use tollgate::client::Trust;
use tollgate::contract::Contract;
use tollgate::{Limiter, Memory};
use tower_layer::Layer;

use crate::service::Limit;
use crate::turns::{MAX_WAITING, Turns};

/// Puts a [`Limit`] before HTTP services. All of them, and all clones, share the limiter.
#[derive(Debug)]
pub struct LimitLayer<S = Memory> {
    pub(crate) shared: Arc<Shared<S>>,
}

/// What the clones of a service share.
pub(crate) struct Shared<S> {
    pub(crate) limiter: Arc<Limiter<S>>,
    pub(crate) contract: Contract,
    pub(crate) trust: Trust,
    pub(crate) turns: Arc<Turns>,
    pub(crate) peer: Arc<Peer>,
}

/// Finds the address of the peer.
type Peer = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;

impl<S> LimitLayer<S> {
    /// A layer that asks this limiter.
    ///
    /// The client's address is that of a [`SocketAddr`](std::net::SocketAddr) among the request's extensions, unless
    /// [`LimitLayer::peer`] says otherwise.
    pub fn new(limiter: impl Into<Arc<Limiter<S>>>) -> Self {
        let peer = Arc::new(|extensions: &Extensions| {
            extensions.get::<std::net::SocketAddr>().map(std::net::SocketAddr::ip)
        });
        let (contract, trust) = (Contract::default(), Trust::default());
        let (limiter, turns) = (limiter.into(), Turns::new(MAX_WAITING));
        LimitLayer { shared: Arc::new(Shared { limiter, contract, trust, turns, peer }) }
    }

    /// Where the address of the peer is found: with axum, in its `ConnectInfo`.
    #[must_use]
    pub fn peer(self, peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.peer = Arc::new(peer))
    }

    /// Whose forwarding headers are believed; nobody's by default.
    #[must_use]
    pub fn trust(self, trust: Trust) -> Self {
        self.with(|shared| shared.trust = trust)
    }

    /// The lines in which requests wait for their turn, when a leaky queue says so: shared with others, or of another length.
    #[must_use]
    pub fn turns(self, turns: Arc<Turns>) -> Self {
        self.with(|shared| shared.turns = turns)
    }

    /// Which headers answers carry.
    #[must_use]
    pub fn contract(self, contract: Contract) -> Self {
        self.with(|shared| shared.contract = contract)
    }

    fn with(self, change: impl FnOnce(&mut Shared<S>)) -> Self {
        let mut shared = Shared::clone(&self.shared);
        change(&mut shared);
        LimitLayer { shared: Arc::new(shared) }
    }
}

impl<S> Clone for LimitLayer<S> {
    fn clone(&self) -> Self {
        LimitLayer { shared: Arc::clone(&self.shared) }
    }
}

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Self {
        let (limiter, peer) = (Arc::clone(&self.limiter), Arc::clone(&self.peer));
        let turns = Arc::clone(&self.turns);
        Shared { limiter, peer, turns, contract: self.contract, trust: self.trust.clone() }
    }
}

impl<S> std::fmt::Debug for Shared<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("contract", &self.contract).finish_non_exhaustive()
    }
}

impl<S, T> Layer<T> for LimitLayer<S> {
    type Service = Limit<T, S>;

    fn layer(&self, inner: T) -> Limit<T, S> {
        Limit { inner, shared: Arc::clone(&self.shared) }
    }
}
