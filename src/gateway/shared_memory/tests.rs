//! Regions over real objects in `/dev/shm`, and clients that change them meanwhile.

use std::{fs, path::PathBuf, sync::Arc};

use super::*;
use crate::size_error::InputContext;
use troupe_base::{
    budget::Charge,
    error::ErrorKind,
    tensor::{DataType, SegmentPool, Shape},
};

/// An object of these bytes; it is removed when this is dropped.
struct Object(String);

impl Object {
    fn new(test: &str, bytes: &[u8]) -> Object {
        let object = Object(format!("troupe_test_{}_{test}", std::process::id()));
        fs::write(object.path(), bytes).unwrap();
        object
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/dev/shm").join(&self.0)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    fn resize(&self, size: u64) {
        fs::OpenOptions::new().write(true).open(self.path()).unwrap().set_len(size).unwrap();
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path());
    }
}

fn regions() -> Arc<SharedMemory> {
    SharedMemory::new(SegmentPool::new(0))
}

fn range(offset: u64, byte_size: u64) -> RegionRange<'static> {
    RegionRange { region: "r", offset, byte_size }
}

#[track_caller]
fn fails<T: std::fmt::Debug>(result: troupe_base::error::Result<T>, kind: ErrorKind, text: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
}

#[test]
fn regions_are_registered_listed_and_forgotten() {
    let (object, regions) = (Object::new("listed", &[0; 64]), regions());
    let key = format!("/{}", object.0);
    regions.register("b", &key, 0, 64).unwrap();
    regions.register("a", &object.0, 3, 61).unwrap();
    let already = "shared memory region 'a' already in manager";
    fails(regions.register("a", &key, 0, 1), ErrorKind::AlreadyExists, already);
    let listed = |name| {
        let found = regions.status(name).unwrap();
        let parts = found.iter().map(|it| (it.name.clone(), it.key.clone(), it.offset));
        parts.collect::<Vec<_>>()
    };
    let (a, b) = (("a".to_owned(), object.0.clone(), 3), ("b".to_owned(), key, 0));
    assert_eq!(listed(""), [a.clone(), b.clone()]);
    assert_eq!(listed("b"), [b]);
    let unknown = "Unable to find system shared memory region: 'c'";
    fails(regions.status("c"), ErrorKind::NotFound, unknown);
    let other =
        "The region named 'a' is registered as system shared memory, not CUDA shared memory";
    fails(cuda::status(Some(&regions), "a"), ErrorKind::NotFound, other);
    regions.unregister("c");
    regions.unregister("b");
    assert_eq!(listed(""), [a]);
    regions.unregister("");
    assert_eq!(listed(""), []);
}

#[test]
fn what_is_no_part_of_a_plain_object_cannot_be_registered() {
    let (object, regions) = (Object::new("parts", &[0; 64]), regions());
    let register = |key: &str, offset, size| regions.register("r", key, offset, size);
    let invalid = "failed to register shared memory region 'r': invalid args";
    for (offset, size) in [(0, 65), (64, 1), (1, 64), (u64::MAX, 1), (1, u64::MAX), (0, 0)] {
        fails(register(&object.0, offset, size), ErrorKind::InvalidArg, invalid);
    }
    let special = |name: &str| format!("{}_{name}", object.0);
    let path = |name: &str| PathBuf::from("/dev/shm").join(special(name));
    fs::create_dir(path("folder")).unwrap();
    std::os::unix::fs::symlink(object.path(), path("link")).unwrap();
    std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    for name in ["folder", "link", "socket", "fifo", "nothing"] {
        let key = special(name);
        let text = format!("Unable to open shared memory region: '{key}'");
        fails(register(&key, 0, 1), ErrorKind::Internal, &text);
    }
    fs::remove_dir(path("folder")).unwrap();
    ["link", "socket", "fifo"].iter().for_each(|name| fs::remove_file(path(name)).unwrap());
    assert!(regions.status("").unwrap().is_empty());
}

#[test]
fn a_request_stays_within_its_region() {
    let (object, regions) = (Object::new("within", &[0; 64]), regions());
    fails(
        regions.slice(&range(0, 1)),
        ErrorKind::NotFound,
        "Unable to find shared memory region: 'r'",
    );
    regions.register("r", &object.0, 16, 32).unwrap();
    for (offset, size, text) in [
        (32, 0, "Invalid offset for shared memory region: 'r'"),
        (u64::MAX, 1, "Invalid offset for shared memory region: 'r'"),
        (0, 33, "Invalid offset + byte size for shared memory region: 'r'"),
        (31, 2, "Invalid offset + byte size for shared memory region: 'r'"),
        (
            8,
            u64::MAX - 7,
            "Integer overflow detected: byte_size (18446744073709551608) + offset (8) exceeds \
             maximum value (18446744073709551615) for region 'r'",
        ),
    ] {
        fails(regions.slice(&range(offset, size)), ErrorKind::InvalidArg, text);
    }
    for (offset, size) in [(0, 32), (31, 1), (0, 0)] {
        assert_eq!(regions.slice(&range(offset, size)).unwrap().size() as u64, size);
    }
}

fn access(regions: &Arc<SharedMemory>, is_for_workers: bool) -> RegionAccess {
    RegionAccess::of(regions.clone(), is_for_workers)
}

const ABOUT: InputContext<'_> = InputContext { input: "x", model: "m", id: "" };

#[test]
fn inputs_are_copied_once_to_where_their_model_reads() {
    let bytes: Vec<u8> = (0..1 << 18).map(|it| (it % 251) as u8).collect();
    let (object, regions) = (Object::new("copied", &bytes), regions());
    regions.register("r", &object.0, 4, (1 << 18) - 4).unwrap();
    for (is_for_workers, size, is_in_segment) in
        [(true, 1 << 17, true), (true, 64, false), (false, 1 << 17, false)]
    {
        let slice = regions.slice(&range(8, size)).unwrap();
        let shape = Shape::from_slice(&[size as i64 / 4]);
        let tensor = access(&regions, is_for_workers).read(
            &slice,
            DataType::Fp32,
            shape,
            &ABOUT,
            &Charge::default(),
        );
        let tensor = tensor.unwrap();
        // What the client does now does not matter any more.
        assert_eq!(tensor.data()[..], bytes[12..12 + size as usize]);
        assert_eq!(tensor.segment().is_some(), is_in_segment);
    }
    let slice = regions.slice(&range(0, 64)).unwrap();
    for (dtype, shape, text) in [
        (
            DataType::Fp32,
            [15],
            "[request id: <id_unknown>] input byte size mismatch for input 'x' for model 'm'. \
             Expected 60, got 64",
        ),
        (
            DataType::Fp32,
            [-1],
            "[request id: <id_unknown>] invalid shape for input 'x': shape [-1] contains one or \
             more invalid dimensions",
        ),
        (
            DataType::Bytes,
            [1],
            "[request id: <id_unknown>] incomplete string data for inference input 'x' for model \
             'm', expecting string of length 117835012 but only 60 bytes available.",
        ),
    ] {
        let shape = Shape::from_slice(&shape);
        let read = access(&regions, true).read(&slice, dtype, shape, &ABOUT, &Charge::default());
        fails(read, ErrorKind::InvalidArg, text);
    }
}

#[test]
fn an_object_that_shrinks_is_an_error_and_never_grows_again() {
    let (object, regions) = (Object::new("shrinks", &[7; 1 << 17]), regions());
    regions.register("r", &object.0, 0, 1 << 17).unwrap();
    let slice = regions.slice(&range(0, 1 << 17)).unwrap();
    let text = "the object of shared memory region 'r' is shorter than when it was registered";
    for size in [0, 4096, (1 << 17) - 1] {
        object.resize(size);
        for is_for_workers in [true, false] {
            let shape = Shape::from_slice(&[1 << 17]);
            let read = access(&regions, is_for_workers).read(
                &slice,
                DataType::Uint8,
                shape,
                &ABOUT,
                &Charge::default(),
            );
            fails(read, ErrorKind::InvalidArg, text);
        }
        fails(slice.write(&[1; 1 << 17]), ErrorKind::InvalidArg, text);
        assert_eq!(object.bytes().len() as u64, size);
    }
    // Removed, it is still there for whoever has it open.
    object.resize(1 << 17);
    fs::remove_file(object.path()).unwrap();
    assert_eq!(slice.read().unwrap(), vec![0; 1 << 17]);
    slice.write(&[1; 1 << 17]).unwrap();
    assert_eq!(slice.read().unwrap(), vec![1; 1 << 17]);
}

#[test]
fn outputs_are_written_where_there_is_room() {
    let (object, regions) = (Object::new("written", &[7; 16]), regions());
    regions.register("r", &object.0, 4, 12).unwrap();
    let slice = regions.slice(&range(4, 4)).unwrap();
    let tensor = |size: usize| {
        let data = bytes::Bytes::from(vec![1; size]);
        troupe_base::tensor::Tensor::new(DataType::Uint8, Shape::from_slice(&[size as i64]), data)
    };
    write("y", &tensor(3).unwrap(), &slice).unwrap();
    assert_eq!(object.bytes(), [7, 7, 7, 7, 7, 7, 7, 7, 1, 1, 1, 7, 7, 7, 7, 7]);
    let text = "shared memory size specified with the request for output 'y' (4 bytes) should be \
                at least 5 bytes to hold the results";
    fails(write("y", &tensor(5).unwrap(), &slice), ErrorKind::Internal, text);
}

#[test]
fn a_region_in_use_is_forgotten_when_its_last_use_ends() {
    let (object, regions) = (Object::new("used", &[7; 16]), regions());
    let register = || regions.register("r", &object.0, 0, 16);
    let names = || regions.status("").unwrap().len();
    register().unwrap();
    let first = regions.slice(&range(0, 4)).unwrap();
    regions.unregister("r");
    assert_eq!(names(), 1);
    assert_eq!(register().unwrap_err().kind(), ErrorKind::AlreadyExists);
    // Requests find it as long as it is there, and hold it.
    let second = regions.slice(&range(0, 4)).unwrap();
    let third = second.clone();
    drop((first, second));
    assert_eq!((third.read().unwrap(), names()), (vec![7; 4], 1));
    drop(third);
    assert_eq!(names(), 0);
    register().unwrap();
    drop(regions.slice(&range(0, 4)).unwrap());
    assert_eq!(names(), 1);
}

#[test]
fn there_are_no_more_regions_than_there_may_be() {
    let object = Object::new("many", &[7; 16]);
    let regions = SharedMemory::with_most(SegmentPool::new(0), 2);
    let long = "n".repeat(1025);
    for (name, text) in [
        ("", "'region name' is necessary to register system shared memory region"),
        (&*long, "the name of a shared memory region has 1025 bytes, of at most 1024"),
    ] {
        fails(regions.register(name, &object.0, 0, 1), ErrorKind::InvalidArg, text);
    }
    regions.register("a", &object.0, 0, 1).unwrap();
    regions.register("b", &object.0, 0, 1).unwrap();
    let full =
        "cannot register shared memory region 'c': 2 are registered, and there may be no more";
    fails(regions.register("c", &object.0, 0, 1), ErrorKind::Unavailable, full);
    regions.unregister("a");
    regions.register("c", &object.0, 0, 1).unwrap();
}
