//! What is said about instances whose number follows the queue.

use std::time::Duration;

use super::{check, good};
use crate::config::{InstanceScaling, json};

/// A model with these fields on line 2.
fn model(fields: &str) -> String {
    format!("name: 'm' backend: 'python'\n{fields}")
}

/// The same with one group.
fn group(fields: &str) -> String {
    model(&format!("instance_group {{ {fields} }}"))
}

#[test]
fn what_is_not_said_has_defaults_and_the_count_begins_with_the_least() {
    let read = |fields: &str| {
        let group = good(&group(fields)).instance_groups.remove(0);
        let it = group.scaling.unwrap();
        let times = [it.target_queue, it.up_after, it.down_after].map(|it| it.as_millis());
        (group.count, group.is_default_count, it.min, it.max, times)
    };
    let defaults = [50, 2_000, 60_000];
    assert_eq!(read("scaling { max_count: 4 }"), (1, false, 1, 4, defaults));
    assert_eq!(read("scaling { min_count: 2 max_count: 4 }"), (2, false, 2, 4, defaults));
    assert_eq!(read("count: 3 scaling { max_count: 4 }"), (3, false, 1, 4, defaults));
    let all = "scaling { min_count: 1 max_count: 2 target_queue_microseconds: 7000 \
               scale_up_after_milliseconds: 8 scale_down_after_milliseconds: 9 }";
    assert_eq!(read(all), (1, false, 1, 2, [7, 8, 9]));
    assert_eq!(good(&group("count: 2")).instance_groups[0].scaling, None);
}

#[test]
fn it_is_printed_and_read_as_json_and_only_where_it_is_written() {
    let printed = json::print(&good(&group("scaling { max_count: 4 }")).proto);
    assert!(printed.contains("\"scaling\":{\"max_count\":4}"), "{printed}");
    let read = crate::config::read_json(&printed, "f").unwrap();
    let finished = read.finish(&crate::config::ServerFeatures::default()).unwrap();
    let expected = InstanceScaling {
        min: 1,
        max: 4,
        target_queue: Duration::from_millis(50),
        up_after: Duration::from_secs(2),
        down_after: Duration::from_secs(60),
    };
    assert_eq!(finished.instance_groups[0].scaling, Some(expected));
    assert!(!json::print(&good(&group("count: 2")).proto).contains("scaling"));
}

#[test]
fn what_makes_no_sense_is_refused_where_it_stands() {
    let of = |fields: &str, texts: &[&str]| {
        let texts: Vec<String> =
            texts.iter().map(|it| it.replace("GROUP", "instance group m_0 of model m")).collect();
        check(&group(fields), &texts.iter().map(|it| &**it).collect::<Vec<_>>());
    };
    of("scaling { }", &["2:18: GROUP has max_count 0, expected a number from min_count 1 on"]);
    of(
        "scaling { min_count: 0 max_count: 2 }",
        &["2:28: GROUP has min_count 0, expected a number from 1 on"],
    );
    of(
        "scaling { min_count: 3 max_count: 2 }",
        &["2:41: GROUP has max_count 2, expected a number from min_count 3 on"],
    );
    of(
        "count: 5 scaling { min_count: 2 max_count: 4 }",
        &["2:37: GROUP has count 5, expected a number from min_count 2 to 4"],
    );
    of(
        "scaling { max_count: 2000 }",
        &["2:28: GROUP has max_count 2000, expected at most 1024 instances of a model in all"],
    );
    of(
        "scaling { max_count: 2 scale_up_after_milliseconds: 0 }",
        &["2:41: GROUP has scale_up_after_milliseconds 0, expected a number from 1 on"],
    );
    of(
        "passive: true scaling { max_count: 2 }",
        &["2:32: GROUP can not have 'scaling': a passive group is given no requests. Write as \
           many as it needs into 'count'"],
    );
}

#[test]
fn models_whose_instances_stay_what_they_are_refuse_it() {
    let refused = |fields: &str, why: &str| {
        let scaled = "instance_group { scaling { max_count: 2 } }";
        let text = format!(
            "instance group m_0 of model m can not have 'scaling': {why}. Write as many as it needs \
             into 'count'"
        );
        let problems = super::finish(&model(&format!("{scaled} {fields}"))).unwrap_err();
        let found = problems.iter().find(|it| it.text == text);
        let found = found.unwrap_or_else(|| panic!("{problems:#?}"));
        assert_eq!((found.position.line, found.position.column), (2, 18), "{fields}");
    };
    refused(
        "sequence_batching { }",
        "with 'sequence_batching' each instance knows something of its own",
    );
    refused(
        "max_batch_size: 2 dynamic_batching { preserve_ordering: true }",
        "with 'preserve_ordering' answers are kept in order for as many as there are",
    );
    refused(
        "instance_group { count: 1 }",
        "the model has another group, and only one can follow its queue",
    );
}
