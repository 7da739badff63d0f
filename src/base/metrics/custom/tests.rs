//! Custom metric families in the text exposition, and what is refused.

use super::{check::MAX_LABEL_BYTES, *};

fn labels(pairs: &[(&str, &str)]) -> MetricLabels {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn text(families: &CustomFamilies) -> String {
    prometheus::TextEncoder::new().encode_to_string(&families.gather()).unwrap()
}

#[test]
fn a_page_has_help_and_type_once_for_all_metrics_of_a_family() {
    let families = CustomFamilies::default();
    let counter = families.open("c", "what \\ it\ncounts", MetricKind::Counter).unwrap();
    let plain = counter.series(MetricLabels::new(), None).unwrap();
    let labelled = counter.series(labels(&[("b", "\"1\"\n"), ("a", "2")]), None).unwrap();
    plain.change(MetricChange::Add(2.5)).unwrap();
    labelled.change(MetricChange::Add(0.0)).unwrap();
    let expected = "# HELP c what \\\\ it\\ncounts\n# TYPE c counter\nc 2.5\n\
                    c{a=\"2\",b=\"\\\"1\\\"\\n\"} 0\n";
    assert_eq!(text(&families), expected);
}

#[test]
fn a_histogram_counts_what_is_at_most_its_bounds() {
    let families = CustomFamilies::default();
    let family = families.open("h", "help", MetricKind::Histogram).unwrap();
    let buckets = [1.0, 2.5, f64::INFINITY];
    let histogram = family.series(MetricLabels::new(), Some(&buckets)).unwrap();
    let empty = family.series(labels(&[("x", "y")]), Some(&[])).unwrap();
    for seen in [0.5, 1.0, 1.5, 9.0] {
        histogram.change(MetricChange::Observe(seen)).unwrap();
        empty.change(MetricChange::Observe(seen)).unwrap();
    }
    let expected = "# HELP h help\n# TYPE h histogram\n\
        h_bucket{le=\"1\"} 2\nh_bucket{le=\"2.5\"} 3\nh_bucket{le=\"+Inf\"} 4\nh_sum 12\n\
        h_count 4\nh_bucket{x=\"y\",le=\"+Inf\"} 4\nh_sum{x=\"y\"} 12\nh_count{x=\"y\"} 4\n";
    assert_eq!(text(&families), expected);
}

#[test]
fn equal_labels_share_a_value_and_the_last_user_takes_it_away() {
    let families = CustomFamilies::default();
    let one = families.open("g", "first", MetricKind::Gauge).unwrap();
    let two = families.open("g", "second", MetricKind::Gauge).unwrap();
    let a = one.series(labels(&[("k", "v")]), None).unwrap();
    let b = two.series(labels(&[("k", "v")]), None).unwrap();
    drop((one, two));
    a.change(MetricChange::Set(3.0)).unwrap();
    b.change(MetricChange::Add(-1.0)).unwrap();
    assert_eq!(a.value(), Ok(2.0));
    drop(a);
    assert_eq!(text(&families), "# HELP g first\n# TYPE g gauge\ng{k=\"v\"} 2\n");
    drop(b);
    assert_eq!(text(&families), "");
    let again = families.open("g", "third", MetricKind::Counter).unwrap();
    assert_eq!(again.series(MetricLabels::new(), None).unwrap().value(), Ok(0.0));
}

#[test]
fn what_cannot_be_is_refused() {
    let families = CustomFamilies::default();
    let refused = |name: &str, kind| match families.open(name, "", kind) {
        Ok(_) => panic!("{name} was taken"),
        Err(error) => error.to_string(),
    };
    let histogram = families.open("h", "", MetricKind::Histogram).unwrap();
    let counter = families.open("a_sum", "", MetricKind::Counter).unwrap();
    for (name, kind, expected) in [
        ("", MetricKind::Counter, "Invalid metric name: ''"),
        ("1a", MetricKind::Counter, "Invalid metric name: '1a'"),
        ("a b", MetricKind::Counter, "Invalid metric name: 'a b'"),
        (
            "h",
            MetricKind::Gauge,
            "Family name already exists with different type: 'h' is a histogram",
        ),
        ("h_count", MetricKind::Gauge, "'h_count' cannot be a family beside the histogram 'h'"),
        ("a", MetricKind::Histogram, "'a_sum' cannot be a family beside the histogram 'a'"),
    ] {
        let error = refused(name, kind);
        assert!(error.starts_with(expected), "{error}");
    }
    let error = |it: Result<CustomSeries>| it.err().map(|it| it.to_string()).unwrap_or_default();
    let buckets = |it: &[f64]| error(histogram.series(MetricLabels::new(), Some(it)));
    assert_eq!(buckets(&[1.0, 1.0]), "Bucket Boundaries must be strictly sorted");
    assert_eq!(buckets(&[f64::NAN]), "Bucket Boundaries must be strictly sorted");
    for (name, value, expected) in [
        ("a-b", "", "Invalid label name: 'a-b'"),
        ("__a", "", "Invalid label name: '__a'"),
        ("a", &*"x".repeat(MAX_LABEL_BYTES + 1), "label 'a' has a value of 4097 bytes"),
    ] {
        let error = error(counter.series(labels(&[(name, value)]), None));
        assert!(error.starts_with(expected), "{error}");
    }
    let le = error(histogram.series(labels(&[("le", "")]), Some(&[])));
    assert!(le.starts_with("Invalid label name: 'le'"), "{le}");
}

#[test]
fn a_family_takes_no_end_of_metrics() {
    let families = CustomFamilies::default();
    let family = families.open("c", "", MetricKind::Counter).unwrap();
    let one = |number: usize| family.series(labels(&[("n", &number.to_string())]), None);
    let all: Vec<_> = (0..MAX_SERIES).map(|it| one(it).unwrap()).collect();
    let error = one(MAX_SERIES).err().map(|it| it.to_string());
    assert_eq!(error.unwrap(), "family 'c' has 10000 metrics already, more are not kept");
    assert!(one(7).is_ok());
    drop(all);
    assert!(one(MAX_SERIES).is_ok());
}

/// A model may make names of families out of what clients send, without end.
#[test]
fn a_server_takes_no_end_of_families() {
    let families = CustomFamilies::default();
    let open = |number: usize| families.open(&format!("f{number}"), "", MetricKind::Counter);
    let mut all: Vec<_> = (0..MAX_FAMILIES).map(|it| open(it).unwrap()).collect();
    let error = open(MAX_FAMILIES).err().map(|it| it.to_string()).unwrap();
    assert_eq!(error, "there are 1000 families of metrics already, more are not kept");
    assert!(open(7).is_ok());
    drop(all.pop());
    assert!(open(MAX_FAMILIES).is_ok());
}

#[test]
fn metrics_do_only_what_their_kind_does() {
    let families = CustomFamilies::default();
    let of = |kind: MetricKind, buckets| {
        families.open(kind.name(), "", kind).unwrap().series(MetricLabels::new(), buckets).unwrap()
    };
    let counter = of(MetricKind::Counter, None);
    let gauge = of(MetricKind::Gauge, None);
    let histogram = of(MetricKind::Histogram, Some(&[][..]));
    for (series, change, expected) in [
        (&counter, MetricChange::Set(1.0), "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
        (
            &gauge,
            MetricChange::Observe(1.0),
            "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe",
        ),
        (
            &histogram,
            MetricChange::Add(1.0),
            "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment",
        ),
    ] {
        assert_eq!(series.change(change).unwrap_err().to_string(), expected);
    }
    for wrong in [-1.0, f64::NAN] {
        assert!(counter.change(MetricChange::Add(wrong)).is_err());
    }
    assert_eq!(counter.value(), Ok(0.0));
    assert!(histogram.value().is_err());
}
