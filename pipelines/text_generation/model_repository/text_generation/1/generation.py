"""What both models share: opening a checkpoint, and reading what a request asks for."""
import json
import os

# Before the imports: a checkpoint is a folder, and nothing is looked for anywhere else.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import make_checkpoint
import transformers
import triton_python_backend_utils as pb_utils

# Bars are for terminals, not for logs.
transformers.utils.logging.disable_progress_bar()
HERE = os.path.dirname(os.path.abspath(__file__))
# Whoever sends one of these wants words by chance.
SAMPLING = ("temperature", "top_k", "top_p", "seed")


class Generation:
    """The network with its tokenizer, and the limits of the model's config."""

    def __init__(self, args):
        given = json.loads(args["model_config"])["parameters"]
        self.given = {key: value["string_value"] for key, value in given.items()}
        self.kinds = {
            "max_new_tokens": whole(1, int(self.given["max_new_tokens"])),
            "do_sample": flag,
            "temperature": positive,
            "top_k": whole(0),
            "top_p": positive,
            "repetition_penalty": positive,
        }
        folder = checkpoint(self.given.get("checkpoint", ""), args["model_repository"])
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        network = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.pipeline = transformers.pipeline(
            "text-generation", model=network, tokenizer=tokenizer, device="cpu"
        )

    def settings(self, request):
        """The request's parameters for the pipeline; ValueError for those it cannot have."""
        found = {"max_new_tokens": min(20, int(self.given["max_new_tokens"]))}
        for name, value in json.loads(request.parameters() or "{}").items():
            if name not in self.kinds:
                known = ", ".join(self.kinds)
                raise ValueError(f"unknown parameter '{name}', known are {known}")
            try:
                found[name] = self.kinds[name](value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"parameter '{name}' {error}, got {value!r}") from None
        found.setdefault("do_sample", any(name in found for name in SAMPLING))
        return found


def checkpoint(named, model_dir):
    """The folder that the config names, else that of a small network, made the first time."""
    if named:
        folder = os.path.join(model_dir, named)
        if not os.path.isfile(os.path.join(folder, "config.json")):
            raise ValueError(f"parameter 'checkpoint': there is no config.json in '{folder}'")
        return folder
    folder = os.path.join(HERE, "checkpoint")
    if not os.path.isfile(os.path.join(folder, "config.json")):
        make_checkpoint.make(folder)
    return folder


def texts(request):
    """The prompts of a request; what is not UTF-8 becomes the character for that."""
    tensor = pb_utils.get_input_tensor_by_name(request, "text_input")
    return [text.decode(errors="replace") for text in tensor.as_numpy().ravel()]


def refusal(error):
    """The response that says what went wrong, and whose fault it was."""
    is_theirs = isinstance(error, ValueError)
    code = pb_utils.TritonError.INVALID_ARG if is_theirs else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def whole(least, most=None):
    """Reads a whole number; over gRPC all parameters may come as strings."""

    def read(value):
        wanted = f"must be a whole number from {least}" + (f" to {most}" if most else "")
        if isinstance(value, (bool, float)) or not str(value).lstrip("-").isdigit():
            raise ValueError(wanted)
        if int(value) < least or most is not None and most < int(value):
            raise ValueError(wanted)
        return int(value)

    return read


def positive(value):
    try:
        number = 0.0 if isinstance(value, bool) else float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError("must be a number above 0")
    return number


def flag(value):
    known = {"true": True, "false": False}
    if str(value).lower() not in known:
        raise ValueError("must be true or false")
    return known[str(value).lower()]
