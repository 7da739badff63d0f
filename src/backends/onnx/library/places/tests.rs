//! Names, folders and listings of libraries.

use super::*;

#[test]
fn a_library_is_known_by_its_name() {
    for (name, expected) in [
        ("libonnxruntime.so", Some(vec![])),
        ("libonnxruntime.so.1.31.1", Some(vec![1, 31, 1])),
        ("libonnxruntime.1.31.1.dylib", Some(vec![1, 31, 1])),
        ("libonnxruntime.dylib", Some(vec![])),
        ("libonnxruntime_providers_shared.so", None),
        ("libonnxruntime.so.1.x", None),
        ("libonnxruntime4j_jni.so", None),
        ("onnxruntime.so", None),
    ] {
        assert_eq!(version(Path::new(name)), expected, "{name}");
    }
}

#[test]
fn the_cache_of_the_system_names_files() {
    let listing = "2 libs found in cache `/etc/ld.so.cache'\n\
                   \tlibonnxruntime.so.1.21 (libc6,x86-64) => /lib/x/libonnxruntime.so.1.21\n\
                   \tlibonnx.so.1 (libc6,x86-64) => /lib/x/libonnx.so.1\n";
    assert_eq!(in_cache(listing), [PathBuf::from("/lib/x/libonnxruntime.so.1.21")]);
}

#[test]
fn a_folder_stands_for_its_newest_library() {
    let folder = std::env::temp_dir().join(format!("troupe-onnx-named-{}", std::process::id()));
    fs::create_dir_all(folder.join("lib")).unwrap();
    let nothing = named(&folder).unwrap_err();
    assert!(nothing.ends_with("its lib or its capi"), "{nothing}");
    for name in ["libonnxruntime.so.1.9.0", "libonnxruntime.so.1.20.0", "other.so"] {
        fs::write(folder.join("lib").join(name), "").unwrap();
    }
    assert_eq!(named(&folder).unwrap(), folder.join("lib/libonnxruntime.so.1.20.0"));
    let file = folder.join("lib/other.so");
    assert_eq!(named(&file).unwrap(), file);
    assert_eq!(named(Path::new("libnever.so")).unwrap(), Path::new("libnever.so"));
    assert!(named(&folder.join("none.so")).unwrap_err().ends_with("none.so' does not exist"));
    fs::remove_dir_all(folder).unwrap();
}
