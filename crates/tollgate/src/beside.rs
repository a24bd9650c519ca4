//! What is counted beside a policy: the refusals that lead to a ban, the ban, and until when somebody is held.
//!
//! A bar is a cell like any other: under a rule that gives a millisecond each millisecond, a key that is barred for so long owes that
//! many. Whether one is barred is asked by a charge that takes nothing and wants all of it there, in the same demand as
//! the policy's own; so it is decided in the same step, on every store, and forgotten when it is over.

use tollgate_core::{Charge, Fingerprint, Quota, Rule, RuleError};
use tollgate_store::{Demand, Intent, WhenFull};

use crate::placement::Placement;
use crate::policy::Policy;
use crate::ready::Ready;

/// The longest that anybody is barred: 30 days, in milliseconds.
pub const MAX_BAR_MS: u64 = 30 * 86_400_000;

/// Nanoseconds of a millisecond, the unit of bars.
pub(crate) const MILLISECOND: u64 = tollgate_core::SECOND / 1_000;

/// The most bans that are remembered of one subject; from then on they last as long as they may.
const MAX_BANS: u64 = 32;

/// What may be counted beside a policy, each in a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// Refusals, in this process.
    Strikes,
    /// Until when a subject is banned, and how often it was.
    Bans,
    /// Until when an origin wants to hear nothing of a subject, or a sampled subject is known to have nothing left.
    Holds,
    /// Reservations that are open or were settled.
    Open,
}

/// How many kinds there are.
pub(crate) const KINDS: usize = 4;

impl Beside {
    const ALL: [Beside; KINDS] = [Beside::Strikes, Beside::Bans, Beside::Holds, Beside::Open];

    /// Another key for each kind.
    const fn key(self, key: Fingerprint) -> Fingerprint {
        let apart = match self {
            Beside::Strikes => 0x7374_7269_6B65_735F_6F66_5F69_745F_2121,
            Beside::Bans => 0x6261_6E6E_6564_5F75_6E74_696C_5F69_7421,
            Beside::Holds => 0x6865_6C64_5F75_6E74_696C_5F69_7473_5F21,
            Beside::Open => 0,
        };
        Fingerprint(key.0 ^ apart)
    }

    const fn name(self) -> &'static str {
        match self {
            Beside::Strikes => "strikes",
            Beside::Bans => "bans",
            Beside::Holds => "holds",
            Beside::Open => "reservations",
        }
    }
}

/// A subject that is refused too often is refused for longer, whatever it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Refusals that lead to a ban, and the window in which they are counted.
    strikes: Rule,
    /// How long the first ban lasts, and the longest; each is twice the one before. In milliseconds.
    first: u64,
    longest: u64,
    /// How many bans are remembered, of which one is forgotten each `forget`.
    level: Rule,
}

impl Ban {
    /// After `after` refusals in a window of `within` nanoseconds a subject is banned for `first`, then for twice that, and so on
    /// up to `longest`; one ban is forgotten each `forget`.
    ///
    /// # Errors
    /// A message when a number is out of range.
    pub fn new(after: u64, within: u64, first: u64, longest: u64, forget: u64) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| error.to_string();
        let strikes = Quota::new(after, within, after, 0).map_err(|error| wrong(&error))?;
        let strikes = Rule::new(strikes, tollgate_core::Algorithm::FixedWindow)
            .map_err(|error: RuleError| wrong(&error))?;
        let level = Quota::new(1, forget, MAX_BANS, 0).map_err(|error| wrong(&error))?;
        let (first, longest) = (first.div_ceil(MILLISECOND), longest.div_ceil(MILLISECOND));
        if first == 0 || first > longest || longest > MAX_BAR_MS {
            return Err("a ban lasts from 1ms to 30d, the first no longer than the longest".to_owned());
        }
        // Keys have windows of their own, so that nobody can wait for everybody's edge.
        Ok(Ban { strikes: strikes.with_jittered_edges(true), first, longest, level: Rule::gcra(level) })
    }

    /// How many refusals lead to a ban.
    pub fn after(&self) -> u64 {
        self.strikes.capacity()
    }

    /// The window in which they are counted, in nanoseconds.
    pub const fn within(&self) -> u64 {
        self.strikes.quota().window()
    }

    /// How long a ban lasts when so many are remembered, in nanoseconds.
    pub fn lasts(&self, remembered: u64) -> u64 {
        self.ms(remembered).saturating_mul(MILLISECOND)
    }

    /// In how many nanoseconds one is forgotten.
    pub const fn forget(&self) -> u64 {
        self.level.quota().window()
    }

    pub(crate) fn ms(&self, remembered: u64) -> u64 {
        let doubled = 1_u64.checked_shl(u32::try_from(remembered).unwrap_or(u32::MAX)).unwrap_or(u64::MAX);
        self.first.saturating_mul(doubled).min(self.longest)
    }

    /// The rule by which refusals are counted.
    pub(crate) const fn strikes(&self) -> &Rule {
        &self.strikes
    }

    /// The rule by which bans are.
    pub(crate) const fn level(&self) -> &Rule {
        &self.level
    }
}

/// A millisecond each millisecond.
fn bar_rule() -> Option<Rule> {
    Quota::new(1, MILLISECOND, MAX_BAR_MS, 0).ok().map(Rule::gcra)
}

impl Policy {
    /// Whether something of this kind is counted beside it.
    fn has(&self, kind: Beside) -> bool {
        match kind {
            Beside::Strikes | Beside::Bans => self.ban.is_some(),
            Beside::Holds => self.obey > 0 || self.remembers_samples(),
            Beside::Open => self.reserve.is_some(),
        }
    }

    /// Whether those that are not drawn are told what a store elsewhere said to those that were.
    pub(crate) const fn remembers_samples(&self) -> bool {
        self.sample > 1 && self.placement.is_shared()
    }

    /// How many keys one request charges or looks at.
    pub(crate) fn charges(&self) -> usize {
        let beside = [Beside::Bans, Beside::Holds].iter().filter(|kind| self.has(**kind)).count();
        beside.saturating_add(1)
    }

    /// The policies that nobody wrote down, by which is counted what is counted beside this one.
    pub(crate) fn beside(&self) -> impl Iterator<Item = (Beside, Policy)> {
        Beside::ALL.into_iter().filter(|kind| self.has(*kind)).filter_map(|kind| {
            let rule = match kind {
                Beside::Strikes => self.ban.map(|ban| ban.strikes),
                Beside::Bans | Beside::Holds => bar_rule(),
                Beside::Open => self.reserve.map(|reserve| *reserve.marker()),
            };
            // No policy that somebody names has a `#`.
            let mut policy = Policy::named(&format!("{}#{}", self.name, kind.name()), rule?);
            policy.placement = match self.placement {
                _ if kind == Beside::Strikes || (kind == Beside::Holds && self.obey == 0) => Placement::Local,
                Placement::Local | Placement::Divided => Placement::Local,
                Placement::Durable => Placement::Durable,
                _ => Placement::Strict,
            };
            // To forget a reservation would be to let it be settled again; to forget a bar only lets somebody try again.
            let open = kind == Beside::Open;
            policy.when_full = if open { WhenFull::Refuse } else { WhenFull::Evict };
            policy.keys = self.reserve.filter(|_| open).map_or(self.keys, |reserve| reserve.open());
            policy.on_unavailable = self.on_unavailable;
            if policy.on_unavailable == crate::Direction::Local {
                policy.on_unavailable = crate::Direction::Admit;
            }
            // Its keys are counted by more than one rule.
            policy.client_quota = true;
            Some((kind, policy))
        })
    }
}

impl Ready {
    /// The key under which it is counted here what is counted of `key`. A server keeps the counts of all policies together, so what is
    /// counted beside one has keys of its own.
    pub(crate) fn own_key(&self, key: Fingerprint) -> Fingerprint {
        self.of.map_or(key, |(_, kind)| kind.key(key))
    }

    /// Whether `key` is barred, asked in the demand that decides the rest.
    pub(crate) fn barred(&self, key: Fingerprint) -> Charge<'_> {
        let key = self.own_key(key);
        Charge { policy: self.index, key, rule: &self.policy.rule, cost: 0, spare: MAX_BAR_MS }
    }

    /// Whatever is known of `key` is forgotten.
    pub(crate) fn forgetting(&self, key: Fingerprint) -> Demand<'_> {
        Demand::of(Charge { spare: 0, ..self.barred(key) }).to(Intent::Forget)
    }

    /// Asks only that.
    pub(crate) fn looking(&self, key: Fingerprint) -> Demand<'_> {
        Demand::of(self.barred(key)).fleeting(true)
    }

    /// Bars `key` for so many milliseconds from now, which is `left` milliseconds from being free, unless it is barred for longer by now.
    pub(crate) fn barring(&self, key: Fingerprint, left: u64, ms: u64) -> Demand<'_> {
        let ms = ms.clamp(1, MAX_BAR_MS);
        let (cost, spare) = (ms.saturating_sub(left).max(1), MAX_BAR_MS.saturating_sub(ms));
        Demand::of(Charge { cost, spare, ..self.barred(key) })
    }
}

/// The key under which it is counted how often somebody was banned.
pub(crate) const fn level_key(key: Fingerprint) -> Fingerprint {
    Fingerprint(key.0 ^ 0x686F_775F_6F66_7465_6E5F_6261_6E6E_6564)
}
