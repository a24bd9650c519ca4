//! What follows a refusal: it is a strike against its subject, and too many of them ban it.

use tollgate_core::{Fingerprint, Verdict};
use tollgate_store::{Demand, Intent, Store, Unanswered};

use crate::beside::{Beside, MILLISECOND, level_key};
use crate::places::Places;
use crate::policy::Policy;
use crate::ready::Ready;
use crate::{Ban, Limiter, Reason, Ruling};

impl<S: Store> Places<'_, S> {
    /// Counts the refusals of a ruling against their subjects. When that makes a ban, or there is one already, the ruling says so. What
    /// cannot be counted is not held against anybody.
    pub(crate) async fn refused(&self, ruling: &mut Ruling, now: u64) {
        if ruling.fallback.is_some() || ruling.barred.is_some() {
            return;
        }
        let mut longest: Option<Banned> = None;
        for part in ruling.parts.iter().filter(|part| matches!(part.outcome.verdict, Verdict::Refuse { .. }))
        {
            let Some(ready) = self.policies.ready(part.policy) else { continue };
            let (Some(ban), Some(bans)) = (&ready.policy.ban, self.policies.beside(ready, Beside::Bans))
            else {
                continue;
            };
            let standing = if ruling.bars_unasked { self.left_of(bans, part.key, now).await } else { 0 };
            let banned = match standing {
                0 => self.strike(ready, bans, ban, part.key, now).await,
                ms => Some(Banned { ms, policy: part.policy, begins: false }),
            };
            longest = longest.max(banned);
        }
        if let Some(Banned { ms, policy, begins }) = longest {
            (ruling.reason, ruling.scope) = (Reason::Banned, Some(policy));
            (ruling.barred, ruling.ban_began) = (Some(ms.saturating_mul(MILLISECOND)), begins);
        }
    }

    /// For how many milliseconds a key is still barred.
    async fn left_of(&self, bars: &Ready, key: Fingerprint, now: u64) -> u64 {
        let asked = self.settle(&bars.looking(key), now).await;
        let left = asked.ok().and_then(|answer| answer.outcomes().first().map(|outcome| outcome.reset_after));
        left.unwrap_or(0).div_ceil(MILLISECOND)
    }

    /// One more refusal. The ban that follows, if one does.
    async fn strike(
        &self,
        ready: &Ready,
        bans: &Ready,
        ban: &Ban,
        key: Fingerprint,
        now: u64,
    ) -> Option<Banned> {
        let strikes = self.policies.beside(ready, Beside::Strikes)?;
        let one = |ready: &Ready, key, rule| {
            let (policy, key) = (ready.index, ready.own_key(key));
            tollgate_core::Charge { policy, key, rule, cost: 1, spare: 0 }
        };
        let strike = one(strikes, key, ban.strikes());
        let counted = self.settle(&Demand::of(strike), now).await.ok()?;
        if counted
            .outcomes()
            .first()
            .is_none_or(|outcome| outcome.verdict.is_admit() && outcome.remaining > 0)
        {
            return None;
        }
        let level = one(bans, level_key(key), ban.level());
        let look = Demand::of(tollgate_core::Charge { cost: 0, ..level });
        let level_now = self.settle(&look, now).await.ok()?;
        let level_now = level_now.outcomes().first()?;
        let ms = ban.ms(level_now.limit.saturating_sub(level_now.remaining));
        // Of several that come to this at once, one begins the ban, and counts it.
        let begins = self.settle(&bans.barring(key, 0, ms), now).await.ok()?.is_admit();
        if begins {
            let _one_more = self.settle(&Demand::of(level), now).await;
            let _begun_anew = self.settle(&Demand::of(strike).to(Intent::Forget), now).await;
        }
        let ms = if begins { ms } else { self.left_of(bans, key, now).await };
        (ms > 0).then_some(Banned { ms, policy: ready.index, begins })
    }

    /// Tells those that are not drawn until when those that are would be refused: when one was, or has taken what there was.
    pub(crate) async fn drawn(&self, ruling: &Ruling, now: u64) {
        for part in &ruling.parts {
            let Some(ready) =
                self.policies.ready(part.policy).filter(|ready| ready.policy.remembers_samples())
            else {
                continue;
            };
            let (Some(holds), false) =
                (self.policies.beside(ready, Beside::Holds), part.given_back || part.cost == 0)
            else {
                continue;
            };
            let wait = match part.outcome.verdict {
                Verdict::Refuse { retry_after } => retry_after,
                // For a cell the next draw's time can be told; of other shapes the next draw is told.
                Verdict::Admit { .. } => part.next(ready.rule(part.rule), ruling.now),
                _ => 0,
            };
            if wait >= MILLISECOND {
                let _not_told = self.settle(&holds.barring(part.key, 0, wait / MILLISECOND), now).await;
            }
        }
    }
}

/// A ban, by how long it has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Banned {
    ms: u64,
    policy: u16,
    begins: bool,
}

impl<S: Store> Limiter<S> {
    /// Holds the subjects of a ruling for so many nanoseconds, as an origin asks for: those of policies that obey, each for as
    /// long as it obeys at most. Others' requests go on. Gives whether anybody is held.
    pub async fn obey(&self, ruling: &Ruling, wait: u64) -> bool {
        let mut held = false;
        for (policy, part) in ruling.parts().filter(|(policy, part)| policy.obey > 0 && !part.given_back) {
            let ms = wait.min(policy.obey).div_ceil(MILLISECOND);
            let left = self.with_beside(policy, Beside::Holds, |holds| holds.looking(part.key)).await;
            let left = left
                .ok()
                .flatten()
                .and_then(|answer| answer.outcomes().first().map(|outcome| outcome.reset_after));
            let left = left.unwrap_or(0).div_ceil(MILLISECOND);
            let longer = self.with_beside(policy, Beside::Holds, |holds| holds.barring(part.key, left, ms));
            held |= ms <= left || longer.await.is_ok();
        }
        held
    }

    /// Lifts the ban of a subject, and forgets that there ever was one. `None` without such a policy or without bans in it,
    /// else whether it was banned.
    ///
    /// # Errors
    /// [`Unanswered::Unavailable`] when the count is out of reach.
    pub async fn unban(&self, policy: &str, subject: &str) -> Result<Option<bool>, Unanswered> {
        let policies = self.policies();
        let Some(ready) = policies.named(policy).filter(|ready| ready.policy.ban.is_some()) else {
            return Ok(None);
        };
        let (key, _) = ready.key(subject.as_bytes());
        self.lift(&ready.policy, key).await.map(Some)
    }

    /// Forgets strikes, bans and holds of a key, and gives whether it was barred.
    pub(crate) async fn lift(&self, policy: &Policy, key: Fingerprint) -> Result<bool, Unanswered> {
        let mut was = false;
        for (kind, key) in [
            (Beside::Strikes, key),
            (Beside::Bans, key),
            (Beside::Bans, level_key(key)),
            (Beside::Holds, key),
        ] {
            match self.with_beside(policy, kind, |ready| ready.forgetting(key)).await {
                Ok(answer) => {
                    was |= kind != Beside::Strikes && answer.is_some_and(|answer| answer.admitted > 0);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(was)
    }

    /// Asks what is counted beside a policy in force; `None` when there is nothing.
    async fn with_beside(
        &self,
        policy: &Policy,
        kind: Beside,
        demand: impl for<'r> Fn(&'r Ready) -> Demand<'r>,
    ) -> Result<Option<tollgate_store::Answer>, Unanswered> {
        loop {
            let active = self.load();
            let ready =
                active.policies.named(&policy.name).and_then(|ready| active.policies.beside(ready, kind));
            let Some(ready) = ready else { return Ok(None) };
            match self.places(&active).settle(&demand(ready), self.clock().now()).await {
                Err(Unanswered::Moved) => std::thread::yield_now(),
                answer => return answer.map(Some),
            }
        }
    }
}
