// The responses of a stream as they come: the newest ones, until it ends, fails or is stopped.
const streams = (() => {
  const MOST_EVENTS = 500, MOST_TEXT = 4000;
  const { make } = answers;

  function item(event) {
    const text = event.replace(/^data: /, "");
    const cut = text.length <= MOST_TEXT ? text : `${text.slice(0, MOST_TEXT)}… (${text.length} letters)`;
    return make("li", text.startsWith('{"error":') ? { class: "failure" } : {}, cut);
  }

  // Answers when the stream has ended; what reads it may be stopped at any time.
  async function show(answer, place) {
    const line = make("p", { class: "none" }, "waiting for the first response"), items = make("ol", { class: "events" });
    place.replaceChildren(line, items);
    const begun = performance.now();
    let rest = "", all = 0;
    const say = (how) => (line.textContent = `${all} ${all === 1 ? "response" : "responses"} ${how} ${answers.duration(Math.round(1000 * (performance.now() - begun)))}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    try {
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const events = (rest + part.value).split("\n\n");
        rest = events.pop();
        all += events.length;
        items.append(...events.slice(-MOST_EVENTS).map(item));
        while (MOST_EVENTS < items.childElementCount) items.firstChild.remove();
        items.start = all - items.childElementCount + 1;
        say("so far,");
      }
      say("in");
    } catch (error) {
      say(error.name === "AbortError" ? "until it was stopped, after" : "until the connection broke, after");
    }
  }

  return { show };
})();
