//! Archives of `numpy.savez`: zip files whose entries are stored as they are.

use bytes::{Buf, BufMut, Bytes};
use flate2::Crc;

use crate::error::{Error, Result};

/// One file in an archive.
#[derive(Clone, Debug)]
pub struct NpzEntry {
    /// Its path, with the ending.
    pub name: String,
    /// Its contents, one part after the other.
    pub parts: Vec<Bytes>,
}

/// Before each file.
const LOCAL: u32 = 0x0403_4b50;
/// In the list of files at the end.
const CENTRAL: u32 = 0x0201_4b50;
/// Behind that list.
const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;
/// The extra field with what needs 64 bits.
const EXTRA_64: u16 = 1;
/// Names are UTF-8.
const UTF8: u16 = 0x0800;
const STORED: u16 = 0;
/// The first of January 1980, where time begins for zip files.
const DATE: u16 = 0x21;
/// The version of the format that knows 64 bits, said to be made on Unix.
const VERSION: u16 = 45;
/// A regular file that its owner may write.
const MODE: u32 = 0o100_644 << 16;
/// A number that does not fit stands in 64 bits elsewhere.
const LARGE: u64 = u32::MAX as u64;

/// The archive in parts, in their order: the contents are shared, not copied, but looked at once.
pub fn write(entries: Vec<NpzEntry>) -> Result<Vec<Bytes>> {
    write_with(entries, LARGE)
}

/// The same; what is `large` or larger stands in 64 bits.
fn write_with(entries: Vec<NpzEntry>, large: u64) -> Result<Vec<Bytes>> {
    let mut parts: Vec<Bytes> = Vec::new();
    let mut list = Vec::new();
    let mut offset = 0u64;
    let count = entries.len() as u64;
    for entry in entries {
        let size: u64 = entry.parts.iter().map(|it| it.len() as u64).sum();
        let mut crc = Crc::new();
        entry.parts.iter().for_each(|it| crc.update(it));
        let file = File { name: &entry.name, crc: crc.sum(), size, offset };
        file.check()?;
        let local = file.local(large);
        file.list(large, &mut list);
        offset += local.len() as u64 + size;
        parts.push(local.into());
        parts.extend(entry.parts);
    }
    let length = list.len() as u64;
    end(count, length, offset, large, &mut list);
    parts.push(list.into());
    Ok(parts)
}

/// What an archive says of a file.
struct File<'a> {
    name: &'a str,
    crc: u32,
    size: u64,
    /// Where its local header begins.
    offset: u64,
}

impl File<'_> {
    fn check(&self) -> Result<()> {
        let fits = u16::try_from(self.name.len()).is_ok();
        let long = || Error::invalid(format!("a name of {} bytes is too long", self.name.len()));
        if fits { Ok(()) } else { Err(long()) }
    }

    /// Stands in the local header and in the list.
    fn common(&self, large: u64, extra: usize, to: &mut Vec<u8>) {
        let size = small(self.size, large);
        to.put_u16_le(UTF8);
        to.put_u16_le(STORED);
        to.put_u16_le(0);
        to.put_u16_le(DATE);
        to.put_u32_le(self.crc);
        to.put_u32_le(size);
        to.put_u32_le(size);
        to.put_u16_le(self.name.len() as u16);
        to.put_u16_le(extra as u16);
    }

    fn local(&self, large: u64) -> Vec<u8> {
        let mut extra = Vec::new();
        if large <= self.size {
            extra.put_u16_le(EXTRA_64);
            extra.put_u16_le(16);
            extra.put_u64_le(self.size);
            extra.put_u64_le(self.size);
        }
        let mut text = Vec::with_capacity(64 + self.name.len());
        text.put_u32_le(LOCAL);
        text.put_u16_le(VERSION);
        self.common(large, extra.len(), &mut text);
        text.put_slice(self.name.as_bytes());
        text.put_slice(&extra);
        text
    }

    fn list(&self, large: u64, to: &mut Vec<u8>) {
        let sizes = [self.size, self.size].into_iter().filter(|it| large <= *it);
        let wide: Vec<u64> = sizes.chain(Some(self.offset).filter(|it| large <= *it)).collect();
        let mut extra = Vec::new();
        if !wide.is_empty() {
            extra.put_u16_le(EXTRA_64);
            extra.put_u16_le(8 * wide.len() as u16);
            wide.iter().for_each(|it| extra.put_u64_le(*it));
        }
        to.put_u32_le(CENTRAL);
        to.put_u16_le((3 << 8) | VERSION);
        to.put_u16_le(VERSION);
        self.common(large, extra.len(), to);
        // No comment, on the first disk, nothing said of its contents.
        to.put_bytes(0, 6);
        to.put_u32_le(MODE);
        to.put_u32_le(small(self.offset, large));
        to.put_slice(self.name.as_bytes());
        to.put_slice(&extra);
    }
}

/// The number, or the sign that it stands elsewhere.
fn small(number: u64, large: u64) -> u32 {
    if large <= number { u32::MAX } else { number as u32 }
}

/// What stands behind a list of `count` files, `length` bytes of it from `offset` on.
fn end(count: u64, length: u64, offset: u64, large: u64, to: &mut Vec<u8>) {
    let is_wide = large <= offset || large <= length || u64::from(u16::MAX) <= count;
    if is_wide {
        to.put_u32_le(END_64);
        to.put_u64_le(44);
        to.put_u16_le((3 << 8) | VERSION);
        to.put_u16_le(VERSION);
        to.put_u64_le(0);
        to.put_u64_le(count);
        to.put_u64_le(count);
        to.put_u64_le(length);
        to.put_u64_le(offset);
        to.put_u32_le(LOCATOR_64);
        to.put_u32_le(0);
        to.put_u64_le(offset + length);
        to.put_u32_le(1);
    }
    let files = if is_wide { u16::MAX } else { count as u16 };
    to.put_u32_le(END);
    to.put_u32_le(0);
    to.put_u16_le(files);
    to.put_u16_le(files);
    to.put_u32_le(if is_wide { u32::MAX } else { length as u32 });
    to.put_u32_le(if is_wide { u32::MAX } else { offset as u32 });
    to.put_u16_le(0);
}

/// Every file of an archive that `write` made, in its order: parts of `file`. Or what is wrong.
pub fn read(file: &Bytes) -> Result<Vec<(String, Bytes)>, String> {
    let cut = || "it is cut off or damaged".to_owned();
    let end = file.windows(4).rposition(|it| it == END.to_le_bytes());
    let end = end.ok_or("it does not end as a .npz file does")?;
    let (count, mut list) = list(file, end).ok_or_else(cut)?;
    let mut files = Vec::new();
    for _ in 0..count {
        let found = listed(&mut list).ok_or_else(cut)?;
        if found.method != STORED {
            let name = found.name;
            return Err(format!("`{name}` in it is compressed, expected an archive as it came"));
        }
        let data = contents(file, &found).ok_or_else(cut)?;
        let mut crc = Crc::new();
        crc.update(&data);
        if crc.sum() != found.crc {
            return Err(format!("`{}` in it is damaged: its checksum is another", found.name));
        }
        files.push((found.name, data));
    }
    Ok(files)
}

/// How many files are listed, and the list.
fn list(file: &Bytes, end: usize) -> Option<(u64, &[u8])> {
    let mut text = file.get(end..end + 22)?.get(10..)?;
    let mut count = u64::from(text.try_get_u16_le().ok()?);
    let mut length = u64::from(text.try_get_u32_le().ok()?);
    let mut offset = u64::from(text.try_get_u32_le().ok()?);
    if offset == LARGE || count == u64::from(u16::MAX) {
        let mut locator = file.get(end.checked_sub(20)?..end)?;
        if locator.get_u32_le() != LOCATOR_64 {
            return None;
        }
        locator.advance(4);
        let at = usize::try_from(locator.get_u64_le()).ok()?;
        let mut wide = file.get(at..)?.get(32..56)?;
        (count, length, offset) = (wide.get_u64_le(), wide.get_u64_le(), wide.get_u64_le());
    }
    let start = usize::try_from(offset).ok()?;
    Some((count, file.get(start..start.checked_add(usize::try_from(length).ok()?)?)?))
}

/// A file as the list has it.
struct Listed {
    name: String,
    method: u16,
    crc: u32,
    size: u64,
    offset: u64,
}

fn listed(list: &mut &[u8]) -> Option<Listed> {
    let (mut fixed, rest) = list.split_at_checked(46)?;
    if fixed.get_u32_le() != CENTRAL {
        return None;
    }
    fixed.advance(6);
    let method = fixed.get_u16_le();
    fixed.advance(4);
    let crc = fixed.get_u32_le();
    fixed.advance(4);
    let mut size = u64::from(fixed.get_u32_le());
    let lengths = [fixed.get_u16_le(), fixed.get_u16_le(), fixed.get_u16_le()];
    fixed.advance(8);
    let mut offset = u64::from(fixed.get_u32_le());
    let (name, rest) = rest.split_at_checked(lengths[0].into())?;
    let (mut extra, rest) = rest.split_at_checked(lengths[1].into())?;
    *list = rest.get(lengths[2].into()..)?;
    while let (Ok(id), Ok(length)) = (extra.try_get_u16_le(), extra.try_get_u16_le()) {
        let (mut field, rest) = extra.split_at_checked(length.into())?;
        extra = rest;
        if id != EXTRA_64 {
            continue;
        }
        if size == LARGE {
            size = field.try_get_u64_le().ok()?;
            // The same size once more: nothing is compressed.
            field.try_get_u64_le().ok()?;
        }
        if offset == LARGE {
            offset = field.try_get_u64_le().ok()?;
        }
    }
    Some(Listed { name: String::from_utf8(name.to_vec()).ok()?, method, crc, size, offset })
}

fn contents(file: &Bytes, found: &Listed) -> Option<Bytes> {
    let start = usize::try_from(found.offset).ok()?;
    let mut local = file.get(start..start.checked_add(30)?)?;
    if local.get_u32_le() != LOCAL {
        return None;
    }
    local.advance(22);
    let before = 30 + usize::from(local.get_u16_le()) + usize::from(local.get_u16_le());
    let start = start.checked_add(before)?;
    let end = start.checked_add(usize::try_from(found.size).ok()?)?;
    file.get(start..end).map(|it| file.slice_ref(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(files: &[(&str, &[&'static [u8]])], large: u64) -> Bytes {
        let entry = |(name, parts): &(&str, &[&'static [u8]])| NpzEntry {
            name: (*name).to_owned(),
            parts: parts.iter().map(|it| Bytes::from_static(it)).collect(),
        };
        write_with(files.iter().map(entry).collect(), large).unwrap().concat().into()
    }

    const FILES: &[(&str, &[&[u8]])] = &[
        ("a/größe.npy", &[b"head", b"", b"elements"]),
        ("empty", &[]),
        ("manifest.json", &[b"{}"]),
    ];

    #[test]
    fn what_is_written_can_be_read_in_32_bits_and_in_64() {
        for large in [LARGE, 100, 10, 0] {
            let file = archive(FILES, large);
            let files = read(&file).unwrap();
            let got: Vec<_> = files.iter().map(|(name, data)| (&**name, &data[..])).collect();
            let expected: [(&str, &[u8]); 3] =
                [("a/größe.npy", b"headelements"), ("empty", b""), ("manifest.json", b"{}")];
            assert_eq!(got, expected, "{large}");
        }
        assert!(read(&archive(&[], LARGE)).unwrap().is_empty());
    }

    #[test]
    fn many_files_are_counted_in_64_bits() {
        let entry = |it: usize| NpzEntry { name: it.to_string(), parts: Vec::new() };
        let file = write((0..70_000).map(entry).collect()).unwrap().concat().into();
        assert_eq!(read(&file).unwrap().len(), 70_000);
    }

    #[test]
    fn damage_is_told_and_never_a_panic() {
        let file = archive(FILES, 10);
        for length in 0..file.len() {
            assert!(read(&file.slice(..length)).is_err(), "{length}");
        }
        for at in 0..file.len() {
            for bits in [1, 0x80, 0xff] {
                let mut damaged = file.to_vec();
                damaged[at] ^= bits;
                let _ = read(&damaged.into());
            }
        }
        let mut damaged = archive(FILES, LARGE).to_vec();
        damaged[43] ^= 1;
        let error = read(&damaged.into()).unwrap_err();
        assert_eq!(error, "`a/größe.npy` in it is damaged: its checksum is another");
        let error = read(&Bytes::from_static(b"PK")).unwrap_err();
        assert_eq!(error, "it does not end as a .npz file does");
    }

    #[test]
    fn compressed_files_are_refused() {
        let mut file = archive(&[("a", &[b"x"])], LARGE).to_vec();
        let at = file.windows(4).position(|it| it == CENTRAL.to_le_bytes()).unwrap();
        file[at + 10] = 8;
        let error = read(&file.into()).unwrap_err();
        assert_eq!(error, "`a` in it is compressed, expected an archive as it came");
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        let entry = NpzEntry { name: "x".repeat(70_000), parts: Vec::new() };
        let error = write(vec![entry]).unwrap_err().to_string();
        assert_eq!(error, "a name of 70000 bytes is too long");
    }
}
