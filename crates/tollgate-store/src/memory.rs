//! The store in this process: one table per policy.

use std::future::{Future, Ready, ready};
use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Outcome, Verdict, Words};

use crate::bucket::{Locked, Moved};
use crate::table::{Kind, Place, Table, tag};
use crate::{Answer, Demand, Intent, MAX_CHARGES, Store, Unanswered};

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
        if let ([charge], Intent::Take { times: 1 }) = (demand.charges(), demand.intent()) {
            let outcome = self.check(charge, now)?;
            let mut answer = Answer::new(now, u64::from(outcome.verdict.is_admit()));
            answer.push(outcome);
            return Ok(answer);
        }
        let _locks = self.lock_all(demand)?;
        match demand.intent() {
            Intent::Take { times } => Ok(self.take(demand, times, now)),
            Intent::Owe => Ok(self.owe(demand, now)),
            Intent::GiveBack { .. } | Intent::Forget => Ok(self.settle(demand, now)),
        }
    }

    fn take(&self, demand: &Demand<'_>, times: u64, now: u64) -> Answer {
        let Some(seats) = self.seat(demand, now) else { return refuse_unknown(demand, now) };
        let mut verdicts: ArrayVec<Verdict, MAX_CHARGES> = seats.iter().map(|seat| seat.judge(now)).collect();
        let admitted = if verdicts.iter().all(Verdict::is_admit) {
            seats.iter().fold(times, |most, seat| seat.fit(now, most))
        } else {
            0
        };
        if admitted > 0 {
            charge_all(&seats, |seat| seat.apply(admitted, now));
        }
        if admitted > 0 && admitted < times {
            seats.iter().zip(&mut verdicts).for_each(|(seat, verdict)| *verdict = seat.again(now));
        }
        let mut answer = Answer::new(now, admitted);
        seats.iter().zip(verdicts).for_each(|(seat, verdict)| answer.push(seat.outcome(verdict, now)));
        answer
    }

    fn owe(&self, demand: &Demand<'_>, now: u64) -> Answer {
        let Some(seats) = self.seat(demand, now) else { return refuse_unknown(demand, now) };
        charge_all(&seats, |seat| seat.owe(now));
        let mut answer = Answer::new(now, 1);
        let verdict = Verdict::Admit { wait: 0 };
        seats.iter().for_each(|seat| answer.push(seat.outcome(verdict, now)));
        answer
    }

    /// Gives back to, or forgets, the keys that have a state of their own. What keys share stays as it is, for it may be others'.
    fn settle(&self, demand: &Demand<'_>, now: u64) -> Answer {
        let mut answer = Answer::new(now, 0);
        let mut known = 0;
        for charge in demand.charges() {
            let Some(table) = self.table(charge.policy) else { return refuse_unknown(demand, now) };
            let pair = table.pair(charge.key);
            let own = table.find(pair, tag(charge.key));
            let seat = Seat { table, place: own.unwrap_or_else(|| table.nowhere(pair)), charge: *charge };
            if own.is_some() {
                known += 1;
                match demand.intent() {
                    Intent::GiveBack { charged } => seat.give_back(charged, now),
                    _ => seat.forget(),
                }
            }
            answer.push(seat.outcome(Verdict::Admit { wait: 0 }, now));
        }
        answer.admitted = if demand.intent() == Intent::Forget { known } else { 1 };
        answer
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
            Kind::None(_) if self.charge.only_looks() => Verdict::Admit { wait: 0 },
            Kind::None(_) if self.charge.is_never() => Verdict::Never,
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
        self.write(charge.cost, |state| charge.apply(state, now));
    }

    fn owe(&self, now: u64) {
        self.write(self.charge.cost, |state| self.charge.owe(state, now));
    }

    /// Writes into the state, which a new key is given first.
    fn write(&self, cost: u64, write: impl FnOnce(&mut crate::bucket::State<'_>)) {
        if cost == 0 {
            return;
        }
        self.table.count(self.place.kind);
        match self.place.kind {
            Kind::Own(slot) => write(&mut self.place.bucket.state(slot)),
            Kind::Free(slot, _) => {
                let mut state = self.place.bucket.state(slot);
                state.copy_from(&self.fresh());
                self.place.bucket.set_tag(slot, tag(self.charge.key));
                write(&mut state);
            }
            Kind::Shared => write(&mut self.place.bucket.shared()),
            Kind::None(_) => {}
        }
    }

    fn give_back(&self, charged: u64, now: u64) {
        if let Kind::Own(slot) = self.place.kind {
            self.charge.refund(&mut self.place.bucket.state(slot), charged, now);
        }
    }

    fn forget(&self) {
        if let Kind::Own(slot) = self.place.kind {
            self.place.bucket.set_tag(slot, 0);
            self.place.bucket.state(slot).set(0, 0);
        }
    }

    /// The verdict on the same charge once more, after it was admitted as often as it fits.
    fn again(&self, now: u64) -> Verdict {
        match self.place.kind {
            Kind::Own(slot) => self.charge.judge(&self.place.bucket.state(slot), now),
            Kind::Free(slot, _) if self.place.bucket.tag(slot) == tag(self.charge.key) => {
                self.charge.judge(&self.place.bucket.state(slot), now)
            }
            _ => self.judge(now),
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

/// Charges every seat. A new key starts from the shared state as it was judged: before others of this demand charge that.
fn charge_all(seats: &[Seat<'_>], charge: impl Fn(&Seat<'_>)) {
    let fresh = |seat: &&Seat<'_>| matches!(seat.place.kind, Kind::Free(..));
    seats.iter().filter(fresh).for_each(&charge);
    seats.iter().filter(|seat| !fresh(seat)).for_each(&charge);
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
