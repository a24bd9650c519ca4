//! Usage outlives a change of the rule.

use crate::charge::Charge;
use crate::counter::Counter;
use crate::log::Log;
use crate::{Fingerprint, Rule, Shape, Words};

/// Writes into `to` (all zero) what the state `from` under the rule `old` is worth under the rule `new` at `now`: the
/// units that count as used still do, at most the new capacity, and the new rule applies to them at once. So 5 used of
/// `5/1h`, raised to `10/1h`, leaves 5 to spend now.
pub fn carry<F, T>(key: Fingerprint, old: &Rule, from: &F, new: &Rule, to: &mut T, now: u64)
where
    F: Words + ?Sized,
    T: Words + ?Sized,
{
    let before = Charge { policy: 0, key, rule: old, cost: 1, spare: 0 };
    let after = Charge { policy: 0, key, rule: new, cost: 1, spare: 0 };
    let same_window = old.quota().window() == new.quota().window() && before.phase() == after.phase();
    match (old.shape(), new.shape()) {
        (Shape::Cell, Shape::Cell) if old.is_stated() && new.is_stated() => to.set(0, from.get(0)),
        (Shape::Cell, Shape::Cell) => {
            let (was, is) = (old.line(before.phase()), new.line(after.phase()));
            let debt = was.debt(from.get(0), now);
            let scaled = u128::from(debt).saturating_mul(u128::from(is.interval.get()));
            let debt = scaled.div_ceil(u128::from(was.interval.get()));
            to.set(0, is.indebted(u64::try_from(debt).unwrap_or(u64::MAX), now));
        }
        (Shape::Counter, Shape::Counter) if same_window => {
            let quota = new.quota();
            Counter::load(quota.limit(), quota.window_nz(), after.phase(), from, now).save(to);
        }
        (Shape::Log, Shape::Log) => {
            let log = Log::load(u64::MAX, old.quota().window(), from, now);
            let live = log.live().count();
            let room = usize::try_from(new.quota().limit()).unwrap_or(usize::MAX);
            for time in log.live().skip(live.saturating_sub(room)) {
                after.apply(to, time);
            }
        }
        _ => {
            let outcome = before.outcome(before.judge(from, now), from, now);
            let used = outcome.limit.saturating_sub(outcome.remaining).min(new.capacity());
            Charge { cost: used, ..after }.apply(to, now);
        }
    }
}
