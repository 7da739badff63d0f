//! What `troupe check` says.

use std::fs;

use super::Fixture;
use crate::check;

fn problems(fixture: &Fixture) -> Vec<String> {
    let folder = fixture.models();
    let found = check(&fixture.settings()).problems;
    found.iter().map(|it| it.replace(folder.to_str().unwrap(), "")).collect()
}

#[test]
fn every_problem_of_a_repository_has_its_place() {
    let fixture = Fixture::new(
        "check",
        &[
            "ok backend=native",
            "strange",
            "wide backend=native dims=4,4",
            "e: ok nope",
            "f: ok/2 wide",
            "g: g",
            "h: ok typo",
        ],
    );
    fs::create_dir_all(fixture.models().join("empty")).unwrap();
    fs::create_dir_all(fixture.models().join("typo/1")).unwrap();
    fs::write(fixture.models().join("typo/config.pbtxt"), "backend: \"native\"\nmax_batch: 3")
        .unwrap();
    let found = problems(&fixture);
    let expected = [
        "/empty: Invalid model name: Could not determine backend for model 'empty'",
        "/ok/config.pbtxt: model 'ok' has backend 'native' but no parameter 'op', expected one of: ",
        "/strange/config.pbtxt:1:1: unable to find backend library for backend 'fake', try",
        "/typo/config.pbtxt:2:1: ",
        "/wide/config.pbtxt: model 'wide' has backend 'native' but no parameter 'op', ",
        "/e/config.pbtxt:6:8: ensemble e contains models that are not available or ambiguous: nope",
        "/f/config.pbtxt:5:8: ensemble 'f' depends on 'ok' whose required version 2 is not loaded.",
        "/f/config.pbtxt:6:45: in ensemble f, ensemble tensor t1: inconsistent shape: [4] is inferred",
        "/f/config.pbtxt:6:80: in ensemble f, ensemble tensor Y: inconsistent shape: [4] is inferred",
        "/g/config.pbtxt:4:1: circular dependency between ensembles: g -> ... -> g -> g: g runs g",
    ];
    let is_as_expected = found.iter().zip(expected).all(|(it, expected)| it.starts_with(expected));
    assert!(is_as_expected && found.len() == expected.len(), "{found:#?}");
}

#[test]
fn a_folder_that_is_nearly_called_as_a_version_is_told_of_beside_one_that_is() {
    let fixture = Fixture::new("check-version", &["m backend=native"]);
    for folder in ["v2", "notes", "version_3"] {
        fs::create_dir_all(fixture.models().join("m").join(folder)).unwrap();
    }
    let warnings = || check(&fixture.settings()).warnings;
    assert_eq!(warnings(), [""; 0]);
    fs::write(fixture.models().join("m/v2/model.py"), "").unwrap();
    let expected = format!(
        "'{}' is not read: a version's folder has a number for its name, as '2'",
        fixture.models().join("m/v2").display()
    );
    assert_eq!(warnings(), [expected]);
}

#[test]
fn an_ensemble_of_another_name_than_its_folder_is_told_that_only() {
    let fixture = Fixture::new("check-name", &[]);
    let folder = fixture.models().join("e");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.pbtxt"), "name: \"E\" platform: \"ensemble\"").unwrap();
    let found = problems(&fixture);
    let expected = "/e/config.pbtxt:1:1: unexpected directory name 'e' for model 'E', directory \
                    name must equal model name: rename the folder or the name";
    assert_eq!(found, [expected]);
}

#[test]
fn a_repository_that_is_not_there_is_a_problem() {
    let fixture = Fixture::new("check-nothing", &[]);
    fs::remove_dir(fixture.models()).unwrap();
    let found = problems(&fixture);
    assert!(found[0].starts_with("failed to read model repository '': "), "{found:?}");
}
