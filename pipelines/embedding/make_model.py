"""Makes the small tokenizer and the small network of this pipeline, in the form of a hub's.

Run it with numpy, onnx and tokenizers installed; what it writes is committed. Words of one topic get
vectors that are near to each other, so that texts can be compared: no training, and no more sense
than that.
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HERE = Path(__file__).parent / "model_repository"
WIDTH = 32
TOPICS = {
    "animals": "cat dog horse bird fish kitten puppy purr bark meow fur tail paw feather",
    "weather": "rain snow sun wind storm cloud cold warm umbrella thunder wet dry sky",
    "food": "bread soup apple cheese cook eat bake salt kitchen plate lunch dinner",
    "money": "bank pay price coin loan cheap expensive market buy sell shop euro",
    "travel": "train ticket road car station plane map bus bicycle journey drive street",
}
COMMON = (
    "a the is are was it i you he she we they and or not in on at to of with for my your this that "
    "do does how what where when who can will very much . , ! ?"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def vocabulary():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *COMMON.split()]
    words += [word for topic in TOPICS.values() for word in topic.split()]
    words += [letter for letter in LETTERS if letter not in words]
    words += ["##" + letter for letter in LETTERS]
    return {word: index for index, word in enumerate(dict.fromkeys(words))}


def make_tokenizer(ids):
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(it, ids[it]) for it in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.enable_truncation(128)
    tokenizer.save(str(HERE / "tokens/1/tokenizer.json"))


def table(ids):
    """A vector for each piece: of its topic, and a little of its own."""
    random = np.random.default_rng(7)
    vectors = 0.05 * random.standard_normal((len(ids), WIDTH))
    for topic in TOPICS.values():
        middle = random.standard_normal(WIDTH)
        for word in topic.split():
            vectors[ids[word]] = middle + 0.45 * random.standard_normal(WIDTH)
    return vectors.astype(np.float32)


def make_network(ids):
    tensor = helper.make_tensor_value_info
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [tensor(it, TensorProto.INT64, ["batch", "sequence"]) for it in names]
    output = tensor("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", WIDTH])
    nodes = [
        helper.make_node("Gather", ["vectors", "input_ids"], ["of_piece"]),
        helper.make_node("Gather", ["kinds", "token_type_ids"], ["of_kind"]),
        helper.make_node("Add", ["of_piece", "of_kind"], ["sum"]),
        helper.make_node("Unsqueeze", ["attention_mask", "last"], ["column"]),
        helper.make_node("Cast", ["column"], ["weight"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sum", "weight"], ["last_hidden_state"]),
    ]
    constants = [
        numpy_helper.from_array(table(ids), "vectors"),
        numpy_helper.from_array(np.zeros((2, WIDTH), np.float32), "kinds"),
        numpy_helper.from_array(np.array([2], np.int64), "last"),
    ]
    graph = helper.make_graph(nodes, "small", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    checker.check_model(model)
    save(model, HERE / "encoder/1/model.onnx")


if __name__ == "__main__":
    pieces = vocabulary()
    make_tokenizer(pieces)
    make_network(pieces)
