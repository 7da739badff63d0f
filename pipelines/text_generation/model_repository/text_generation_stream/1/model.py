"""Continues a text and sends every word as it comes, to several clients at once."""
import threading

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from generation import Generation, refusal, texts
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.generation = Generation(args)
        self.free = threading.Semaphore(int(self.generation.given["streams"]))

    def execute(self, requests):
        for request in requests:
            # What waits here waits in the server's queue.
            self.free.acquire()
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        try:
            settings = self.generation.settings(request)
            for word in self.words(texts(request)[0], settings, sender):
                output = np.array([word.encode()], dtype=np.object_)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", output)]))
        except Exception as error:  # whatever it is, the client is told and the stream ends
            sender.send(refusal(error))
        finally:
            sender.send(flags=FINAL)
            self.free.release()

    def words(self, prompt, settings, sender):
        """What follows the prompt, piece by piece, until the client has gone."""
        tokenizer = self.generation.pipeline.tokenizer
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        enough, failures = Enough(), []

        def generate():
            try:
                self.generation.pipeline(
                    prompt,
                    streamer=streamer,
                    stopping_criteria=StoppingCriteriaList([enough]),
                    **settings,
                )
            except Exception as error:
                failures.append(error)
                streamer.end()

        thread = threading.Thread(target=generate)
        thread.start()
        try:
            for word in streamer:
                if sender.is_cancelled():
                    return
                if word:
                    yield word
        finally:
            enough.reached = True
            thread.join()
        if failures:
            raise failures[0]


class Enough(StoppingCriteria):
    """Ends the generation of a text that nobody reads any more."""

    reached = False

    def __call__(self, input_ids, scores, **_):
        return torch.full((len(input_ids),), self.reached, device=input_ids.device)
