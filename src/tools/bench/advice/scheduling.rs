//! What the advice says of schedulers: sequence slots, queue policies, responses of decoupled models.

use super::{
    super::{
        format::{count, digits, plain, time},
        level::StepLoad,
        members::Member,
    },
    findings::{Bottleneck, Findings, name},
};

/// The slots of a step are the limit.
pub(super) fn slots(found: &Findings<'_>) -> (String, Vec<String>) {
    let Some((step, slots)) = found.short_of_slots() else { return Default::default() };
    let in_flight = found.level.in_flight as u64;
    let headline = format!(
        "The slots of {} are the limit: it has {slots} for {in_flight} sequences at a time, so {} \
         waited for one.",
        name(step),
        in_flight - slots
    );
    let busy = match step.member.instances {
        1 => format!("Its instance was busy {} of the time", step.busy()),
        more => format!("Its {more} instances were busy {} of the time", step.busy()),
    };
    let reason = format!("{busy}, and could do more. {}", more_slots(step, in_flight));
    (headline, vec![reason])
}

/// Sequences wait for slots, though instances have no time left either.
pub(super) fn waiting(found: &Findings<'_>) -> Option<String> {
    let (step, slots) = found.short_of_slots()?;
    let in_flight = found.level.in_flight as u64;
    let waited = in_flight - slots;
    Some(format!(
        "{} has {} for {in_flight} sequences at a time: {waited} waited for one, and their latencies \
         have that in them. {}",
        name(step),
        count(slots, "slot"),
        more_slots(step, in_flight)
    ))
}

/// What would give all sequences a slot.
fn more_slots(step: &StepLoad, in_flight: u64) -> String {
    let Some(sequences) = step.member.sequences else { return String::new() };
    let each = sequences.slots.max(1);
    let field = if sequences.is_direct { "max_batch_size" } else { "max_candidate_sequences" };
    let wanted = in_flight.div_ceil(step.member.instances.max(1));
    format!(
        "Slots for all of them: `{field}: {wanted}` (now {each} for each instance), or {}.",
        count(in_flight.div_ceil(each), "instance")
    )
}

/// When responses of a decoupled model came.
pub(super) fn first_responses(found: &Findings<'_>) -> Option<String> {
    let seen = &found.level.seen;
    let (asked, first) = (seen.latency.count(), &seen.first);
    if first.count() == 0 || asked == 0 {
        return None;
    }
    Some(format!(
        "The first response came after {} (p50; p99 {}), the last of {} each after {} (p50; p99 {}).",
        time(first.percentile(50.0)),
        time(first.percentile(99.0)),
        digits(seen.responses as f64 / asked as f64),
        time(seen.latency.percentile(50.0)),
        time(seen.latency.percentile(99.0))
    ))
}

/// Which policy refused requests.
pub(super) fn refusals(found: &Findings<'_>, members: &[Member]) -> Vec<String> {
    let seen = &found.level.seen;
    let all = seen.failed + found.level.answered();
    let failed = |it: &&Member| found.level.counts.get(&it.key).is_some_and(|it| 0 < it.failed);
    let name = |it: &Member| format!("`{}`", plain(&it.key.name));
    let of = |has: &dyn Fn(&Member) -> bool, told: &dyn Fn(&Member) -> String| -> String {
        let with: Vec<&Member> = members.iter().filter(|it| has(it)).collect();
        // Whose requests failed, if that is known.
        let failing: Vec<&Member> = with.iter().copied().filter(failed).collect();
        let told: Vec<String> =
            if failing.is_empty() { &with } else { &failing }.iter().map(|it| told(it)).collect();
        told.join(", ")
    };
    let mut doubts = Vec::new();
    if 0 < seen.refused_full {
        let queues = of(&|it| 0 < it.queues.max_size, &|it| {
            let each = if 1 < it.queues.levels { " in a level" } else { "" };
            format!("{} lets {} wait{each} (max_queue_size)", name(it), it.queues.max_size)
        });
        doubts.push(format!(
            "{} of {all} requests were refused since a queue was full{}: latencies are those of the \
             others. More instances or a longer queue take more in flight.",
            seen.refused_full,
            of_queue(&queues)
        ));
    }
    if 0 < seen.timed_out {
        let queues = of(&|it| 0 < it.queues.timeout_us, &|it| {
            let waits = time(it.queues.timeout_us as f64 * 1e3);
            format!("{} lets them wait {waits} (default_timeout_microseconds)", name(it))
        });
        doubts.push(format!(
            "{} of {all} requests had waited for too long and were refused{}: latencies are those of \
             the others. With fewer in flight, or more instances, requests wait less.",
            seen.timed_out,
            of_queue(&queues)
        ));
    }
    doubts
}

fn of_queue(told: &str) -> String {
    if told.is_empty() { String::new() } else { format!(": {told}") }
}

/// Of decoupled steps it is known when executions end, not when responses do.
pub(super) fn streams(found: &Findings<'_>, limit: Bottleneck) -> Option<String> {
    let slowest = found.steps.first().filter(|it| it.member.is_decoupled)?;
    (limit == Bottleneck::Step).then(|| {
        format!(
            "{} is decoupled: if it sends responses after `execute` has returned, that time is in no \
             execution, and more instances may bring less than is said here.",
            name(slowest)
        )
    })
}
