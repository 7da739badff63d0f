"""Makes a BLOOM with the form of a real one, so small that it can only put words in a row.

    python make_checkpoint.py FOLDER
"""
import os
import re
import shutil
import sys
import tempfile

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BloomConfig, BloomForCausalLM, GenerationConfig, PreTrainedTokenizerFast

SEED = 7
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
# All that it will ever say are words of this, in an order of its own.
TEXT = """
A company of players goes from town to town with one wagon. They play in barns and on market squares,
by daylight and by the light of lamps, and nobody has to say beforehand what is on tonight. One sings,
one paints the walls, one counts the coins. While the first one speaks the others are silent, and when
it is their turn they do not miss it. A play is as long as the night, then they go on over the hills.
"""


def make(folder):
    """The same files every time. Whoever looks while they are written sees no folder."""
    tokenizer = make_tokenizer()
    network = make_network(tokenizer)
    parent = os.path.dirname(os.path.abspath(folder))
    with tempfile.TemporaryDirectory(dir=parent, prefix=".making-") as place:
        files = os.path.join(place, "checkpoint")
        tokenizer.save_pretrained(files)
        network.save_pretrained(files)
        try:
            os.rename(files, folder)
        except OSError:
            # Another process was faster; its files are no different.
            if not os.path.exists(os.path.join(folder, "config.json")):
                raise


def make_tokenizer():
    """Byte pairs: whole words for those in the text, bytes for anything else."""
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pairs.train_from_iterator([" ".join(TEXT.split())], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=pairs, padding_side="left", clean_up_tokenization_spaces=False, **SPECIAL
    )


def make_network(tokenizer):
    """Weights by chance, larger than usual: small ones would repeat the last word for ever."""
    torch.manual_seed(SEED)
    ids = {
        name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    shape = {"hidden_size": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}
    network = BloomForCausalLM(BloomConfig(vocab_size=len(tokenizer), **shape, **ids))
    words = {f"Ġ{word}" for word in re.findall(r"[a-z]+", TEXT)}
    others = [number for token, number in tokenizer.get_vocab().items() if token not in words]
    network.generation_config = GenerationConfig(
        suppress_tokens=sorted(others), repetition_penalty=4.0, **ids
    )
    return network


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    make(sys.argv[1])
