"""Continues texts with Hugging Face's TextGenerationPipeline, those of several requests at once."""
import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from generation import Generation, flag, refusal, texts, whole


class TritonPythonModel:
    def initialize(self, args):
        self.generation = Generation(args)
        self.generation.kinds |= {
            "num_return_sequences": whole(1, 8),
            "return_full_text": flag,
            "seed": whole(0, 2**63 - 1),
        }

    def execute(self, requests):
        responses = [None] * len(requests)
        for settings, indexes in self.together(requests, responses):
            self.answer(requests, responses, settings, indexes)
        return responses

    def together(self, requests, responses):
        """Settings with the indexes of the requests that share them; a seed is for one alone."""
        groups = {}
        for index, request in enumerate(requests):
            try:
                settings = self.generation.settings(request)
            except ValueError as error:
                responses[index] = refusal(error)
                continue
            alone = index if "seed" in settings else None
            key = (alone, *sorted(settings.items()))
            groups.setdefault(key, (settings, []))[1].append(index)
        return groups.values()

    def answer(self, requests, responses, settings, indexes):
        """One run of the network for the prompts of several requests."""
        prompts = [texts(requests[index]) for index in indexes]
        try:
            answers = iter(self.run(sum(prompts, []), **settings))
        except Exception as error:
            if len(indexes) == 1:
                responses[indexes[0]] = refusal(error)
                return
            # One prompt that the network does not take must not be the end of the others.
            for index in indexes:
                self.answer(requests, responses, settings, [index])
            return
        for index, own in zip(indexes, prompts):
            rows = [[text.encode() for text in next(answers)] for _ in own]
            output = pb_utils.Tensor("text_output", np.array(rows, dtype=np.object_))
            responses[index] = pb_utils.InferenceResponse([output])

    def run(self, prompts, seed=None, **settings):
        """The texts that continue each prompt."""
        if seed is not None:
            torch.manual_seed(seed)
        answers = self.generation.pipeline(prompts, batch_size=len(prompts), **settings)
        return [[it["generated_text"] for it in answer] for answer in answers]
