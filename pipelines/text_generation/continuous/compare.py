"""Asks for short and long texts from 12 clients at once; says how many words came, and how soon."""
import json
import sys
import threading
import time
import urllib.request

SERVER = sys.argv[1] if 1 < len(sys.argv) else "localhost:8000"
CLIENTS, TEXTS = 12, 4
LENGTHS = [4, 8, 16, 96]


def ask(model, length, firsts):
    """One text; the words that came."""
    body = json.dumps({"text_input": "how can you be", "max_new_tokens": length}).encode()
    begun, count = time.time(), 0
    with urllib.request.urlopen(f"http://{SERVER}/v2/models/{model}/generate_stream", body) as answer:
        for line in answer:
            if line.startswith(b"data:"):
                count += 1
                if count == 1:
                    firsts.append(time.time() - begun)
    return count


def client(model, number, words, firsts):
    for text in range(TEXTS):
        words.append(ask(model, LENGTHS[(number + text) % len(LENGTHS)], firsts))


for model in ("words_together", "words"):
    words, firsts = [], []
    threads = [
        threading.Thread(target=client, args=(model, it, words, firsts)) for it in range(CLIENTS)
    ]
    begun = time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.time() - begun
    firsts.sort()
    half = 1000 * firsts[len(firsts) // 2]
    print(f"{model:15} {sum(words) / took:7.0f} words/s, first word after {half:6.1f} ms (median)")
