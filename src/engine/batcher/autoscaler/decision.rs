//! Decides how many instances a model is to have, by how long its requests wait; pure, without clock.

use std::time::{Duration, Instant};

use troupe_base::config::InstanceScaling;

/// Instances are left as long as those that stay would be busy for more than this share of the time.
const MAX_BUSY: f64 = 0.8;

/// What a model has done up to one moment, as its statistics count it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueSample {
    /// Requests that were executed, and how long they had waited together.
    pub(super) executed: u64,
    pub(super) queued: Duration,
    /// Requests that the queue refused.
    pub(super) refused: u64,
    /// Of all instances together; executions at the same time count each.
    pub(super) busy: Duration,
    /// Executions that there may be at once for each of the instances on one device: as many as there
    /// are devices, more where one instance has several.
    pub(super) places: usize,
    /// Requests that wait now.
    pub(super) pending: u64,
    /// Requests that wait or execute now.
    pub(super) in_flight: u64,
}

/// What was seen of a queue.
#[derive(Debug, Default)]
pub(super) struct QueueWatch {
    last: QueueSample,
    /// What a request waited on average, of those that were executed last.
    queue_time: Duration,
    /// The queue refused so many between the last two looks.
    refused: u64,
    /// Requests have waited since then, and none was executed.
    stalled_since: Option<Instant>,
    /// They have waited for too long since then.
    long_since: Option<Instant>,
    /// They have waited for less than half of that since then.
    short_since: Option<(Instant, QueueSample)>,
}

impl QueueWatch {
    /// How many instances there are to be on each device, of which there are so many. To be told when
    /// there are as many.
    pub(super) fn look(
        &mut self,
        now: Instant,
        sample: QueueSample,
        count: u32,
        scaling: &InstanceScaling,
    ) -> u32 {
        let is_known = self.measure(now, &sample);
        self.last = sample;
        // A reload has changed what there may be.
        if !(scaling.min..=scaling.max).contains(&count) {
            return count.clamp(scaling.min, scaling.max);
        }
        if !is_known {
            return count;
        }
        let is_over = |since: Instant, time: Duration| time <= now.saturating_duration_since(since);
        // For those that are refused it was too long, whatever the others have waited.
        let is_refused = self.refused != 0;
        let is_long = is_refused || scaling.target_queue < self.queue_time;
        self.long_since = is_long.then(|| self.long_since.unwrap_or(now));
        let is_short = !is_refused && self.queue_time.saturating_mul(2) <= scaling.target_queue;
        self.short_since = is_short.then(|| self.short_since.unwrap_or((now, sample)));
        if self.long_since.is_some_and(|since| is_over(since, scaling.up_after)) {
            return count.saturating_add(count.div_ceil(2)).min(scaling.max);
        }
        if let Some((since, before)) = self.short_since
            && is_over(since, scaling.down_after)
        {
            // The next decision is about the time from now on.
            self.short_since = Some((now, sample));
            let time = now.saturating_duration_since(since);
            // At most a half goes at once.
            return needed(&before, &sample, time, count)
                .clamp(scaling.min.max(count.div_ceil(2)), count);
        }
        count
    }

    /// The number of instances has changed: what was seen before says nothing about them.
    pub(super) fn changed(&mut self) {
        (self.long_since, self.short_since) = (None, None);
    }

    /// What the last look has seen, for the log.
    pub(super) fn reason(&self, scaling: &InstanceScaling) -> String {
        match self.refused {
            0 => format!("requests waited {:.1?} of {:?}", self.queue_time, scaling.target_queue),
            1 => "the queue refused a request".to_owned(),
            refused => format!("the queue refused {refused} requests"),
        }
    }

    /// Sets the queue time, and what was refused; `false` if nothing is known of the time since the last look.
    fn measure(&mut self, now: Instant, sample: &QueueSample) -> bool {
        self.refused = sample.refused.saturating_sub(self.last.refused);
        let executed = sample.executed.saturating_sub(self.last.executed);
        if executed != 0 || sample.pending == 0 {
            self.stalled_since = None;
        } else {
            self.stalled_since.get_or_insert(now);
        }
        if executed != 0 {
            let queued = sample.queued.saturating_sub(self.last.queued);
            self.queue_time = queued / u32::try_from(executed).unwrap_or(u32::MAX);
        } else if let Some(since) = self.stalled_since {
            self.queue_time = self.queue_time.max(now.saturating_duration_since(since));
        } else if sample.in_flight == 0 {
            self.queue_time = Duration::ZERO;
        } else {
            // All that there is executes, and nothing has ended.
            return self.refused != 0;
        }
        true
    }
}

/// The instances that would have done what these have in that time; as many as there are, if that is
/// not known.
fn needed(before: &QueueSample, after: &QueueSample, time: Duration, count: u32) -> u32 {
    if before.executed == after.executed && after.in_flight != 0 {
        return count;
    }
    let busy = after.busy.saturating_sub(before.busy).as_secs_f64() / after.places.max(1) as f64;
    // Saturates, where a number of instances has no meaning any more.
    (busy / time.as_secs_f64().max(f64::MIN_POSITIVE) / MAX_BUSY).ceil() as u32
}

#[cfg(test)]
mod tests;
