//! Reads the command line as tritonserver's parser does: abbreviations, harmless values of flags
//! that are not built, and its words for what is wrong.

use std::{
    error::Error as _,
    num::{IntErrorKind, ParseIntError},
    path::Path,
};

use clap::{
    CommandFactory, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{
    Options,
    compatibility::{NOT_YET, is_harmless},
};

/// Flags that the command does not list: Triton's other name of `--model-repository`, and clap's.
const OTHER_NAMES: [&str; 3] = ["model-store", "help", "version"];

/// What other servers call a flag, and what it is here.
const FOREIGN_FLAGS: [(&str, &str); 9] = [
    ("--host", "--http-address"),
    ("--bind", "--http-address"),
    ("--port", "--http-port"),
    ("-p", "--http-port"),
    ("--reload", "--watch"),
    ("--log-level", "--log-verbose"),
    ("--workers", INSTANCES),
    ("-w", INSTANCES),
    ("--num-workers", INSTANCES),
];
const INSTANCES: &str = "@model(instances=N), or instance_group in the config of a model";
const SEE_HELP: &str = "For more information, try '--help'.";

/// Why there is nothing to run.
#[derive(Debug)]
pub struct NoOptions {
    /// What is to be printed.
    pub text: String,
    /// Help and version are no mistakes.
    pub is_mistake: bool,
}

impl NoOptions {
    fn mistake(text: String) -> NoOptions {
        NoOptions { text, is_mistake: true }
    }
}

/// Reads what stands behind the program's name.
pub fn parse(arguments: &[String]) -> Result<Options, NoOptions> {
    let is_server = arguments.first().is_none_or(|it| it.starts_with('-'));
    let arguments = match is_server {
        true => completed(arguments).map_err(NoOptions::mistake)?,
        false => arguments.to_vec(),
    };
    let is_new = arguments.first().is_some_and(|it| it == "new");
    let program = std::iter::once("troupe".to_owned());
    Options::try_parse_from(program.chain(arguments)).map_err(|error| match error.use_stderr() {
        false => NoOptions { text: error.render().to_string(), is_mistake: false },
        true => NoOptions::mistake(describe(&error, is_new)),
    })
}

/// The arguments with whole names, without those that ask for nothing.
fn completed(arguments: &[String]) -> Result<Vec<String>, String> {
    let command = Options::command();
    let built = command.get_arguments().flat_map(|it| it.get_long_and_visible_aliases());
    let mut names: Vec<&str> = built.flatten().collect();
    names.extend(OTHER_NAMES);
    let mut all = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let flag = argument.split('=').next().unwrap_or_default();
        if let Some((flag, ours)) = FOREIGN_FLAGS.iter().find(|it| it.0 == flag) {
            let text = format!("troupe: unrecognized option '{flag}'; here it is {ours}");
            return Err(format!("{text}\n{SEE_HELP}"));
        }
        let Some(flag) = argument.strip_prefix("--").filter(|it| !it.is_empty()) else {
            all.push(argument.clone());
            continue;
        };
        let (given, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        let name = whole_name(given, &names)?;
        if NOT_YET.contains(&name) {
            let value = value.or_else(|| rest.next().map(String::as_str));
            if !is_harmless(name, value.unwrap_or_default()) {
                return Err(format!("`--{name}` is not supported yet"));
            }
        } else {
            let value = value.map_or_else(String::new, |it| format!("={it}"));
            all.push(format!("--{name}{value}"));
        }
    }
    Ok(all)
}

/// The flag that is meant, if no other begins like it.
fn whole_name<'a>(given: &'a str, names: &[&'a str]) -> Result<&'a str, String> {
    let all = || names.iter().chain(NOT_YET).copied();
    if all().any(|it| it == given) {
        return Ok(given);
    }
    let mut meant: Vec<&str> = all().filter(|it| it.starts_with(given)).collect();
    meant.sort_unstable();
    meant.dedup();
    match meant[..] {
        [] => Ok(given),
        [one] => Ok(one),
        _ => {
            let possible: Vec<String> = meant.iter().map(|it| format!("'--{it}'")).collect();
            let possible = possible.join(" ");
            Err(format!("troupe: option '--{given}' is ambiguous; possibilities: {possible}"))
        }
    }
}

/// What to say of a word that is no command; nothing where a command that is nearly called so says
/// more.
fn unknown_command(word: &str, is_near: bool, is_new: bool) -> Option<String> {
    if is_new && !is_near {
        return Some(format!(
            "'{word}' is neither model, ensemble nor pipeline; to write a model: `troupe new model \
             {word}`"
        ));
    }
    if Path::new(word).is_dir() {
        return Some(format!(
            "'{word}' is no command but a folder; to serve it: `troupe --model-repository={word}`"
        ));
    }
    if word.contains('/') {
        return Some(format!(
            "'{word}' is neither a command nor a folder; to serve one: `troupe \
             --model-repository=DIR`"
        ));
    }
    (!is_near)
        .then(|| format!("there is no command '{word}'; to serve: `troupe --model-repository=DIR`"))
}

/// The error in Triton's words where it has some.
fn describe(error: &clap::Error, is_new: bool) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let help = SEE_HELP;
    if let Some(word) = text(ContextKind::InvalidSubcommand)
        && error.kind() == ErrorKind::ArgumentConflict
        && Options::command().find_subcommand(word).is_none()
    {
        return format!("troupe: unexpected argument '{word}' behind the flags\n{help}");
    }
    if error.kind() == ErrorKind::InvalidSubcommand {
        let word = text(ContextKind::InvalidSubcommand).unwrap_or_default();
        let is_near = error.get(ContextKind::SuggestedSubcommand).is_some();
        if let Some(text) = unknown_command(word, is_near, is_new) {
            return format!("troupe: {text}\n{help}");
        }
    }
    match (error.kind(), text(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(flag)) if flag.starts_with("--") => {
            let meant = text(ContextKind::SuggestedArg);
            let meant = meant.map_or_else(String::new, |it| format!("; did you mean '{it}'?"));
            format!("troupe: unrecognized option '{flag}'{meant}\n{help}")
        }
        (ErrorKind::ValueValidation, Some(argument)) => {
            let flag = argument.split(' ').next().unwrap_or(argument);
            let value = text(ContextKind::InvalidValue).unwrap_or_default();
            format!("Bad option: \"{flag}\".\n{}\n\n{help}", reason(error, value))
        }
        _ => error.render().to_string(),
    }
}

fn reason(error: &clap::Error, value: &str) -> String {
    let Some(source) = error.source() else { return format!("Invalid option value. Got {value}") };
    let text = source.to_string();
    match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => {
            format!("Provided option value is out of bound. Got {value}")
        }
        Some(_) => format!("Invalid option value. Got {value}"),
        // The words of clap for numbers out of a range.
        None if text.contains(" is not in ") => {
            format!("Provided option value is out of bound. Got {value}: {text}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ControlMode;

    fn read(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        parse(&words).map_err(|it| it.text)
    }

    #[test]
    fn abbreviations_and_values_behind_a_blank_are_taken() {
        let options = read("--http-p 7 --model-control explicit --strict-readi=OFF").unwrap().serve;
        assert_eq!(options.listeners.http_port, 7);
        assert_eq!(options.model_control_mode, ControlMode::Explicit);
        assert!(!options.strict_readiness);
        let options = read("--model-st=a --model-control-mode=EXPLICIT --exit-timeout-secs=-1");
        let options = options.unwrap().serve;
        assert_eq!(options.model_repository, [std::path::PathBuf::from("a")]);
        assert_eq!(options.exit_timeout_secs, 0);
        assert_eq!(read("--model-load-thread-count=0").unwrap().serve.model_load_thread_count, 1);
    }

    #[test]
    fn the_last_of_a_flag_that_is_given_twice_counts_and_lists_grow() {
        let line = "--http-port=7 --id a --http-port=8 --id=b --access-log --access-log \
                    --model-repository=a --model-repository=b";
        let options = read(line).unwrap().serve;
        assert_eq!((options.listeners.http_port, &*options.id), (8, "b"));
        assert_eq!(options.model_repository, ["a", "b"].map(std::path::PathBuf::from));
    }

    #[test]
    fn flags_that_ask_for_nothing_are_harmless() {
        let line = "--rate-limit=off --model-namespacing=False --allow-sagemaker false \
                    --allow-vertex-ai=0 --repository-poll-secs=15 --response-cache-byte-size=0 \
                    --sagemaker-port=8080 --http-port 9";
        assert_eq!(read(line).unwrap().serve.listeners.http_port, 9);
        for (line, expected) in [
            ("--model-namesp=true", "`--model-namespacing` is not supported yet"),
            ("--allow-sagemaker", "`--allow-sagemaker` is not supported yet"),
        ] {
            assert_eq!(read(line).unwrap_err(), expected);
        }
    }

    #[test]
    fn mistakes_are_told_in_tritons_words() {
        for (line, expected) in [
            ("--nonsense=1", "troupe: unrecognized option '--nonsense'"),
            (
                "--http-use-sll=true",
                "unrecognized option '--http-use-sll'; did you mean '--http-use-ssl'?",
            ),
            ("serve", "there is no command 'serve'; to serve: `troupe --model-repository=DIR`"),
            ("--host=0.0.0.0", "unrecognized option '--host'; here it is --http-address\nFor more"),
            ("--model-repository=a -p 80", "unrecognized option '-p'; here it is --http-port"),
            ("--reload", "unrecognized option '--reload'; here it is --watch"),
            ("--workers 4", "here it is @model(instances=N), or instance_group in the config"),
            ("new shout2", "to write a model: `troupe new model shout2`"),
            ("new modle shout2", "a similar subcommand exists: 'model'"),
            ("/", "'/' is no command but a folder; to serve it: `troupe --model-repository=/`"),
            ("./no/such", "'./no/such' is neither a command nor a folder; to serve one: `troupe"),
            ("benhc m", "a similar subcommand exists: 'bench'"),
            ("--model-control-mode=explict", "expected `none` or `explicit`, got `explict`"),
            ("--model-repository a stray", "troupe: unexpected argument 'stray' behind the flags"),
            ("--http-port=7 infer m", "the subcommand 'infer' cannot be used with"),
            ("--http-port=x", "Bad option: \"--http-port\".\nInvalid option value. Got x"),
            (
                "--http-port=99999999999999999999999",
                "Bad option: \"--http-port\".\nProvided option value is out of bound. Got 9999",
            ),
            ("--http-port=70000", "Provided option value is out of bound. Got 70000"),
            (
                "--allow-http=maybe",
                "Bad option: \"--allow-http\".\ninvalid value for bool option: maybe",
            ),
            ("--http-restricted-api=x:k=v", "unknown restricted api 'x' "),
            ("--allow-h=maybe", "Bad option: \"--allow-http\""),
            (
                "--allow-g=true",
                "option '--allow-g' is ambiguous; possibilities: '--allow-gpu-metrics' '--allow-grpc'",
            ),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert!(parse(&["--help".to_owned()]).is_err_and(|it| !it.is_mistake));
    }

    #[test]
    fn values_of_restricted_apis_are_in_no_error() {
        let error = read("--http-restricted-api=x:key=hunter2").unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
