//! Keys: the names of POSIX shared memory objects, and which of them a client may register.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags};

use troupe_base::error::{Error, Result};

/// The folder whose files `shm_open` opens on Linux.
const FOLDER: &str = "/dev/shm";
/// Longest name of a file, in bytes.
const MAX_KEY_BYTES: usize = 255;
/// Objects of these names belong to programs, not to clients: those of Triton's Python backend,
/// and POSIX semaphores.
const RESERVED_PREFIXES: &[&str] = &["triton_python_backend_shm_region_", "sem."];

/// The object's name as a file's: leading slashes do not count, as for `shm_open`. `region` is only
/// for the errors.
fn file_name<'a>(region: &str, key: &'a str) -> Result<&'a str> {
    let name = key.trim_start_matches('/');
    let is_wrong =
        matches!(name, "" | "." | "..") || MAX_KEY_BYTES < name.len() || name.contains(['/', '\0']);
    if is_wrong {
        return Err(Error::invalid(format!(
            "cannot register shared memory region '{region}' - invalid shm key '{key}'"
        )));
    }
    if let Some(prefix) = RESERVED_PREFIXES.iter().find(|it| name.starts_with(**it)) {
        return Err(Error::invalid(format!(
            "cannot register shared memory region '{region}' with key '{key}' as the key contains \
             the reserved prefix '{prefix}'"
        )));
    }
    Ok(name)
}

/// Opens the object of this key for reading and writing; anything but a plain object is refused.
pub(super) fn open(region: &str, key: &str) -> Result<OwnedFd> {
    let path = format!("{FOLDER}/{}", file_name(region, key)?);
    let unable = |_| Error::internal(format!("Unable to open shared memory region: '{key}'"));
    // Neither a FIFO without a reader nor a terminal holds up the thread or changes anything.
    let flags =
        OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(unable)?;
    let mode = rustix::fs::fstat(&file).map_err(unable)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::RegularFile {
        return Err(unable(rustix::io::Errno::INVAL));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_names_of_plain_objects() {
        let long = "k".repeat(256);
        for key in ["", "/", "///", ".", "..", "/..", "../etc/passwd", "a/b", "a\0b", &long] {
            let error = file_name("r", key).unwrap_err().to_string();
            let expected =
                format!("cannot register shared memory region 'r' - invalid shm key '{key}'");
            assert_eq!(error, expected);
        }
        for (key, name) in [("x", "x"), ("/x", "x"), ("//x", "x"), ("/..x", "..x"), ("a.b", "a.b")]
        {
            assert_eq!(file_name("r", key), Ok(name));
        }
    }

    #[test]
    fn reserved_prefixes_cannot_be_hidden_behind_slashes() {
        for slashes in ["", "/", "///"] {
            for prefix in RESERVED_PREFIXES {
                let key = format!("{slashes}{prefix}1");
                let error = file_name("r", &key).unwrap_err().to_string();
                let expected = format!(
                    "cannot register shared memory region 'r' with key '{key}' as the key \
                     contains the reserved prefix '{prefix}'"
                );
                assert_eq!(error, expected);
            }
        }
    }
}
