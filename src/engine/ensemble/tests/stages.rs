//! Which tensors may meet behind decoupled steps, and what an ensemble says of itself.

use super::*;

const ONE: (&str, &str) = ("x:-1", "y:-1");

/// Loads an ensemble of decoupled models, `d` and `split`, and of others.
fn check(io: (&str, &str), steps: &[&str], expected: Result<bool, &[&str]>) {
    with_fixture(|mut fixture| async move {
        let _asked = [
            fixture.fake_decoupled("d", ONE),
            fixture.fake("s", ONE),
            fixture.fake("both", ("a:-1 b:-1", "y:-1")),
            fixture.faked(
                "split",
                "model_transaction_policy { decoupled: true }",
                ("x:-1", "y:-1 z:-1"),
            ),
        ];
        match fixture.ensemble("m", 0, io, steps).await {
            Ok(()) => assert_eq!(Ok(fixture.models["m"].config.decoupled), expected),
            Err(problems) => {
                let text = |it: &String| it.split(" (config.pbtxt:").next().unwrap().to_owned();
                let problems: Vec<_> = problems.iter().map(text).collect();
                assert_eq!(
                    Err(problems.iter().map(String::as_str).collect::<Vec<_>>()),
                    expected.map_err(<[&str]>::to_vec)
                );
            }
        }
    });
}

#[test]
fn tensors_of_different_decoupled_models_do_not_meet() {
    let text = |n: &str| {
        format!(
            "in ensemble m, step of model '{n}' receives inputs originated from different \
             decoupled models"
        )
    };
    let (both, m) = (text("both"), text("m"));
    let one = ("IN:-1", "OUT:-1");
    check(one, &["s: x=IN -> y=OUT"], Ok(false));
    check(one, &["s: x=IN -> y=a", "d: x=a -> y=b", "s: x=b -> y=OUT"], Ok(true));
    check(one, &["split: x=IN -> y=a z=b", "s: x=a -> y=c", "both: a=c b=b -> y=OUT"], Ok(true));
    // With what came before.
    check(one, &["d: x=IN -> y=a", "both: a=IN b=a -> y=OUT"], Err(&[&both]));
    // With another branch; whoever reads what this step makes is not at fault.
    let steps = ["d: x=IN -> y=a", "d: x=IN -> y=b", "both: a=a b=b -> y=c", "s: x=c -> y=OUT"];
    check(one, &steps, Err(&[&both]));
    // Decoupled in a row are fine, their ends are not of one kind.
    check(("IN:-1", "a:-1 OUT:-1"), &["d: x=IN -> y=a", "d: x=a -> y=OUT"], Err(&[&m]));
    check(("IN:-1", "a:-1 OUT:-1"), &["s: x=IN -> y=a", "d: x=a -> y=OUT"], Err(&[&m]));
}

#[test]
fn whether_an_ensemble_is_decoupled_follows_from_its_steps_whatever_is_written() {
    let text = "name: 'm' platform: 'ensemble' model_transaction_policy { decoupled: true } \
                input { name: 'IN' data_type: TYPE_INT32 dims: 1 } \
                output { name: 'OUT' data_type: TYPE_INT32 dims: 1 } \
                ensemble_scheduling { step { model_name: 's' input_map { key: 'x' value: 'IN' } \
                output_map { key: 'y' value: 'OUT' } } }";
    let written = config(text);
    assert!(written.decoupled);
    let plain = config(&text.replace("decoupled: true", "decoupled: false"));
    let shown = |it: &ModelConfig| it.proto.model_transaction_policy.map(|it| it.decoupled);
    let made = completed(&written, [&*plain].into_iter());
    assert_eq!((made.decoupled, shown(&made)), (false, Some(false)));
    let made = completed(&plain, [&*plain, &*written].into_iter());
    assert_eq!((made.decoupled, shown(&made)), (true, Some(true)));
}
