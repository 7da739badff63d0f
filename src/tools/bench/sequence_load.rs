//! Whether requests are sent as sequences, and which: by the models that take part.

use super::{load::SequenceLoad, members::Member};
use troupe_options::BenchArguments;

/// Requests of a sequence where nobody says how many.
const DEFAULT_LENGTH: u32 = 20;

/// How to send the requests of a model with these members; `None` if they are of no sequence.
///
/// # Errors
/// When what was asked for does not go with the model.
pub(super) fn sequence_load(
    arguments: &BenchArguments,
    members: &[Member],
) -> Result<Option<SequenceLoad>, String> {
    let (name, rows) = (&arguments.model, arguments.batch_size);
    let wanting = members.iter().filter(|it| it.sequences.is_some_and(|it| !it.is_iterative));
    let wanting: Vec<&Member> = wanting.collect();
    let Some(first) = wanting.first() else {
        return match arguments.sequence_length {
            Some(length) => Err(format!(
                "--sequence-length {length}: neither model `{name}` nor a step of it keeps the requests \
                 of a sequence together (sequence_batching)"
            )),
            None => Ok(None),
        };
    };
    let wants = |is_text| {
        let has_text_ids = |it: &&&Member| it.sequences.and_then(|it| it.has_text_ids);
        wanting.iter().find(|it| has_text_ids(it) == Some(is_text))
    };
    let (text, number) = (wants(true), wants(false));
    if let (Some(text), Some(number)) = (text, number) {
        return Err(format!(
            "of model `{name}` the steps `{}` and `{}` want ids of sequences as text and as number: \
             one request cannot have both",
            text.key.name, number.key.name
        ));
    }
    if 1 < rows {
        let (step, of) = (&first.key.name, "(sequence_batching)");
        return Err(format!("--batch-size {rows}: `{step}` takes one row of a request {of}"));
    }
    let length = arguments.sequence_length.unwrap_or(DEFAULT_LENGTH);
    Ok(Some(SequenceLoad { length, has_text_ids: text.is_some() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{counts::ModelKey, member_scheduling::MemberSequences};

    #[test]
    fn sequences_are_sent_to_whoever_has_some() {
        let member = |name: &str, has_text_ids, is_iterative| Member {
            key: ModelKey { name: name.to_owned(), version: "1".to_owned() },
            sequences: Some(MemberSequences {
                slots: 4,
                is_direct: true,
                is_iterative,
                has_text_ids,
            }),
            ..Member::default()
        };
        let (plain, number) = (Member::default(), member("n", Some(false), false));
        let (text, iterative) = (member("t", Some(true), false), member("i", Some(true), true));
        let ask = |flags: &[&str], members: &[&Member]| {
            let words = [&["troupe", "bench", "m"], flags].concat();
            let options = <troupe_options::Options as clap::Parser>::try_parse_from(words).unwrap();
            let Some(troupe_options::Command::Bench(arguments)) = options.command else { panic!() };
            let members: Vec<Member> = members.iter().map(|it| (*it).clone()).collect();
            let load = sequence_load(&arguments, &members);
            load.map(|it| it.map(|it| (it.length, it.has_text_ids)))
        };
        assert_eq!(ask(&[], &[&plain]), Ok(None));
        assert_eq!(ask(&[], &[&plain, &iterative]), Ok(None));
        let either = member("e", None, false);
        assert_eq!(ask(&[], &[&plain, &number, &either]), Ok(Some((20, false))));
        assert_eq!(ask(&[], &[&either, &text]), Ok(Some((20, true))));
        assert_eq!(ask(&[], &[&either]), Ok(Some((20, false))));
        assert_eq!(ask(&["--sequence-length=5"], &[&text, &iterative]), Ok(Some((5, true))));
        for (flags, members, part) in [
            (&["--sequence-length=5"][..], &[&plain, &iterative][..], "nor a step of it keeps"),
            (&[], &[&number, &text], "as text and as number"),
            (&["-b", "2"], &[&number], "`n` takes one row of a request"),
        ] {
            let why = ask(flags, members).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
