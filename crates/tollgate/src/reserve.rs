//! Reservations: units that are charged before it is known how many are used, and settled when it is.
//!
//! Nothing is kept of a reservation but a marker: a key like any other, of which opening takes one of two units, both
//! of which must be there, and settling the other. It lapses by itself. What was reserved stands in the token that the
//! caller gets, signed under the salt. So a caller that dies leaves nothing behind but its charge, every store can keep
//! reservations, and any instance can settle them.

use tollgate_core::{Charge, Fingerprint, Outcome, Quota, Rule, Verdict};
use tollgate_store::{Answer, Demand, Intent, Store, Unanswered};

use crate::beside::Beside;
use crate::key::{Keys, Salt};
use crate::places::Places;
use crate::ready::Ready;
use crate::settle::{Adjust, Target, credited};
use crate::{Limiter, Reason, Ruling, show_duration};

/// The longest time that a reservation may be open, in nanoseconds: a day.
pub const MAX_RESERVATION: u64 = 86_400 * tollgate_core::SECOND;

/// The longest id of a reservation, in bytes.
pub const MAX_ID_BYTES: usize = 256;

/// How a policy's reservations end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Two, of which one comes back in the time that a reservation may be open.
    marker: Rule,
    open: usize,
    debt: u64,
}

impl Reserve {
    /// Reservations that lapse after `within` nanoseconds, of which `open` may be made within twice that time, and of which
    /// each may be settled at up to `debt` units more than it reserved.
    ///
    /// # Errors
    /// A message when they would be open for no time or for too long.
    pub fn new(within: u64, open: usize, debt: u64) -> Result<Self, String> {
        if within > MAX_RESERVATION {
            return Err(format!("a reservation is open for at most {}", show_duration(MAX_RESERVATION)));
        }
        let marker = marker(within).ok_or("a reservation is open for some time")?;
        Ok(Reserve { marker, open, debt })
    }

    /// How long a reservation may be open, in nanoseconds.
    pub const fn within(&self) -> u64 {
        self.marker.quota().window()
    }

    /// How many may be open at once.
    pub const fn open(&self) -> usize {
        self.open
    }

    /// How many units more than it reserved one may be settled at.
    pub const fn debt(&self) -> u64 {
        self.debt
    }

    pub(crate) const fn marker(&self) -> &Rule {
        &self.marker
    }
}

fn marker(within: u64) -> Option<Rule> {
    Quota::new(1, within, 2, 0).ok().map(Rule::gcra)
}

/// A reservation that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// What settles it.
    pub token: String,
    /// Units that it holds.
    pub units: u64,
    /// When it lapses, in nanoseconds since the Unix epoch by the clock of the count.
    pub ends: u64,
    /// Whether it had been made before, with the same id: then nothing was charged for it now.
    pub repeated: bool,
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is settled.
    Now {
        /// Units that were given back.
        given_back: u64,
        /// Units that were charged on top.
        added: u64,
        /// Units that were used beyond what may be charged on top.
        dropped: u64,
    },
    /// It had been settled before: nothing was done.
    Before,
    /// Its time is over: what it reserved stays charged.
    Lapsed,
    /// No reservation of this deployment has this token.
    Unknown,
    /// The count is out of reach. Trying again never counts twice.
    Unavailable,
}

/// What is done with a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Look,
    Take,
    Back,
    Forget,
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    policy: String,
    key: Fingerprint,
    marker: Fingerprint,
    units: u64,
    charged: u64,
    within: u64,
}

/// The bytes of a token's numbers and of its signature.
const NUMBERS: usize = 16 + 16 + 8 + 8 + 8;
const SIGNATURE: usize = 16;

fn signer(salt: &Salt) -> Keys {
    salt.keys_of("/reservation/")
}

impl Terms {
    fn token(&self, salt: &Salt) -> String {
        let mut bytes = self.policy.clone().into_bytes();
        bytes.extend(self.key.0.to_be_bytes());
        bytes.extend(self.marker.0.to_be_bytes());
        [self.units, self.charged, self.within].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
        let signature = signer(salt).of(&bytes);
        bytes.extend(signature.0.to_be_bytes());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn read(token: &str, salt: &Salt) -> Option<Self> {
        let digits = token.as_bytes();
        if !digits.len().is_multiple_of(2) || digits.len() > 2 * (64 + NUMBERS + SIGNATURE) {
            return None;
        }
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Vec<u8> = digits.chunks_exact(2).map(byte).collect::<Option<_>>()?;
        let (said, signature) = bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE)?)?;
        let expected = signer(salt).of(said).0.to_be_bytes();
        let differ = expected.iter().zip(signature).fold(0, |sum, (a, b)| sum | (a ^ b));
        let (name, numbers) = said.split_at_checked(said.len().checked_sub(NUMBERS)?)?;
        let wide = |at: usize| Some(u128::from_be_bytes(numbers.get(at..at + 16)?.try_into().ok()?));
        let number = |at: usize| Some(u64::from_be_bytes(numbers.get(at..at + 8)?.try_into().ok()?));
        let terms = Terms {
            policy: String::from_utf8(name.to_vec()).ok()?,
            key: Fingerprint(wide(0)?),
            marker: Fingerprint(wide(16)?),
            units: number(32)?,
            charged: number(40)?,
            within: number(48)?,
        };
        (differ == 0).then_some(terms)
    }
}

impl Ready {
    /// The charge that opens a reservation: once in its time for the same subject, units and id.
    pub(crate) fn opening(&self, key: Fingerprint, units: u64, id: &[u8]) -> Charge<'_> {
        let mut named = key.0.to_be_bytes().to_vec();
        named.extend(units.to_be_bytes());
        named.extend(id);
        let (marker, rule) = self.key(&named);
        Charge { policy: self.index, key: marker, rule, cost: 1, spare: 1 }
    }

    /// The marker of an opening charge as it stands.
    fn marker_at(&self, marker: Fingerprint) -> Charge<'_> {
        Charge { policy: self.index, key: marker, rule: &self.policy.rule, cost: 0, spare: 0 }
    }
}

impl<S: Store> Limiter<S> {
    /// Adds the reservation that was asked for. One that is open already is not made again, and not refused either.
    pub(crate) async fn with_reservation(
        &self,
        mut ruling: Ruling,
        places: &Places<'_, S>,
        demand: &Demand<'_>,
        answer: &Answer,
    ) -> Ruling {
        let Some(opening) = demand.charges().last() else { return ruling };
        let owner = places.policies.ready(opening.policy).and_then(|ready| ready.of).map(|(owner, _)| owner);
        let charged = demand.charges().iter().find(|charge| Some(charge.policy) == owner);
        let Some(charged) = charged else { return ruling };
        let (Some(Outcome { verdict, mut cell, .. }), mut now) =
            (answer.outcomes().last().copied(), answer.now)
        else {
            return ruling;
        };
        let mut made_before = matches!(verdict, Verdict::Refuse { .. });
        if !answer.is_admit() && verdict == Verdict::Unasked {
            // Another key was known to refuse; that says nothing of this one.
            let look = Demand::of(Charge { cost: 0, spare: 0, ..*opening });
            if let Ok(found) = places.settle(&look, now).await {
                now = found.now;
                cell = found.outcomes().first().map_or(0, |outcome| outcome.cell);
                made_before = cell > now;
            }
        }
        if !answer.is_admit() && !made_before {
            return ruling;
        }
        let within = opening.rule.quota().window();
        // One that was settled is marked twice.
        let settled = cell.saturating_sub(now) > within;
        let ends = cell.saturating_sub(if settled { within } else { 0 });
        let Some(policy) = places.policies.get(charged.policy) else { return ruling };
        let terms = Terms {
            policy: policy.name.clone(),
            key: charged.key,
            marker: opening.key,
            units: charged.cost,
            charged: ends.saturating_sub(within),
            within,
        };
        let (token, units, repeated) = (terms.token(self.salt()), charged.cost, !answer.is_admit());
        ruling.reservation = Some(Reservation { token, units, ends, repeated });
        if repeated {
            (ruling.reason, ruling.scope, ruling.barred) = (Reason::Admitted, None, None);
            // Nothing was charged now that could be given back, and what is left says nothing of it.
            ruling.parts.retain(|part| part.outcome.verdict.is_admit());
            ruling.parts.iter_mut().for_each(|part| part.settled = true);
        }
        ruling
    }

    /// Settles a reservation at what was used: less than it reserved is given back, more is charged on top, up to its policy's
    /// debt. The first settlement counts; what is never settled stays charged. Never more than what was reserved is given back, in
    /// whatever order and however often settlements come.
    ///
    /// It has steps where the count is elsewhere. A future that is dropped between them, or a store that is lost between them, leaves
    /// charged what was reserved; so let it run to its end, in a task of its own if its caller may leave.
    pub async fn settle(&self, token: &str, used: u64) -> Settled {
        let Some(terms) = Terms::read(token, self.salt()) else { return Settled::Unknown };
        let ends = terms.charged.saturating_add(terms.within);
        // First a look, for a marker that is not open must not be written: it would read as a reservation that is.
        match self.mark(&terms, Step::Look).await {
            Err(settled) => return settled,
            Ok((now, cell)) if cell == ends.saturating_add(terms.within) && now < ends => {
                return Settled::Before;
            }
            Ok((now, cell)) if cell != ends || now >= ends => return Settled::Lapsed,
            Ok(_) => {}
        }
        match self.mark(&terms, Step::Take).await {
            Err(settled) => return settled,
            // It ended just now.
            Ok((_, cell)) if cell != ends.saturating_add(terms.within) => {
                let _as_new = self.mark(&terms, Step::Forget).await;
                return Settled::Lapsed;
            }
            Ok(_) => {}
        }
        self.settle_at(&terms, used).await
    }

    /// One step with a reservation's marker: the time, and where it stands after it.
    async fn mark(&self, terms: &Terms, step: Step) -> Result<(u64, u64), Settled> {
        // Under the time of the token, whatever the policy's is by now.
        let rule = marker(terms.within).ok_or(Settled::Unknown)?;
        loop {
            let active = self.load();
            let open =
                active.policies.named(&terms.policy).and_then(|r| active.policies.beside(r, Beside::Open));
            let open = open.ok_or(Settled::Unknown)?;
            let cost = u64::from(step != Step::Look);
            let charge = Charge { rule: &rule, cost, ..open.marker_at(terms.marker) };
            let demand = match step {
                Step::Look | Step::Take => Demand::of(charge).fleeting(true),
                Step::Back => Demand::of(charge).to(Intent::GiveBack { charged: Charge::LATELY }),
                Step::Forget => Demand::of(charge).to(Intent::Forget),
            };
            match self.places(&active).settle(&demand, self.clock().now()).await {
                Err(Unanswered::Moved) => std::thread::yield_now(),
                Err(_) => return Err(Settled::Unavailable),
                Ok(answer) => {
                    let outcome = answer.outcomes().first().ok_or(Settled::Unavailable)?;
                    return match outcome.verdict {
                        Verdict::Admit { .. } => Ok((answer.now, outcome.cell)),
                        Verdict::Refuse { .. } => Err(Settled::Before),
                        _ => Err(Settled::Unavailable),
                    };
                }
            }
        }
    }

    async fn settle_at(&self, terms: &Terms, used: u64) -> Settled {
        let policies = self.policies();
        let Some(ready) = policies.named(&terms.policy) else { return Settled::Unknown };
        let given_back = terms.units.saturating_sub(used);
        let over = used.saturating_sub(terms.units);
        let added = over.min(ready.policy.reserve.map_or(0, |reserve| reserve.debt()));
        let target =
            Target { policies: &policies, ready, key: terms.key, rule: ready.rule_number(terms.key) };
        let adjust = if given_back > 0 {
            Adjust::Back(given_back, credited(ready.rule(target.rule), terms.charged, terms.within))
        } else {
            Adjust::Owe(added)
        };
        if self.settle_one(&target, adjust).await.is_err() {
            // It is not settled, and may be once more.
            let _open_again = self.mark(terms, Step::Back).await;
            return Settled::Unavailable;
        }
        Settled::Now { given_back, added, dropped: over.saturating_sub(added) }
    }
}
