"""The repository of `parity`: models that show what each scheduler answers."""
import os

#: The sequence models of Triton's examples: the input, 1 more for the first of a sequence; the last one
#: has its id added where the model is told it.
SEQUENCE = '''
import json
import time
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.seconds = float(parameters.get("sleep", {"string_value": "0"})["string_value"]) / 1000

    def execute(self, requests):
        time.sleep(self.seconds)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def number(name):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return 0 if tensor is None else int(tensor.as_numpy().reshape(-1)[0])

        output = number("INPUT") + number("START") + (number("CORRID") % 65536 if number("END") else 0)
        output = pb_utils.Tensor("OUTPUT", numpy.array([[output]], numpy.int32))
        return pb_utils.InferenceResponse(output_tensors=[output])
'''
#: Sleeps as long as the first number says, in milliseconds, and answers when it began, in seconds.
SLEEPS = '''
import time
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(it, "INPUT").as_numpy() for it in requests]
        begun = time.time() % 10000
        time.sleep(max(float(it.max()) for it in inputs) / 1000)
        answer = lambda it: pb_utils.Tensor("OUTPUT", numpy.full(it.shape, begun, numpy.float32))
        return [pb_utils.InferenceResponse(output_tensors=[answer(it)]) for it in inputs]
'''
NUMBER = 'input { name: "INPUT" data_type: TYPE_INT32 dims: 1 } ' \
         'output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }'
FLOAT = NUMBER.replace("INT32", "FP32")
CPU = "instance_group { kind: KIND_CPU count: %d }"


def control(name, kind):
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} {kind} }} }}'


FLAGS = " ".join(control(name, "int32_false_true: [ 0, 1 ]") for name in ("START", "READY", "END"))
OLDEST = "oldest { max_candidate_sequences: 36 preferred_batch_size: [ 4, 6 ] " \
         "max_queue_delay_microseconds: 1000 }"


def sequences(more, idle=5000000, batch=8):
    return (f'backend: "python" max_batch_size: {batch} {NUMBER} {CPU % 1} '
            f"sequence_batching {{ max_sequence_idle_microseconds: {idle} {FLAGS} {more} }}")


def floats(more, instances=1):
    return f'backend: "python" max_batch_size: 8 {FLOAT} {CPU % instances} {more}'


def ensemble(model, kind, more=""):
    step = ('step { model_name: "%s" model_version: -1 input_map { key: "INPUT" value: "INPUT" } '
            'output_map { key: "OUTPUT" value: "OUTPUT" } }' % model)
    return (f'platform: "ensemble" max_batch_size: 8 {NUMBER.replace("INT32", kind)} {more} '
            f"ensemble_scheduling {{ {step} }}")


def limited(priority):
    resource = 'resources { name: "R" count: 1 }'
    return (f'backend: "python" max_batch_size: 0 {FLOAT} instance_group {{ kind: KIND_CPU count: 2 '
            f"rate_limiter {{ {resource} priority: {priority} }} }}")


CORRID = lambda kind: control("CORRID", f"data_type: TYPE_{kind}")
SLEEPY = 'parameters { key: "sleep" value { string_value: "400" } }'
CACHED = "response_cache { enable: true }"
#: name: (config, source of the model)
MODELS = {
    "simple_sequence": (sequences("direct { }"), SEQUENCE),
    "simple_dyna_sequence": (sequences(OLDEST + CORRID("UINT64")), SEQUENCE),
    "simple_string_dyna_sequence": (sequences(OLDEST + CORRID("STRING")), SEQUENCE),
    "defaults": (sequences("", idle=0), SEQUENCE),
    "one_slot": (sequences("direct { }", batch=1), SEQUENCE),
    "soon_idle": (sequences("direct { }", idle=300000), SEQUENCE),
    "sleepy": (sequences("direct { }", batch=1) + SLEEPY, SEQUENCE),
    "sequence_ensemble": (ensemble("simple_dyna_sequence", "INT32"), None),
    "levels": (floats("dynamic_batching { priority_levels: 3 default_priority_level: 2 preferred_batch_"
                      "size: 1 priority_queue_policy { key: 3 value { max_queue_size: 2 } } }"), SLEEPS),
    "timed": (floats("dynamic_batching { default_queue_policy { default_timeout_microseconds: 150000 "
                     "allow_timeout_override: true } }"), SLEEPS),
    "delayed": (floats("dynamic_batching { default_queue_policy { default_timeout_microseconds: 150000 "
                       "timeout_action: DELAY } }"), SLEEPS),
    "queue_ensemble": (ensemble("timed", "FP32"), None),
    "limited_a": (limited(1), SLEEPS),
    "limited_b": (limited(2), SLEEPS),
    "cached": (floats(CACHED), SLEEPS),
    "cached_batches": (floats(CACHED + " dynamic_batching { }"), SLEEPS),
    "cached_ensemble": (ensemble("cached_batches", "FP32", CACHED), None),
}


def write(folder):
    for name, (config, source) in MODELS.items():
        os.makedirs(os.path.join(folder, name, "1"))
        with open(os.path.join(folder, name, "config.pbtxt"), "w", encoding="utf-8") as file:
            file.write(f'name: "{name}" {config}\n')
        if source:
            with open(os.path.join(folder, name, "1", "model.py"), "w", encoding="utf-8") as file:
                file.write(source)
