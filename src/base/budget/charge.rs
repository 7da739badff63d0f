//! What one request is charged for: bytes of the server's budget, held as long as the data lives.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;

use super::{
    account::{Account, Asked},
    server::{Kind, Reason},
};
use crate::error::Result;

/// What a request is charged at least: its context, its names, its small tensors.
const REQUEST_BYTES: usize = 4 << 10;
/// Data up to this is in `REQUEST_BYTES`: counting it would cost small requests more than it says.
const MAX_UNCOUNTED_BYTES: usize = 4 << 10;

/// What one request holds of the budget. Clones are the same charge. The default is uncounted: for
/// requests that the server itself makes, like warm-ups.
#[derive(Clone, Debug, Default)]
pub struct Charge(Option<Arc<Charged>>);

#[derive(Debug)]
struct Charged {
    account: Arc<Account>,
    /// Bytes until the request's end, by kind.
    kept: [AtomicUsize; Kind::ALL.len()],
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.account.give_back(Kind::Other, REQUEST_BYTES);
        for kind in Kind::ALL {
            let bytes = *self.kept[kind as usize].get_mut();
            if bytes != 0 {
                self.account.give_back(kind, bytes);
            }
        }
    }
}

/// Is data of so many bytes counted, where anything is?
pub fn is_worth_counting(bytes: usize) -> bool {
    MAX_UNCOUNTED_BYTES < bytes
}

impl Charge {
    /// Begins a request; RESOURCE_EXHAUSTED if there is no room for any.
    pub fn open(account: &Arc<Account>) -> Result<Charge> {
        account.take(Kind::Other, REQUEST_BYTES)?;
        let (account, kept) = (account.clone(), Default::default());
        Ok(Charge(Some(Arc::new(Charged { account, kept }))))
    }

    /// Does it count anything?
    pub fn counts_anything(&self) -> bool {
        self.0.is_some()
    }

    /// Takes `bytes` until the request's end; RESOURCE_EXHAUSTED if so many are not left.
    pub fn add(&self, kind: Kind, bytes: usize) -> Result<()> {
        let Some(charged) = &self.0 else { return Ok(()) };
        if MAX_UNCOUNTED_BYTES < bytes {
            charged.account.take(kind, bytes)?;
            charged.kept[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts `bytes` that exist already until the request's end, even beyond the cap.
    pub fn add_beyond(&self, kind: Kind, bytes: usize) {
        let Some(charged) = &self.0 else { return };
        if MAX_UNCOUNTED_BYTES < bytes {
            charged.account.take_beyond(kind, bytes);
            charged.kept[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// RESOURCE_EXHAUSTED if with inputs that were counted there is more than there may be.
    pub fn check_inputs(&self) -> Result<()> {
        self.0.as_deref().map_or(Ok(()), |it| it.account.check(Asked::Inputs))
    }

    /// The same with an answer that was counted.
    pub fn check_answer(&self) -> Result<()> {
        self.0.as_deref().map_or(Ok(()), |it| it.account.check(Asked::Answer))
    }

    /// The request is refused for this.
    pub fn count_refusal(&self, reason: Reason) {
        if let Some(charged) = &self.0 {
            charged.account.budget().count_refusal(reason);
        }
    }

    /// Is the server's memory short, as `ByteBudget::is_short` says?
    pub fn is_memory_short(&self) -> bool {
        self.0.as_deref().is_some_and(|it| it.account.budget().is_short())
    }

    /// Nothing yet: bytes that are to come, as `Hold::grow` counts them.
    pub fn hold(&self, kind: Kind) -> Hold {
        Hold { charge: self.clone(), kind, bytes: 0, counted: 0 }
    }

    /// `data` that exists already, counted until its last clone and slice is dropped, even beyond
    /// the cap.
    pub fn over(&self, kind: Kind, data: Bytes) -> Bytes {
        if self.0.is_none() || data.len() <= MAX_UNCOUNTED_BYTES {
            return data;
        }
        let mut hold = self.hold(kind);
        hold.grow_beyond(data.len());
        hold.over(data)
    }

    /// `data` of several requests, counted until its last clone and slice is dropped: in what the
    /// server holds, but in the share of no connection.
    pub fn over_for_all(&self, kind: Kind, data: Bytes) -> Bytes {
        match &self.0 {
            Some(charged) if is_worth_counting(data.len()) => {
                let hold = charged.account.budget().keep(kind, data.len());
                Bytes::from_owner(Counted { data, _hold: hold })
            }
            _ => data,
        }
    }

    /// RESOURCE_EXHAUSTED if there is no room for so many bytes now: they need not be received.
    pub fn check_room(&self, bytes: usize) -> Result<()> {
        match &self.0 {
            Some(charged) if is_worth_counting(bytes) => charged.account.check_room(bytes),
            _ => Ok(()),
        }
    }

    /// Takes room for an answer of at most so many bytes, also of what is kept for answers;
    /// RESOURCE_EXHAUSTED if there is less.
    pub fn reserve_answer(&self, bytes: usize) -> Result<Hold> {
        let mut hold = self.hold(Kind::Responses);
        if is_worth_counting(bytes) {
            hold.grow_beyond(bytes);
            self.check_answer()?;
        }
        Ok(hold)
    }

    /// Is data of so many bytes counted?
    pub fn counts(&self, bytes: usize) -> bool {
        self.0.is_some() && is_worth_counting(bytes)
    }
}

/// Bytes of a request that are given back when this is dropped.
#[derive(Debug)]
pub struct Hold {
    charge: Charge,
    kind: Kind,
    bytes: usize,
    /// What was taken for them.
    counted: usize,
}

impl Hold {
    /// Holds `more` bytes; RESOURCE_EXHAUSTED if so many are not left, then it holds what it did.
    pub fn grow(&mut self, more: usize) -> Result<()> {
        let bytes = self.bytes.saturating_add(more);
        if let Some(charged) = &self.charge.0
            && MAX_UNCOUNTED_BYTES < bytes
        {
            charged.account.take(self.kind, bytes - self.counted)?;
            self.counted = bytes;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Holds `more` bytes that exist already, even beyond the cap.
    pub fn grow_beyond(&mut self, more: usize) {
        self.bytes += more;
        if let Some(charged) = &self.charge.0
            && MAX_UNCOUNTED_BYTES < self.bytes
        {
            charged.account.take_beyond(self.kind, self.bytes - self.counted);
            self.counted = self.bytes;
        }
    }

    /// Holds so many bytes now, which exist: more than before, or less.
    pub fn settle(&mut self, bytes: usize) {
        if self.bytes < bytes {
            return self.grow_beyond(bytes - self.bytes);
        }
        self.bytes = bytes;
        if let Some(charged) = &self.charge.0
            && bytes < self.counted
        {
            charged.account.give_back(self.kind, self.counted - bytes);
            self.counted = bytes;
        }
    }

    /// So many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same data, which holds these bytes until its last clone and slice is dropped.
    pub fn over(self, data: Bytes) -> Bytes {
        if self.counted == 0 { data } else { Bytes::from_owner(Counted { data, _hold: self }) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(charged) = &self.charge.0
            && self.counted != 0
        {
            charged.account.give_back(self.kind, self.counted);
        }
    }
}

/// Data and what it holds of the budget.
struct Counted<H> {
    data: Bytes,
    _hold: H,
}

impl<H> AsRef<[u8]> for Counted<H> {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{budget::ByteBudget, error::ErrorKind};

    const KIB: usize = 1 << 10;

    fn charge(cap: usize) -> (Arc<ByteBudget>, Charge) {
        let budget = ByteBudget::new(cap);
        let charge = Charge::open(&Account::new(&budget)).unwrap();
        (budget, charge)
    }

    #[test]
    fn a_request_gives_back_what_it_was_charged() {
        let (budget, charge) = charge(100 * KIB);
        charge.add(Kind::Received, 10 * KIB).unwrap();
        charge.add_beyond(Kind::Tensors, 20 * KIB);
        charge.add(Kind::Tensors, 1).unwrap();
        assert_eq!(budget.in_use(), 34 * KIB);
        assert_eq!(budget.in_use_by(Kind::Tensors), 20 * KIB);
        let same = charge.clone();
        drop(charge);
        assert_eq!(budget.in_use(), 34 * KIB);
        drop(same);
        assert_eq!(Kind::ALL.map(|kind| budget.in_use_by(kind)), [0; 5]);
        assert_eq!(budget.in_use(), 0);
    }

    #[test]
    fn a_connection_has_its_share_and_the_server_its_cap() {
        let (budget, first) = charge(160 * KIB);
        let error = first.add(Kind::Received, 57 * KIB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(
            error.to_string(),
            "no memory for this request: requests of this connection hold 4096 of 81920 bytes \
             (its share of --max-inflight-bytes), it needs 58368 more, and a quarter is kept for \
             answers"
        );
        first.add(Kind::Received, 56 * KIB).unwrap();
        let second = Charge::open(&Account::new(&budget)).unwrap();
        let third = Charge::open(&Account::new(&budget)).unwrap();
        second.add(Kind::Received, 45 * KIB).unwrap();
        let error = third.add(Kind::Received, 8 * KIB).unwrap_err().to_string();
        assert!(error.contains("requests in flight hold 115712 of 163840 bytes"), "{error}");
        let refused = Reason::ALL.map(|reason| budget.refusals(reason));
        assert_eq!(refused, [1, 1, 0, 0]);
    }

    #[test]
    fn what_would_not_fit_is_refused_before_it_comes() {
        let (budget, charge) = charge(160 * KIB);
        charge.check_room(56 * KIB).unwrap();
        let reason = |bytes| {
            let before = Reason::ALL.map(|reason| budget.refusals(reason));
            charge.check_room(bytes).unwrap_err();
            Reason::ALL.into_iter().zip(before).find(|(it, had)| budget.refusals(*it) != *had)
        };
        assert_eq!(reason(57 * KIB).unwrap().0, Reason::ConnectionBytes);
        // What is kept for reuse would give way.
        let kept = budget.keep(Kind::Segments, 100 * KIB);
        charge.check_room(56 * KIB).unwrap();
        let others = budget.keep(Kind::Tensors, 100 * KIB);
        assert_eq!(reason(20 * KIB).unwrap().0, Reason::ServerBytes);
        charge.check_room(16 * KIB).unwrap();
        drop((kept, others));
        assert_eq!(budget.in_use(), 4 * KIB);
    }

    #[test]
    fn data_of_several_requests_is_in_the_share_of_none() {
        let (budget, charge) = charge(160 * KIB);
        let data = charge.over_for_all(Kind::Tensors, vec![7; 90 * KIB].into());
        let part = data.slice(5..9);
        drop(data);
        assert_eq!(budget.in_use_by(Kind::Tensors), 90 * KIB);
        charge.check_answer().unwrap();
        charge.check_room(20 * KIB).unwrap();
        drop(part);
        assert_eq!(budget.in_use(), 4 * KIB);
        let small = charge.over_for_all(Kind::Tensors, vec![7; 4 * KIB].into());
        assert_eq!((small.len(), budget.in_use()), (4 * KIB, 4 * KIB));
    }

    #[test]
    fn answers_may_take_what_requests_may_not() {
        let (budget, charge) = charge(160 * KIB);
        charge.add(Kind::Received, 56 * KIB).unwrap();
        let answer = charge.over(Kind::Tensors, vec![7; 20 * KIB].into());
        charge.check_answer().unwrap();
        let more = charge.over(Kind::Tensors, vec![7; 5 * KIB].into());
        assert_eq!(charge.check_inputs().unwrap_err().kind(), ErrorKind::ResourceExhausted);
        let error = charge.check_answer().unwrap_err().to_string();
        assert!(error.starts_with("no memory for the answer: requests of this"), "{error}");
        let part = answer.slice(5..9);
        drop((more, answer));
        assert_eq!((budget.in_use(), &part[..]), (80 * KIB, &[7; 4][..]));
        drop(part);
        assert_eq!(budget.in_use(), 60 * KIB);
    }

    #[test]
    fn an_answer_has_its_room_before_it_is_written() {
        let (budget, charge) = charge(160 * KIB);
        let mut hold = charge.reserve_answer(70 * KIB).unwrap();
        assert_eq!(
            charge.reserve_answer(70 * KIB).unwrap_err().kind(),
            ErrorKind::ResourceExhausted
        );
        assert_eq!(budget.in_use_by(Kind::Responses), 70 * KIB);
        hold.settle(30 * KIB);
        assert_eq!((hold.bytes(), budget.in_use_by(Kind::Responses)), (30 * KIB, 30 * KIB));
        hold.settle(31 * KIB);
        drop(hold.over(vec![0; 31 * KIB].into()));
        assert_eq!(budget.in_use(), 4 * KIB);
    }

    #[test]
    fn a_hold_grows_with_what_arrives_and_small_ones_cost_nothing() {
        let (budget, charge) = charge(100 * KIB);
        let mut hold = charge.hold(Kind::Received);
        hold.grow(4 * KIB).unwrap();
        assert_eq!(budget.in_use_by(Kind::Received), 0);
        hold.grow(1).unwrap();
        assert_eq!(budget.in_use_by(Kind::Received), 4 * KIB + 1);
        hold.grow(50 * KIB).unwrap_err();
        assert_eq!((hold.bytes(), budget.in_use()), (4 * KIB + 1, 8 * KIB + 1));
        drop(hold);
        assert_eq!(budget.in_use(), 4 * KIB);
    }

    #[test]
    fn what_is_kept_for_reuse_makes_room_for_requests() {
        let (budget, charge) = charge(160 * KIB);
        let kept = parking_lot::Mutex::new(vec![budget.keep(Kind::Segments, 100 * KIB)]);
        budget.reclaims_by(move |bytes| {
            assert!(bytes <= 100 * KIB);
            kept.lock().pop();
        });
        charge.add(Kind::Received, 30 * KIB).unwrap();
        assert_eq!((budget.in_use(), budget.in_use_by(Kind::Segments)), (34 * KIB, 0));
    }

    #[test]
    fn without_room_no_request_begins_and_an_uncounted_one_needs_none() {
        let (budget, _first) = charge(12 * KIB);
        let account = Account::new(&budget);
        let _second = Charge::open(&account).unwrap();
        let error = Charge::open(&account).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        let uncounted = Charge::default();
        uncounted.add(Kind::Tensors, usize::MAX).unwrap();
        uncounted.hold(Kind::Tensors).grow(usize::MAX).unwrap();
        uncounted.check_inputs().unwrap();
        assert_eq!(budget.in_use(), 8 * KIB);
    }
}
