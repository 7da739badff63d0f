"""Cases whose answers are words, compared as words: other digits behind the point do not matter."""
import dataclasses
import json
import os

import cases
import wire

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
PLACES, CLASSES = 26, 37


@dataclasses.dataclass(frozen=True)
class Pictures(cases.Case):
    """An ensemble that takes a picture's file as `input_image`; sent are several, in turn."""
    files: tuple = ()
    #: Whether a batch dimension stands before the bytes.
    batched: bool = False

    def requests(self):
        found = []
        for file in self.files:
            with open(file, "rb") as source:
                raw = source.read()
            shape = [1, len(raw)] if self.batched else [len(raw)]
            found.append([("input_image", "UINT8", shape, raw)])
        return found

    def understand(self, answers):
        return self.checked([wire.texts(it["recognized_text"][2]) for it in answers])

    def checked(self, words):
        """Sorted, for two runtimes may swap boxes whose scores are close; they have to be right."""
        found = [sorted(it) for it in words]
        for file, got in zip(self.files, found):
            expected = labels(file)
            if got != expected:
                raise ValueError(f"{os.path.basename(file)}: expected {expected}, got {got}")
        return found

    def agree(self, first, second):
        return first == second


@dataclasses.dataclass(frozen=True)
class Crop(cases.Case):
    """One row for text_recognition."""
    word: str = ""

    def understand(self, answers):
        return self.checked(spell(wire.floats(answers[0]["308"][2])))

    def checked(self, found):
        if found != self.word:
            raise ValueError(f"expected the word {self.word}, got {found}")
        return found

    def agree(self, first, second):
        return first == second


def pictures(name, model, files, batched=False):
    return Pictures(name, model, (), files=tuple(files), batched=batched)


def crop(name, found):
    """A case out of what a bare loop says of a picture's first crop."""
    tensor = ("input.1", "FP32", [1, 1, 32, 100], bytes.fromhex(found["crop"]))
    return Crop(name, "text_recognition", (), given=(tensor,), word=found["word"])


def labels(file):
    """The words of one of the drawn signs, sorted."""
    folder, name = os.path.split(file)
    with open(os.path.join(folder, "labels.json"), encoding="utf-8") as source:
        return sorted(it["text"] for it in json.load(source)[name])


def spell(logits):
    """The word of one row of logits: runs count once, and class 0 is a blank."""
    word, last = "", 0
    for place in range(PLACES):
        scores = logits[place * CLASSES:(place + 1) * CLASSES]
        best = scores.index(max(scores))
        if best not in (0, last):
            word += CHARACTERS[best - 1]
        last = best
    return word
