//! The command: serves, checks a repository, or draws an ensemble.

use std::process::ExitCode;

use clap::Parser;
use troupe::{
    log,
    options::{self, Command, Options},
    server,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(flag) = options::not_yet(&arguments) {
        return fail(&format!("`--{flag}` is not supported yet"));
    }
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Help and version are no mistakes.
            let code = if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            // Nothing can be done about a closed terminal.
            let _ = error.print();
            return code;
        }
    };
    match options.command {
        None => {
            if let Some(problem) = options.serve.problem() {
                return fail(&problem);
            }
            log::start(&options.serve.log);
            server::run(options.serve)
        }
        Some(Command::Check { .. } | Command::Graph { .. }) => fail("not wired yet"),
    }
}

fn fail(text: &str) -> ExitCode {
    eprintln!("{text}");
    ExitCode::FAILURE
}
