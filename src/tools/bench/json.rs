//! Everything measured as JSON: times in microseconds, shares as fractions.

use serde_json::{Value, json};

use super::{
    advice::Advice,
    histogram::LatencyHistogram,
    level::{LoadLevel, StepLoad},
    report::BenchReport,
};

/// The file.
pub(super) fn text(report: &BenchReport<'_>) -> String {
    let process = report.process.as_ref();
    let value = json!({
        "model": report.arguments.model,
        "version": report.members.first().map(|it| &it.key.version),
        "url": report.arguments.connection.url,
        "server": report.server,
        "batch_size": report.arguments.batch_size,
        "sequence_length": report.sequence_length,
        "cores": report.machine.cores,
        "server_process": process.map(|(pid, name)| json!({"pid": pid, "name": name})),
        "levels": report.levels.iter().map(|it| level(report, it)).collect::<Vec<_>>(),
        "advice": report.advice.as_ref().map(|it| advice(report, it)),
    });
    format!("{value:#}\n")
}

fn level(report: &BenchReport<'_>, level: &LoadLevel) -> Value {
    let steps = level.steps(&report.members);
    let mut value = json!({
        "concurrency": level.in_flight,
        "seconds": level.seconds,
        "requests": level.answered(),
        "failed": level.seen.failed,
        "refused_full": level.seen.refused_full,
        "timed_out": level.seen.timed_out,
        "first_error": level.error,
        "inferences_per_second": level.throughput(),
        "spread": level.spread,
        "latency_us": latency(&level.seen.latency),
        "cores_used": {
            "client": level.used.client,
            "server": level.used.server,
            "machine": level.used.machine,
        },
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
    });
    if report.is_decoupled {
        value["responses_per_second"] = json!(level.response_rate());
        value["first_response_us"] = latency(&level.seen.first);
    }
    value
}

fn latency(times: &LatencyHistogram) -> Value {
    let at = |percent| times.percentile(percent) / 1000.0;
    json!({
        "mean": times.mean() / 1000.0,
        "p50": at(50.0),
        "p90": at(90.0),
        "p95": at(95.0),
        "p99": at(99.0),
        "max": times.max() / 1000.0,
    })
}

fn step(step: &StepLoad) -> Value {
    let counts = &step.counts;
    let each = |ns| counts.each(ns) / 1000.0;
    json!({
        "model": step.member.key.name,
        "version": step.member.key.version,
        "instances": step.member.instances,
        "slots": step.slots(),
        "is_step": !step.member.is_called,
        "utilisation": step.utilisation,
        "waiting": step.waiting,
        "demand_us": step.demand_ns / 1000.0,
        "capacity_per_second": step.capacity,
        "requests": counts.answered,
        "failed": counts.failed,
        "executions": counts.executions,
        "mean_batch_size": counts.mean_batch(),
        "queue_us": each(counts.queue_ns),
        "compute_input_us": each(counts.input_ns),
        "compute_infer_us": each(counts.infer_ns),
        "compute_output_us": each(counts.output_ns),
    })
}

fn advice(report: &BenchReport<'_>, advice: &Advice) -> Value {
    let slowest = advice.steps.first();
    let suggestions = advice.suggestions.iter().map(|it| {
        json!({
            "model": it.key.name,
            "version": it.key.version,
            "instances": it.now,
            "suggested": it.then,
        })
    });
    json!({
        "limited_by": advice.limit.as_str(),
        "concurrency": report.levels[advice.level].in_flight,
        "best_concurrency": report.levels[advice.best].in_flight,
        "slowest_step": slowest.map(|it| &it.member.key.name),
        "utilisation": slowest.map(|it| it.utilisation),
        "suggestions": suggestions.collect::<Vec<_>>(),
        "expected_inferences_per_second": advice.goal,
        "headline": advice.headline,
        "reasons": advice.reasons,
        "doubts": advice.doubts,
    })
}
