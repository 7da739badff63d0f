"""Shared memory of one worker: mappings of the server's, and its own for large outputs.

The server's are mapped privately: the model may write to its inputs, and nobody else sees it. Pages
it has written to hide what the server puts there later, so they are found and dropped.
"""
import mmap
import os
import struct
import sys
from operator import is_
from threading import RLock

import numpy as np
from troupe_frames import DROPPED, FRAME, NUMBER, NUMBERS, SEGMENT

# A flag of a frame of executions: free what is unused.
TRIM = 1
# Bytes of unused segments kept for reuse, until the server has us trim.
IDLE_LIMIT = 512 << 20
# Beside the number of a segment of ours that came back: it is not used again, as others know it or
# too many are kept.
# `segments.rs` has the same.
FREED = 1 << 63
PRIVATE = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
PAGE = mmap.PAGESIZE
# `/proc/self/pagemap` has eight bytes for each page; bits of the last: the page is present, in swap,
# of a file. What the last byte is of pages that were not written to: absent, or of the file.
ENTRY = 8
PRESENT_OR_SWAPPED = 0xC0
OF_FILE = 0x20
UNWRITTEN = bytes(it for it in range(256) if not it & PRESENT_OR_SWAPPED or it & OF_FILE)


class Segments:
    """The server's segments and our own, by number."""

    def __init__(self, passing, frames):
        self.passing = passing
        self.send = frames.send
        self.count_copied = frames.copied
        # Sizes of our own are multiples of this unless it is 0; unused bytes we keep.
        self.growth = self.kept = 0
        # Server's segments by id: (mapping, address).
        self.theirs = {}
        # Those of the group in work, by address; with coroutines none.
        self.used = {}
        self.own = {}
        # For whom each of them was used, and who may have seen it: the owner of a request, or the
        # model that was called.
        self.owners = {}
        # Unused ones by size and owner.
        self.idle = {}
        self.idle_bytes = 0
        self.next = 1
        # Senders on other threads take and release, too.
        self.lock = RLock()
        self.pagemap = None
        # Groups of coroutines are in work at once: what one of them drops another may need.
        self.drops_written = True
        probe = mmap.mmap(-1, 4096)
        self.theirs[0] = (probe, 0)
        del probe
        self.unheld = self.references(0)
        del self.theirs[0]

    def references(self, number):
        return sys.getrefcount(self.theirs[number][0])

    def is_held(self, number):
        """Does the model still hold arrays over this segment?"""
        return number in self.theirs and self.unheld < self.references(number)

    def held(self, used):
        """Those of a group's segments that nothing else may be put into, as bytes: the model has
        arrays over them, or has written to its view of them."""
        return b"".join(NUMBER.pack(number) for number in used if self.is_spoiled(used, number))

    def is_spoiled(self, used, number):
        if self.is_held(number):
            return True
        if number not in self.theirs or not self.verdict(used, number):
            return False
        if self.drops_written:
            self.theirs[number][0].madvise(mmap.MADV_DONTNEED)
            return False
        return True

    def verdict(self, used, number):
        """Has the model written to its view of a segment? Asked once the group was executed."""
        found = used.verdicts.get(number)
        if found is None:
            found = False
            if number in used.made:
                mapping, address = self.theirs[number]
                found = self.is_written(address, len(mapping))
            used.verdicts[number] = found
        return found

    def is_written(self, address, size):
        """Has the model written to these bytes of a private mapping? Then their pages are of no
        file. Where the kernel does not tell: perhaps."""
        first = address // PAGE
        count = (address + size - 1) // PAGE + 1 - first
        try:
            if self.pagemap is None:
                self.pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            pages = os.pread(self.pagemap, ENTRY * count, ENTRY * first)
        except OSError:
            return True
        written = pages[ENTRY - 1::ENTRY].translate(None, UNWRITTEN)
        return len(pages) < ENTRY * count or bool(written)

    def find_mapping(self, used, mapping):
        """The segment of a group's inputs that is mapped here."""
        for number in used:
            if self.theirs[number][0] is mapping:
                return number
        return None

    def find(self, used, array, is_over):
        """The segment of a group's inputs the array lies in, and where; whether the group was
        executed."""
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        if type(base) is not mmap.mmap or not array.flags.c_contiguous:
            return None
        start = array.__array_interface__["data"][0]
        for number, address in used.items():
            if self.theirs[number][0] is base:
                # What is written to our view of the memory nobody else can see.
                if is_over:
                    is_written = self.verdict(used, number)
                else:
                    is_written = self.is_written(start, array.nbytes)
                return None if is_written else (number, start - address)
        return None

    def find_strings(self, texts, elements):
        """The segment of a group's inputs that holds these very elements: where, and the size.

        Elements are the same objects, and bytes never change, so the packed form is the same.
        """
        for known, number, offset, size in texts:
            if len(known) == len(elements) and all(map(is_, known, elements)):
                return number, offset, size
        return None

    def copy(self, array):
        """A copy for a model that may write to it, while others read this memory."""
        self.count_copied(array.nbytes)
        return array.copy()

    def update(self, raw, counts, flags):
        """Takes in which segments the server sent, freed and gave back."""
        new, forgotten, released = counts
        at = 24
        for _ in range(new):
            number, size = NUMBERS.unpack_from(raw, at)
            at += 16
            _, ancillary, _, _ = self.passing.recvmsg(1, 64)
            descriptor = struct.unpack("i", ancillary[0][2][:4])[0]
            rights = mmap.PROT_READ | mmap.PROT_WRITE
            mapping = mmap.mmap(descriptor, size, flags=PRIVATE, prot=rights)
            os.close(descriptor)
            self.theirs[number] = (mapping, address_of(mapping))
        for _ in range(forgotten):
            self.theirs.pop(NUMBER.unpack_from(raw, at)[0], None)
            at += 8
        for _ in range(released):
            self.release(NUMBER.unpack_from(raw, at)[0])
            at += 8
        if flags & TRIM:
            self.trim()

    def take(self, size, owner):
        """A segment of our own with room for `size` bytes, which no other owner has used: (id,
        mapping)."""
        size = max(size, 1 << 16)
        step = self.growth or (1 << (size - 1).bit_length()) // 8
        size = -(-size // step) * step
        with self.lock:
            return self.idle_one(size, owner) or self.make(size, owner)

    def idle_one(self, size, owner):
        waiting = self.idle.get((size, owner))
        if waiting:
            number = waiting.pop()
            self.idle_bytes -= size
            return number, self.own[number]
        return None

    def make(self, size, owner):
        descriptor = os.memfd_create("troupe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        mapping = mmap.mmap(descriptor, size)
        number = self.next
        self.next += 1
        self.own[number] = mapping
        self.owners[number] = owner
        rights = [(1, 1, struct.pack("i", descriptor))]
        # The server looks for the descriptor when it sees the frame.
        self.passing.sendmsg([b"s"], rights)
        self.send([FRAME.pack(24, SEGMENT), NUMBERS.pack(number, size)])
        os.close(descriptor)
        return number, mapping

    def release(self, number):
        with self.lock:
            if number & FREED:
                number -= FREED
                self.own.pop(number, None)
                self.owners.pop(number, None)
                return
            mapping = self.own.get(number)
            if mapping is None:
                return
            size = len(mapping)
            if max(IDLE_LIMIT, self.kept) < self.idle_bytes + size:
                self.drop([number])
                return
            self.idle.setdefault((size, self.owners[number]), []).append(number)
            self.idle_bytes += size

    def trim(self):
        """Frees what is unused, but for what is always kept."""
        with self.lock:
            dropped = []
            for (size, _), waiting in self.idle.items():
                while waiting and self.kept < self.idle_bytes:
                    dropped.append(waiting.pop())
                    self.idle_bytes -= size
            self.idle = {key: waiting for key, waiting in self.idle.items() if waiting}
            self.drop(dropped)

    def drop(self, numbers):
        for number in numbers:
            del self.own[number], self.owners[number]
        if numbers:
            body = b"".join(NUMBER.pack(number) for number in numbers)
            self.send([FRAME.pack(8 + len(body), DROPPED), body])


def address_of(mapping):
    return np.ndarray((1,), np.uint8, mapping).__array_interface__["data"][0]
