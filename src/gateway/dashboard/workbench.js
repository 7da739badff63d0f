// The form that asks a model, and the request in other languages.
(() => {
  const panel = document.getElementById("try");
  if (!panel) return;
  const { make } = answers;
  const form = panel.querySelector("form"), said = document.getElementById("try-answer"), code = document.getElementById("try-code");
  const told = panel.dataset;
  const model = {
    name: told.model, version: told.version, decoupled: told.decoupled === "true",
    path: `/v2/models/${encodeURIComponent(told.model)}`,
  };
  // Here all versions have their own address; elsewhere the newest needs none.
  const asked = `${model.path}/versions/${told.version}`;
  if (told.newest !== "true") model.path = asked;
  else model.version = "";
  const steps = JSON.parse(told.steps);
  const token = document.querySelector("meta[name=troupe-page-token]").content;

  function server() {
    const scheme = told.httpTls === "true" ? "https" : "http";
    const host = told.httpHost || location.hostname || "localhost";
    const url = told.httpSocket ? "http:" + "//localhost" : `${scheme}:${"//"}${host}:${told.httpPort}`;
    return { url, socket: told.httpSocket, header: told.header };
  }

  function complain(field, text) {
    field.querySelector(".wrong").textContent = text;
    if (text) field.querySelector("textarea, input").focus();
  }

  // One input as it is sent, or nothing if it is left out.
  async function read(field) {
    const { name, datatype } = field.dataset, declared = JSON.parse(field.dataset.shape);
    const text = field.querySelector("textarea").value;
    const files = [...(field.querySelector("input[type=file]")?.files ?? [])];
    const given = field.querySelector(".shape").value.trim();
    const shape = given ? tensors.parse("INT32", given).elements : null;
    if (files.length) {
      const contents = await Promise.all(files.map(async (it) => new Uint8Array(await it.arrayBuffer())));
      const elements = datatype === "BYTES" ? contents : null;
      const bytes = elements ? tensors.encode("BYTES", elements) : tensors.join(contents);
      const count = elements ? elements.length : bytes.length;
      return { name, datatype, shape: shape ?? tensors.fit(declared, [count], count), bytes, files, elements: elements ?? [], picture: contents[0] };
    }
    if (!text.trim()) {
      if (field.dataset.optional === "true") return null;
      if (datatype !== "BYTES") throw new Error("it needs a value");
    }
    const kind = text.trim();
    if (datatype !== "BYTES" && ["zeros", "ones", "random"].includes(kind)) {
      const all = shape ?? declared.map((it) => (it < 0 ? 1 : it));
      const elements = tensors.filled(datatype, kind, tensors.count(all));
      return { name, datatype, shape: all, elements, filled: kind, bytes: tensors.encode(datatype, elements) };
    }
    const written = tensors.parse(datatype, text);
    const fitted = shape ?? tensors.fit(declared, written.shape, written.elements.length);
    if (tensors.count(fitted) !== written.elements.length) {
      throw new Error(`the shape [${fitted}] has ${tensors.count(fitted)} elements, and ${written.elements.length} are written`);
    }
    return { name, datatype, shape: fitted, elements: written.elements, bytes: tensors.encode(datatype, written.elements) };
  }

  // All inputs; `null`, and a word beside it, if one cannot be read.
  async function readAll() {
    const inputs = [];
    let wrong = null;
    for (const field of form.querySelectorAll("fieldset")) {
      complain(field, "");
      try {
        const input = await read(field);
        if (input) inputs.push(input);
      } catch (error) {
        wrong ??= [field, error.message];
      }
    }
    if (wrong) complain(...wrong);
    return wrong ? null : inputs;
  }

  function headers(more) {
    const secret = document.getElementById("try-header");
    return { "troupe-page-token": token, ...(secret ? { [told.header]: secret.value } : {}), ...more };
  }

  async function infer(inputs) {
    const request = {
      parameters: { troupe_timing: true, binary_data_output: true },
      inputs: inputs.map(({ name, datatype, shape, bytes }) => ({ name, datatype, shape, parameters: { binary_data_size: bytes.length } })),
    };
    const head = new TextEncoder().encode(JSON.stringify(request));
    const begun = performance.now();
    const answer = await fetch(`${asked}/infer`, {
      method: "POST", body: tensors.join([head, ...inputs.map((it) => it.bytes)]),
      headers: headers({ "content-type": "application/octet-stream", "inference-header-content-length": String(head.length) }),
    });
    const bytes = new Uint8Array(await answer.arrayBuffer());
    const took = performance.now() - begun;
    if (!answer.ok) return said.replaceChildren(...answers.failed(answer.status, new TextDecoder().decode(bytes)));
    const length = Number(answer.headers.get("inference-header-content-length") ?? bytes.length);
    const body = JSON.parse(new TextDecoder().decode(bytes.subarray(0, length)));
    let at = length;
    const outputs = (body.outputs ?? []).map((it) => {
      const data = bytes.subarray(at, (at += it.parameters?.binary_data_size ?? 0));
      return { ...it, bytes: data, elements: it.data ?? tensors.decode(it.datatype, data, answers.MOST_ELEMENTS) };
    });
    const all = answers.times(body.parameters);
    const picture = inputs.find((it) => it.picture)?.picture;
    const whole = all.get("")?.total;
    const line = whole === undefined ? `${took.toFixed(1)} ms` : `${answers.duration(whole)} in the server, ${took.toFixed(1)} ms until it was here`;
    said.replaceChildren(make("p", { class: "none" }, `Version ${body.model_version} answered: ${line}`), ...(await answers.good(outputs, picture, body.parameters)));
    answers.badges(all, steps, Number(told.firstNode));
  }

  // Responses as they come.
  async function stream(inputs) {
    const answer = await fetch(`${asked}/generate_stream`, {
      method: "POST", body: snippets.flat(inputs), headers: headers({ "content-type": "application/json" }),
    });
    if (!answer.ok) return said.replaceChildren(...answers.failed(answer.status, await answer.text()));
    const items = make("ol", { class: "events" });
    said.replaceChildren(items);
    let rest = "";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (rest + part.value).split("\n\n");
      rest = events.pop();
      for (const it of events) items.append(make("li", {}, it.replace(/^data: /, "")));
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const inputs = await readAll();
    if (!inputs) return;
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    said.dataset.state = "waits";
    try {
      await (model.decoupled ? stream(inputs) : infer(inputs));
    } catch (error) {
      const text = error instanceof TypeError ? "the server does not answer" : error.message;
      said.replaceChildren(make("p", { class: "when" }, text));
    }
    said.dataset.state = "done";
    button.disabled = false;
  });

  panel.addEventListener("click", async (event) => {
    const kind = event.target.closest("button[data-code]")?.dataset.code;
    if (!kind) return;
    const inputs = await readAll();
    if (!inputs) return;
    const text = snippets[kind](server(), model, inputs);
    code.hidden = false;
    code.textContent = text;
    code.dataset.kind = kind;
    const label = event.target.textContent;
    try {
      await navigator.clipboard.writeText(text);
      event.target.textContent = "Copied";
      setTimeout(() => (event.target.textContent = label), 1500);
    } catch {
      getSelection().selectAllChildren(code);
    }
  });

  // The picture that is about to be sent.
  form.addEventListener("change", async (event) => {
    if (event.target.type !== "file") return;
    const place = event.target.closest("fieldset").querySelector(".preview"), [file] = event.target.files;
    place.replaceChildren();
    if (!file?.type.startsWith("image/")) return;
    const reader = new FileReader();
    reader.onload = () => place.replaceChildren(make("img", { src: reader.result, alt: file.name }));
    reader.readAsDataURL(file);
  });
})();
