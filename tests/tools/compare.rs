//! The benchmark `benches/compare`: what its reports make of numbers, tested in its own language.

use std::{path::Path, process::Command};

#[test]
fn the_reports_of_the_benchmark_are_right() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let output = Command::new(python)
        .args(["-B", "-m", "unittest"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/compare"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("\nOK"), "{said}");
}
