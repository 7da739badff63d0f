"""A small recurrent network with weights by chance: it makes no sense, and work like a real one."""
import json

import numpy as np

WIDTH, LAYERS = 512, 4
WORDS = "how can you be with wagon market has tonight counts not hills the others long turn".split()


class Network:
    def __init__(self):
        random = np.random.default_rng(7)
        scale = 1 / np.sqrt(WIDTH)
        shape = (LAYERS, WIDTH, WIDTH)
        self.layers = (random.standard_normal(shape) * scale).astype(np.float32)
        self.words = random.standard_normal((len(WORDS), WIDTH)).astype(np.float32)

    def begin(self, text):
        """The hidden state after a text."""
        numbers = [sum(word.encode()) % len(WORDS) for word in text.split()] or [0]
        return self.words[numbers].mean(axis=0)

    def step(self, hidden):
        """One word for each row, and the rows after it. The weights are read once for all rows."""
        for layer in self.layers:
            hidden = np.tanh(hidden @ layer)
        chosen = (hidden @ self.words.T).argmax(axis=1)
        return [WORDS[it] for it in chosen], hidden + self.words[chosen]


def length(request):
    """How many words a request wants."""
    asked = json.loads(request.parameters()).get("max_new_tokens", 20)
    return min(max(int(asked), 1), 1024)
