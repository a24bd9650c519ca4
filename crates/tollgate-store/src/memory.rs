//! The store in this process: one table per policy.

use std::future::{Future, Ready, ready};
use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Fingerprint, Outcome, Verdict};

use crate::bucket::{Locked, Moved};
use crate::table::{Kind, Place, Table, tag};
use crate::{Answer, Demand, MAX_CHARGES, Store, Unanswered};

/// Counts in this process. Charge [`policy`](Charge::policy) `n` is counted in table `n`.
#[derive(Clone, Debug)]
pub struct Memory {
    tables: Vec<Arc<Table>>,
}

impl Memory {
    /// A store over these tables.
    pub fn new<T: Into<Arc<Table>>>(tables: impl IntoIterator<Item = T>) -> Self {
        Memory { tables: tables.into_iter().map(Into::into).collect() }
    }

    /// The table of a policy.
    pub fn table(&self, policy: u16) -> Option<&Arc<Table>> {
        self.tables.get(usize::from(policy))
    }

    /// Decides one charge. A refusal, and a look at cost 0, is read without a lock and writes nothing.
    ///
    /// # Errors
    /// [`Moved`] when the policy's states are in another store by now: see [`Table::carry`].
    pub fn check(&self, charge: &Charge<'_>, now: u64) -> Result<Outcome, Moved> {
        let Some(table) = self.table(charge.policy) else { return Ok(no_table(charge)) };
        let pair = table.pair(charge.key);
        if let Some(outcome) = look(table, pair.0, charge, now) {
            return Ok(outcome);
        }
        let tag = tag(charge.key);
        let main = table.bucket(pair.0);
        let _main_lock = main.lock()?;
        if let Some(slot) = main.find(tag) {
            return Ok(charge.decide(&mut main.state(slot), now));
        }
        let _overflow_lock = table.lock(pair.1)?;
        let place = table.find(pair, tag).unwrap_or_else(|| table.vacancy(pair, now, &[]));
        let seat = Seat { table, place, charge: *charge };
        let verdict = seat.judge(now);
        if verdict.is_admit() {
            seat.apply(1, now);
        }
        Ok(seat.outcome(verdict, now))
    }

    /// Decides a demand: one critical section over all of its buckets, locked in one order.
    ///
    /// # Errors
    /// [`Moved`], as for [`Memory::check`]; nothing is charged then.
    pub fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Moved> {
        if let ([charge], 1) = (demand.charges(), demand.asked()) {
            let outcome = self.check(charge, now)?;
            let mut answer = Answer::new(now, u64::from(outcome.verdict.is_admit()));
            answer.push(outcome);
            return Ok(answer);
        }
        let _locks = self.lock_all(demand)?;
        let Some(seats) = self.seat(demand, now) else { return Ok(refuse_unknown(demand, now)) };
        let verdicts: ArrayVec<Verdict, MAX_CHARGES> = seats.iter().map(|seat| seat.judge(now)).collect();
        let admitted = if verdicts.iter().all(Verdict::is_admit) {
            seats.iter().fold(demand.asked(), |most, seat| seat.fit(now, most))
        } else {
            0
        };
        if admitted > 0 {
            // A new key starts from the shared state as it was judged: before others of this demand charge that.
            let fresh = |seat: &&Seat<'_>| matches!(seat.place.kind, Kind::Free(..));
            seats.iter().filter(fresh).for_each(|seat| seat.apply(admitted, now));
            seats.iter().filter(|seat| !fresh(seat)).for_each(|seat| seat.apply(admitted, now));
        }
        let mut answer = Answer::new(now, admitted);
        seats.iter().zip(verdicts).for_each(|(seat, verdict)| answer.push(seat.outcome(verdict, now)));
        Ok(answer)
    }

    /// A place for every charge of a demand whose buckets are locked, no two the same: first the keys that have one.
    fn seat<'t>(&'t self, demand: &Demand<'t>, now: u64) -> Option<ArrayVec<Seat<'t>, MAX_CHARGES>> {
        let mut taken: ArrayVec<Place<'t>, MAX_CHARGES> = ArrayVec::new();
        let mut seats: ArrayVec<(Seat<'t>, bool), MAX_CHARGES> = ArrayVec::new();
        for charge in demand.charges() {
            let table: &'t Table = self.table(charge.policy)?;
            let pair = table.pair(charge.key);
            let own = table.find(pair, tag(charge.key));
            taken.extend(own);
            let place = own.unwrap_or_else(|| table.nowhere(pair));
            seats.push((Seat { table, place, charge: *charge }, own.is_some()));
        }
        for (seat, _) in seats.iter_mut().filter(|(_, own)| !own) {
            seat.place = seat.table.vacancy(seat.table.pair(seat.charge.key), now, &taken);
            taken.push(seat.place);
        }
        Some(seats.into_iter().map(|(seat, _)| seat).collect())
    }

    /// Gives back what a charge took when it was admitted at `charged`: see [`Charge::refund`]. A key that is counted in a
    /// state that it shares gets nothing back, for what is there may be others'.
    ///
    /// # Errors
    /// [`Moved`], as for [`Memory::check`].
    pub fn refund(&self, charge: &Charge<'_>, charged: u64, now: u64) -> Result<(), Moved> {
        let Some(table) = self.table(charge.policy) else { return Ok(()) };
        let pair = table.pair(charge.key);
        let _locks = (table.lock(pair.0)?, table.lock(pair.1)?);
        if let Some(Place { bucket, kind: Kind::Own(slot), .. }) = table.find(pair, tag(charge.key)) {
            charge.refund(&mut bucket.state(slot), charged, now);
        }
        Ok(())
    }

    /// Forgets one key, so that it is as new. Gives whether there was anything to forget.
    ///
    /// # Errors
    /// [`Moved`], as for [`Memory::check`].
    pub fn forget(&self, policy: u16, key: Fingerprint) -> Result<bool, Moved> {
        self.table(policy).map_or(Ok(false), |table| table.forget(key))
    }

    /// Locks every bucket that the demand may touch, in one order for everybody: by table, then by number. (Not by policy:
    /// a table keeps its identity when a reload gives its policy another number.)
    fn lock_all(&self, demand: &Demand<'_>) -> Result<ArrayVec<Locked<'_>, { 2 * MAX_CHARGES }>, Moved> {
        let mut buckets: ArrayVec<(u64, usize, u16), { 2 * MAX_CHARGES }> = ArrayVec::new();
        for charge in demand.charges() {
            if let Some(table) = self.table(charge.policy) {
                let (main, overflow) = table.pair(charge.key);
                buckets.extend([main, overflow].map(|number| (table.id(), number, charge.policy)));
            }
        }
        buckets.sort_unstable();
        let mut locks = ArrayVec::new();
        let mut last = None;
        for (id, number, policy) in buckets {
            if last.replace((id, number)) != Some((id, number))
                && let Some(table) = self.table(policy)
            {
                locks.push(table.lock(number)?);
            }
        }
        Ok(locks)
    }
}

impl Store for Memory {
    fn decide(
        &self,
        demand: &Demand<'_>,
        now: u64,
    ) -> impl Future<Output = Result<Answer, Unanswered>> + Send {
        let answer: Ready<Result<Answer, Unanswered>> =
            ready(Memory::decide(self, demand, now).map_err(Into::into));
        answer
    }
}

/// A charge and where it is counted, its buckets being locked.
#[derive(Clone, Copy)]
struct Seat<'t> {
    table: &'t Table,
    place: Place<'t>,
    charge: Charge<'t>,
}

impl Seat<'_> {
    fn judge(&self, now: u64) -> Verdict {
        match self.place.kind {
            Kind::Own(slot) => self.charge.judge(&self.place.bucket.state(slot), now),
            Kind::Free(..) | Kind::Shared => self.charge.judge(&self.fresh(), now),
            Kind::None(_) if self.charge.cost == 0 => Verdict::Admit { wait: 0 },
            Kind::None(_) if self.charge.cost > self.charge.rule.capacity() => Verdict::Never,
            Kind::None(until) => {
                self.table.count(self.place.kind);
                Verdict::Full { retry_after: until.saturating_sub(now).max(1) }
            }
        }
    }

    fn fit(&self, now: u64, most: u64) -> u64 {
        match self.place.kind {
            Kind::Own(slot) => self.charge.fit(&self.place.bucket.state(slot), now, most),
            _ => self.charge.fit(&self.fresh(), now, most),
        }
    }

    fn apply(&self, times: u64, now: u64) {
        let charge = Charge { cost: self.charge.cost.saturating_mul(times), ..self.charge };
        if charge.cost == 0 {
            return;
        }
        self.table.count(self.place.kind);
        match self.place.kind {
            Kind::Own(slot) => charge.apply(&mut self.place.bucket.state(slot), now),
            Kind::Free(slot, _) => {
                let mut state = self.place.bucket.state(slot);
                state.copy_from(&self.fresh());
                self.place.bucket.set_tag(slot, tag(charge.key));
                charge.apply(&mut state, now);
            }
            Kind::Shared => charge.apply(&mut self.place.bucket.shared(), now),
            Kind::None(_) => {}
        }
    }

    fn outcome(&self, verdict: Verdict, now: u64) -> Outcome {
        match self.place.kind {
            Kind::Own(slot) => self.charge.outcome(verdict, &self.place.bucket.state(slot), now),
            // Taken just now, or still another key's.
            Kind::Free(slot, _) if self.place.bucket.tag(slot) == tag(self.charge.key) => {
                self.charge.outcome(verdict, &self.place.bucket.state(slot), now)
            }
            _ => self.charge.outcome(verdict, &self.fresh(), now),
        }
    }

    fn fresh(&self) -> crate::bucket::State<'_> {
        self.table.fresh(self.table.pair(self.charge.key))
    }
}

/// The outcome when it can be read from the main bucket and changes nothing.
fn look(table: &Table, number: usize, charge: &Charge<'_>, now: u64) -> Option<Outcome> {
    let bucket = table.bucket(number);
    let seen = bucket.read(|| {
        let slot = bucket.find(tag(charge.key))?;
        let state = bucket.state(slot);
        let verdict = charge.judge(&state, now);
        (charge.cost == 0 || !verdict.is_admit()).then(|| charge.outcome(verdict, &state, now))
    });
    seen.flatten()
}

/// A charge of a policy that the store was not built for: nobody counts it, so nobody admits it.
fn no_table(charge: &Charge<'_>) -> Outcome {
    let limit = charge.rule.capacity();
    Outcome { verdict: Verdict::Full { retry_after: 1 }, limit, remaining: 0, reset_after: 0, cell: 0 }
}

fn refuse_unknown(demand: &Demand<'_>, now: u64) -> Answer {
    let mut answer = Answer::new(now, 0);
    demand.charges().iter().for_each(|charge| answer.push(no_table(charge)));
    answer
}
