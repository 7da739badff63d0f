"""Puts together repositories for a race: the same ONNX models, on one thread, for every side."""
import os
import re
import shutil

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PEER = os.path.join(HERE, "onnxruntime_peer", "model.py")
ONNX = re.compile(r'^(platform|backend)\s*:\s*"onnxruntime(_onnx)?"\s*$', re.M)
ONE_THREAD = """
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
instance_group { kind: KIND_CPU count: 1 }
"""


def on_one_thread(folder, models):
    """A repository of these folders of models, whose ONNX models get one instance of one thread."""
    def changed(text):
        return _without(text, "instance_group") + ONE_THREAD if ONNX.search(text) else text

    return _copied(folder, models, os.symlink, changed)


def with_instances(folder, models, count):
    """A repository of these folders of models, each with so many instances; ensembles have none."""
    def changed(text):
        group = f"instance_group {{ kind: KIND_CPU count: {count} }}\n"
        return text if "ensemble_scheduling" in text else _without(text, "instance_group") + group

    return _copied(folder, models, shutil.copytree, changed)


def _copied(folder, models, bring, changed):
    """A repository of these folders of models, their configs changed; `bring` brings the rest."""
    shutil.rmtree(folder, ignore_errors=True)
    for model in models:
        copy = os.path.join(folder, os.path.basename(model))
        os.makedirs(copy)
        for name in os.listdir(model):
            if name != "config.pbtxt":
                bring(os.path.join(model, name), os.path.join(copy, name))
        text = _read(os.path.join(model, "config.pbtxt"))
        _write(os.path.join(copy, "config.pbtxt"), changed(text))
    return folder


def with_python(folder, models):
    """The same models for a server without an ONNX backend: a Python model calls onnxruntime."""
    shutil.rmtree(folder, ignore_errors=True)
    for model in models:
        copy = os.path.join(folder, os.path.basename(model))
        os.makedirs(os.path.join(copy, "1"))
        shutil.copy(PEER, os.path.join(copy, "1", "model.py"))
        network = os.path.realpath(os.path.join(model, "1", "model.onnx"))
        os.symlink(network, os.path.join(copy, "1", "model.onnx"))
        text = _without(_read(os.path.join(model, "config.pbtxt")), "instance_group")
        text = ONNX.sub('backend: "python"', text) + "instance_group { kind: KIND_CPU count: 1 }\n"
        _write(os.path.join(copy, "config.pbtxt"), text)
    return folder


def members(repository, ensemble):
    """The folders of an ensemble and of all models that it needs."""
    found, unseen = [], [ensemble]
    while unseen:
        folder = os.path.join(repository, unseen.pop())
        if folder not in found:
            found.append(folder)
            text = _read(os.path.join(folder, "config.pbtxt"))
            unseen += re.findall(r'model_name\s*:\s*"([^"]+)"', text)
    return found


def _without(text, field):
    """The config without a message, or a list of them, that holds no deeper than two levels."""
    braces = r"\{(?:[^{}]|\{[^{}]*\})*\}"
    return re.sub(rf"^{field}\s*:?\s*(\[[^\]]*\]|{braces})\n?", "", text, flags=re.M)


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def _write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
