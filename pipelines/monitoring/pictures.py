"""Takes the pictures of the page anew, of a server that runs: live.png under load, workbench.png with an answer.

    python pipelines/monitoring/pictures.py [--http=localhost:8000] [--page=localhost:8002]

Needs chromium and its chromedriver. The server serves this project's model_repository, from a release build.
"""

import argparse
import base64
import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
PICTURE = HERE.parent / "ocr/images/sign_street.jpg"
LOAD_SECONDS = 30
CALLERS = 2


class Browser:
    """A headless window, driven through chromedriver in WebDriver's words."""

    def __init__(self, width, height):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        lines = (re.search(r"successfully on port (\d+)", line) for line in self.driver.stdout)
        port = next(found[1] for found in lines if found)
        threading.Thread(target=self.driver.stdout.read, daemon=True).start()
        self.address = f"http://localhost:{port}/session"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options = {"goog:chromeOptions": {"args": arguments}}
        answer = self.ask("POST", "", {"capabilities": {"alwaysMatch": options}})
        self.address += "/" + answer["sessionId"]
        # Windows have frames, screens have none.
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.tell("Emulation.setDeviceMetricsOverride", size)

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, method=method)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["value"]

    def tell(self, command, params):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def run(self, script):
        return self.ask("POST", "/execute/sync", {"script": script, "args": []})

    def go(self, url):
        self.ask("POST", "/url", {"url": url})

    def element(self, selector):
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        return "/element/" + next(iter(found.values()))

    def wait(self, expression):
        while not self.run(f"return {expression}"):
            time.sleep(0.1)

    def shoot(self, path, clip):
        """Writes the part of the page that `clip` says: x, y, width, height."""
        clip = dict(zip(("x", "y", "width", "height"), clip), scale=1)
        shot = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        path.write_bytes(base64.b64decode(self.tell("Page.captureScreenshot", shot)["data"]))
        print("wrote", path)

    def close(self):
        self.ask("DELETE", "")
        self.driver.terminate()


def ask_ocr(http, picture):
    body = json.dumps({"inputs": [{
        "name": "input_image", "datatype": "UINT8", "shape": [len(picture)],
        "parameters": {"binary_data_size": len(picture)},
    }]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(body))}
    request = urllib.request.Request(f"http://{http}/v2/models/ocr/infer", body + picture, headers)
    with urllib.request.urlopen(request) as answer:
        answer.read()


def live(browser, http, page):
    until = time.time() + LOAD_SECONDS
    picture = PICTURE.read_bytes()

    def call():
        while time.time() < until:
            ask_ocr(http, picture)

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for it in callers:
        it.start()
    try:
        # One that fails, to be seen.
        ask_ocr(http, b"no picture")
    except urllib.error.HTTPError as error:
        print("as it should be:", error.read().decode())
    browser.go(f"http://{page}/ensemble/ocr")
    browser.ask("POST", browser.element("a.step[aria-label*=text_detection]") + "/click", {})
    time.sleep(LOAD_SECONDS - 5)
    browser.shoot(HERE / "live.png", (0, 0, 1200, 837))
    for it in callers:
        it.join()


def workbench(browser, page):
    browser.go(f"http://{page}/ensemble/ocr")
    file = browser.element("#try [type=file]")
    send = browser.element("#try [type=submit]") + "/click"
    browser.ask("POST", file + "/value", {"text": str(PICTURE.resolve())})
    # The second answer is that of a server that has done it before.
    for _ in range(2):
        browser.run("delete document.getElementById('try-answer').dataset.state")
        browser.ask("POST", send, {})
        browser.wait("document.getElementById('try-answer').dataset.state === 'done'")
    browser.wait("!document.querySelector('#try .stop:not([hidden])')")
    browser.run("document.activeElement.blur()")
    box = "const it = document.getElementById('try').getBoundingClientRect()"
    browser.shoot(HERE / "workbench.png",
                  browser.run(f"{box}; return [it.x - 8, it.y + scrollY - 8, it.width + 16, it.height + 16]"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", default="localhost:8000", help="address of the HTTP port")
    parser.add_argument("--page", default="localhost:8002", help="address of the metrics port")
    arguments = parser.parse_args()
    browser = Browser(1200, 837)
    try:
        live(browser, arguments.http, arguments.page)
        workbench(browser, arguments.page)
    finally:
        browser.close()


if __name__ == "__main__":
    main()
