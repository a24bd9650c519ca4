//! What follows a refusal: it is a strike against its subject, and too many of them ban it.

use tollgate_core::{Fingerprint, Verdict};
use tollgate_store::{Demand, Intent, Store, Unanswered};

use crate::beside::{Beside, MILLISECOND, level_key};
use crate::places::Places;
use crate::policy::Policy;
use crate::ready::Ready;
use crate::{Ban, Limiter, Part, Reason, Ruling};

impl<S: Store> Places<'_, S> {
    /// Counts the refusals of a ruling against their subjects. When that makes a ban, the ruling says so. What cannot be counted
    /// is not held against anybody.
    pub(crate) async fn refused(&self, ruling: &mut Ruling, now: u64) {
        if ruling.fallback.is_some() || ruling.barred.is_some() {
            return;
        }
        let mut longest = None;
        for part in ruling.parts.iter().filter(|part| matches!(part.outcome.verdict, Verdict::Refuse { .. }))
        {
            let Some(ready) = self.policies.ready(part.policy) else { continue };
            self.remember_sample(ready, part, now).await;
            let Some(ban) = &ready.policy.ban else { continue };
            if let Some(ms) = self.strike(ready, ban, part.key, now).await {
                longest = longest.max(Some((ms, part.policy)));
            }
        }
        if let Some((ms, policy)) = longest {
            (ruling.reason, ruling.scope) = (Reason::Banned, Some(policy));
            (ruling.barred, ruling.ban_began) = (Some(ms.saturating_mul(MILLISECOND)), true);
        }
    }

    /// One more refusal. For how many milliseconds it bans, if it does.
    async fn strike(&self, ready: &Ready, ban: &Ban, key: Fingerprint, now: u64) -> Option<u64> {
        let strikes = self.policies.beside(ready, Beside::Strikes)?;
        let bans = self.policies.beside(ready, Beside::Bans)?;
        let one = |ready: &Ready, key, rule| tollgate_core::Charge {
            policy: ready.index,
            key: ready.own_key(key),
            rule,
            cost: 1,
            spare: 0,
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
        let level = self.settle(&Demand::of(level), now).await.ok()?;
        let level = level.outcomes().first()?;
        let remembered = level.limit.saturating_sub(level.remaining).saturating_sub(1);
        let ms = ban.ms(remembered);
        let barred = self.settle(&Demand::of(bans.bar(key, ms)), now).await.ok()?;
        let _begun_anew = self.settle(&Demand::of(strike).to(Intent::Forget), now).await;
        if bans.policy.placement.is_shared() {
            // So that this instance remembers it, and need not ask.
            let _known = self.settle(&Demand::of(bans.barred(key)), now).await;
        }
        // Somebody else may have banned it just now.
        let left = barred.outcomes().first().map(|outcome| outcome.reset_after.div_ceil(MILLISECOND));
        left.filter(|left| *left > 0)
    }

    /// Tells those that are not drawn until when those that are would be refused.
    async fn remember_sample(&self, ready: &Ready, part: &Part, now: u64) {
        let (Verdict::Refuse { retry_after }, true) =
            (part.outcome.verdict, ready.policy.remembers_samples())
        else {
            return;
        };
        if let Some(holds) = self.policies.beside(ready, Beside::Holds) {
            let bar = holds.bar(part.key, retry_after / MILLISECOND);
            let _not_told = self.settle(&Demand::of(bar), now).await;
        }
    }
}

impl<S: Store> Limiter<S> {
    /// Holds the subjects of a ruling for so many nanoseconds, as an origin asks for: those of policies that obey, each for as
    /// long as it obeys at most. Others' requests go on. Gives whether anybody is held.
    pub async fn obey(&self, ruling: &Ruling, wait: u64) -> bool {
        let mut held = false;
        for (policy, part) in ruling.parts().filter(|(policy, part)| policy.obey > 0 && !part.given_back) {
            let ms = wait.min(policy.obey).div_ceil(MILLISECOND);
            held |= self
                .with_beside(policy, Beside::Holds, |holds| Demand::of(holds.bar(part.key, ms)))
                .await
                .is_ok();
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
