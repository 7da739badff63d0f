//! The advice in sentences, with the numbers it rests on.

use super::{
    super::{
        format::{count, digits, percent, plain, time},
        level::StepLoad,
        members::Member,
    },
    findings::{
        Bottleneck, Findings, INSTANCES_PER_CORE, NEAR_RATIO, SATURATED_SHARE, Suggestion, name,
    },
    scheduling,
};

use troupe_options::MAX_IN_FLIGHT;

/// A sentence, and what it is drawn from.
pub(super) fn reasons(found: &Findings<'_>, limit: Bottleneck) -> (String, Vec<String>) {
    match limit {
        Bottleneck::Step => step(found),
        Bottleneck::Slots => scheduling::slots(found),
        Bottleneck::Cores => cores(found),
        Bottleneck::Client => client(found),
        Bottleneck::Load => load(found),
        Bottleneck::Elsewhere => elsewhere(found),
    }
}

fn step(found: &Findings<'_>) -> (String, Vec<String>) {
    let Some((slowest, rest)) = found.steps.split_first() else { return Default::default() };
    let instances = slowest.member.instances;
    let were = if instances == 1 { "instance was" } else { "instances were" };
    let headline = format!(
        "{} is the bottleneck: its {instances} {were} busy {} of the time.",
        name(slowest),
        slowest.busy()
    );
    let mut reason = format!(
        "An inference takes {} of an instance, which allows {} inferences/s; {} were measured with \
         {} in flight, while {} requests waited for it on average",
        time(slowest.demand_ns),
        digits(slowest.capacity),
        digits(found.level.throughput()),
        found.level.in_flight,
        digits(slowest.waiting),
    );
    match rest.first() {
        Some(next) if next.capacity < slowest.capacity * NEAR_RATIO => {
            let (name, busy) = (name(next), next.busy());
            reason += &format!("; {name} is loaded about as much ({busy} busy).");
        }
        Some(next) => {
            let (name, busy) = (name(next), next.busy());
            reason += &format!("; the next slowest, {name}, was {busy} busy.");
        }
        None => reason += ".",
    }
    let reasons = [reason].into_iter().chain(scheduling::waiting(found)).chain(unbatched(slowest));
    (headline, reasons.collect())
}

/// Larger executions may do more than more of them, if they share work.
fn unbatched(step: &StepLoad) -> Option<String> {
    let (member, rows) = (&step.member, step.counts.mean_batch());
    let cost = member.batch_cost;
    if member.has_batching {
        let cost = cost.filter(|it| !it.pays())?;
        return Some(match member.is_python {
            true => format!(
                "{}: `execute` does not join its requests. This would:\n{JOINING}\n{IN_FUNCTION}",
                cost.text()
            ),
            false => format!("{}: joining requests brings this model nothing.", cost.text()),
        });
    }
    if member.sequences.is_some() {
        return None;
    }
    if member.is_python && member.max_batch < 2 {
        return Some(ONE_AT_A_TIME.to_owned());
    }
    if (member.max_batch as f64) < 2.0 * rows {
        return None;
    }
    let takes = format!("It takes {} rows at once but got {}", member.max_batch, digits(rows));
    let joins = "`dynamic_batching { }` in its config would join the requests that wait";
    Some(match cost {
        Some(cost) if cost.is_noise() => format!(
            "{takes}: {joins}. Whether that pays could not be measured, for {}: other programs seem \
             to keep the machine busy.",
            cost.text()
        ),
        Some(cost) if !cost.pays() => {
            format!("{takes}; but {}: joining requests would bring nothing.", cost.text())
        }
        Some(cost) if member.is_python => format!(
            "{takes}, and {}: {joins}, and `execute` would have to run them as one:\n{JOINING}",
            cost.text()
        ),
        Some(cost) => format!("{takes}, and {}: {joins}.", cost.text()),
        None => format!(
            "{takes}: {joins}. Whether that pays was not measured: it does if many rows take less \
             than one after the other."
        ),
    })
}

/// Of a Python model without batches nothing can be measured of them.
const ONE_AT_A_TIME: &str = "It takes one request at a time. Whether batches pay can be measured once \
    it takes them: with `@model(max_batch_size=32)` a plain function gets the rows of all requests that \
    wait; a `TritonPythonModel` joins them itself, with `max_batch_size: 32 dynamic_batching { }` in \
    its config.";

/// How `execute` runs all its requests as one batch; `x`, `y` and `compute` are the model's.
const JOINING: &str = "    \
    parts = [pb_utils.get_input_tensor_by_name(it, \"x\").as_numpy() for it in requests]
    y = compute(np.concatenate(parts))
    ends = np.cumsum([len(it) for it in parts])[:-1]
    return [pb_utils.InferenceResponse([pb_utils.Tensor(\"y\", it)]) for it in np.split(y, ends)]";

/// The same for a plain function, whose requests are joined already.
const IN_FUNCTION: &str = "    \
    # A plain function under `@model(max_batch_size=…)` has all rows in one call: there work on whole
    # arrays, or give the whole `list[…]` to the network, in place of a loop over the rows.";

fn cores(found: &Findings<'_>) -> (String, Vec<String>) {
    let used = found.level.used;
    let server = used.server.unwrap_or(0.0);
    let users = [
        used.server.map(|it| ("the server", it)),
        Some(("this command", used.client)),
        found.others().filter(|it| 0.05 <= *it).map(|it| ("other programs", it)),
    ];
    let users: Vec<String> =
        users.iter().flatten().map(|(who, cores)| format!("{who} {}", digits(*cores))).collect();
    let (cores, users) = (found.machine.cores, users.join(", "));
    let headline = format!("The cores are the limit, all {cores} were busy: {users}.");
    let mut reasons = Vec::new();
    if used.server.is_some() {
        reasons.push(format!(
            "An inference takes {} of the server's CPU time; more instances share the same cores.",
            time(server * 1e9 / found.level.throughput().max(1e-9))
        ));
    }
    if let Some(step) = found.steps.iter().max_by(|a, b| a.demand_ns.total_cmp(&b.demand_ns)) {
        reasons.push(format!(
            "Most of the steps' time goes to {}: {} an inference, its {} busy {}.",
            name(step),
            time(step.demand_ns),
            count(step.member.instances, "instance"),
            step.busy()
        ));
        // What rows share, cores need not do twice.
        let is_worth = step
            .member
            .batch_cost
            .is_some_and(|it| !it.is_noise() && it.pays() != step.member.has_batching);
        reasons.extend(unbatched(step).filter(|_| is_worth));
    }
    if server < used.client {
        reasons.push("Run this command on another machine to see what the server can do.".into());
    }
    (headline, reasons)
}

fn client(found: &Findings<'_>) -> (String, Vec<String>) {
    let threads = count(found.machine.threads as u64, "thread");
    let used = digits(found.level.used.client);
    let headline = format!("This command is the limit: its {threads} used {used} cores.");
    let busiest = found.steps.iter().max_by(|a, b| a.utilisation.total_cmp(&b.utilisation));
    let busiest = busiest.map(|step| {
        let busy = step.busy();
        format!("The server could do more: its busiest step, {}, was {busy} busy.", name(step))
    });
    (headline, busiest.into_iter().collect())
}

fn load(found: &Findings<'_>) -> (String, Vec<String>) {
    let headline = "The load is too low to tell which step is the bottleneck.".to_owned();
    let Some(step) = found.steps.first() else { return (headline, Vec::new()) };
    let busy = step.busy();
    if SATURATED_SHARE <= step.utilisation && found.can_batch_more(step) {
        let headline = format!(
            "{} was busy {busy} of the time, but with more in flight its batches can still grow.",
            name(step)
        );
        let pays = match step.member.batch_cost.filter(|it| !it.is_noise()) {
            Some(cost) => format!(", and {}.", cost.text()),
            None => "; whether larger ones pay could not be measured.".to_owned(),
        };
        let reason = format!(
            "More in flight (--concurrency {}) may still pay: its executions had {} rows on average \
             of at most {}{pays}",
            (2 * found.level.in_flight).min(MAX_IN_FLIGHT),
            digits(step.counts.mean_batch()),
            step.member.max_batch
        );
        return (headline, vec![reason]);
    }
    // Little's law: what a full pipeline holds is its throughput times its latency.
    let latency = found.levels.first().map_or(0.0, |it| it.seen.latency.mean()) / 1e9;
    let full = (step.capacity / found.level.batch.max(1) as f64 * latency).ceil() as usize + 1;
    let full = full.max(found.level.in_flight * 2).min(MAX_IN_FLIGHT);
    let reason = format!(
        "With {} in flight the step nearest to its limit, {}, was busy {busy} of the time; to load \
         it fully takes about {full} in flight (`--concurrency {full}`).",
        found.level.in_flight,
        name(step),
    );
    (headline, vec![reason])
}

fn elsewhere(found: &Findings<'_>) -> (String, Vec<String>) {
    let headline = "No step is the limit: none of them was always busy.".to_owned();
    let mut reasons = Vec::new();
    if let Some(step) = found.steps.first() {
        let latency = found.level.seen.latency.mean();
        reasons.push(format!(
            "More in flight bring little: with {} of them the step nearest to its limit, {}, was \
             busy {} of the time. Of the {} a request takes, steps execute it for {}; the rest is \
             on the way: between the steps, in the network, or at a limit on what is in flight.",
            found.level.in_flight,
            name(step),
            step.busy(),
            time(latency),
            time(latency * found.executing)
        ));
    }
    reasons.push(match found.level.used.server {
        Some(server) => format!(
            "The server used {} of {} cores, this command {}.",
            digits(server),
            found.machine.cores,
            digits(found.level.used.client)
        ),
        None => "How busy the server's cores are cannot be seen from here.".to_owned(),
    });
    (headline, reasons)
}

/// What the suggestion leads to.
pub(super) fn outlook(
    found: &Findings<'_>,
    limit: Bottleneck,
    goal: Option<f64>,
    suggestions: &[Suggestion],
) -> Option<String> {
    let Some(goal) = goal else {
        let cores = count(found.machine.cores as u64, "core");
        let text = match found.stretching() {
            Some(_) => "Nothing is suggested: other programs kept the cores busy.".to_owned(),
            None => {
                format!("No more instances are suggested: the {cores} would be the next limit.")
            }
        };
        return (limit == Bottleneck::Step).then_some(text);
    };
    let is_capped = found.core_capacity.is_some_and(|most| most <= goal);
    let next = found.steps.iter().find(|step| {
        let is_kept = suggestions.iter().all(|it| it.key != step.member.key);
        is_kept && step.capacity <= goal * NEAR_RATIO
    });
    let is_most = found.sensible_goal().is_some_and(|most| most <= goal);
    let next = match next {
        _ if is_most => format!(
            "; more than {INSTANCES_PER_CORE} for each of the {} cores are not suggested: those there \
             are compute rather than wait",
            found.machine.cores
        ),
        _ if is_capped => format!(", where the {} cores become the limit", found.machine.cores),
        Some(step) => format!(", where {} becomes the limit", name(step)),
        None => String::new(),
    };
    let goal = digits(goal);
    let one =
        |it: &Suggestion| format!("{} of `{}`", count(it.then, "instance"), plain(&it.key.name));
    let list: Vec<String> = suggestions.iter().map(one).collect();
    Some(match list.split_last() {
        None => format!("The instances there are allow {goal} inferences/s{next}."),
        Some((only, [])) => format!("{only} should allow about {goal} inferences/s{next}."),
        Some((last, rest)) => {
            let rest = rest.join(", ");
            format!("{rest} and {last} should allow about {goal} inferences/s{next}.")
        }
    })
}

/// What makes the numbers doubtful.
pub(super) fn doubts(found: &Findings<'_>, members: &[Member], all: &[StepLoad]) -> Vec<String> {
    let mut doubts = Vec::new();
    let asked = members.first().and_then(|member| found.level.counts.get(&member.key));
    let (all_asked, ours) = (asked.map_or(0, |it| it.answered), found.level.answered());
    // What is in flight when the counters are read may count on one side only.
    let slack = 2 * found.level.in_flight as u64 + ours / 10;
    if ours + slack < all_asked {
        doubts.push(format!(
            "The server answered {all_asked} requests, of which this command sent {ours}: others use \
             the model too."
        ));
    }
    if let Some(others) = found.disturbing() {
        let (others, cores) = (digits(others), found.machine.cores);
        doubts.push(format!(
            "Other programs used {others} of the {cores} cores: measure again on a quiet machine."
        ));
    }
    for (key, counts) in found.cached() {
        doubts.push(format!(
            "{} of {} requests of `{}` were answered from the response cache ({}): this command sends \
             the same request again and again, so the numbers say how fast that is, and nothing about \
             executions, and no number of instances is advised. Measure without --cache-config.",
            counts.hits,
            counts.answered,
            plain(&key.name),
            percent(counts.hits as f64 / counts.answered.max(1) as f64)
        ));
    }
    let called: Vec<String> = all.iter().filter(|it| it.member.is_called).map(name).collect();
    if !called.is_empty() {
        let (called, is) = (called.join(", "), if called.len() == 1 { "is" } else { "are" });
        doubts.push(format!(
            "{called} {is} no step of it: a Python model calls it, or somebody else does."
        ));
    }
    for step in all.iter().filter(|it| it.overlaps()) {
        doubts.push(format!(
            "An instance of {} works at several requests at once ({} on average): how busy it is \
             says nothing about its limit.",
            name(step),
            digits(step.utilisation)
        ));
    }
    if found.level.spread.is_some_and(|it| 0.2 < it) {
        doubts.push("The throughput was not steady: measure for longer with --seconds.".into());
    }
    doubts
}
