// The form that asks a model, and the request in other languages.
const workbench = (() => {
  const MOST_PREVIEWS = 8;
  const { make } = answers;
  // Of the form that stands on the page: its element, its markup as the server wrote it, and the model it asks.
  let panel = null, served = "", model = null, asked = "", stopper = null;
  const part = (id) => panel.querySelector(`#${id}`);
  const fileInput = (field) => field.querySelector("input[type=file]");

  function server() {
    const told = panel.dataset, scheme = told.httpTls === "true" ? "https" : "http";
    const host = told.httpHost || location.hostname || "localhost";
    const url = told.httpSocket ? "http:" + "//localhost" : `${scheme}:${"//"}${host}:${told.httpPort}`;
    return { url, socket: told.httpSocket, header: told.header };
  }

  function complain(field, text) {
    field.querySelector(".wrong").textContent = text;
    if (text) field.querySelector("textarea:enabled, input").focus();
  }

  async function readFiles(input, files) {
    const contents = await Promise.all(files.map(async (it) => new Uint8Array(await it.arrayBuffer())));
    const isText = input.datatype === "BYTES";
    const bytes = isText ? tensors.encode("BYTES", contents) : tensors.join(contents);
    const count = isText ? contents.length : bytes.length;
    const shape = input.shape ?? tensors.fit(input.declared, [count], count);
    // Boxes are of one picture.
    const picture = contents.length === 1 ? contents[0] : undefined;
    return { ...input, shape, bytes, files, elements: isText ? contents : [], picture };
  }

  // One input as it is sent, or nothing if it is left out.
  async function read(field) {
    const { name, datatype } = field.dataset, declared = JSON.parse(field.dataset.shape);
    const text = field.querySelector("textarea").value;
    const files = [...(fileInput(field)?.files ?? [])];
    // Only what has open dimensions has a field for its shape.
    const given = field.querySelector(".shape")?.value.trim();
    const shape = given ? tensors.parse("INT32", given).elements : null;
    if (files.length) return readFiles({ name, datatype, declared, shape }, files);
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
    for (const field of panel.querySelectorAll("fieldset")) {
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

  // What stands between the braces of the parameters, so that numbers keep their digits; `null` if it cannot be read.
  function readParameters() {
    const field = panel.querySelector(".parameters"), text = part("try-parameters").value.trim();
    complain(field, "");
    try {
      const all = JSON.parse(text || "{}");
      if (all === null || typeof all !== "object" || Array.isArray(all)) throw new Error('expected an object: {"sequence_id": 1}');
    } catch (error) {
      complain(field, error.message);
      return null;
    }
    return text.slice(1, -1).trim();
  }

  // The request as it is written: inputs and parameters; `null`, and a word beside what cannot be read.
  async function readRequest() {
    const inputs = await readAll(), given = inputs && readParameters();
    return inputs && given !== null ? { inputs, given } : null;
  }

  function headers(more) {
    const token = document.querySelector("meta[name=troupe-page-token]").content, secret = part("try-header");
    try {
      return new Headers({ "troupe-page-token": token, ...(secret ? { [panel.dataset.header]: secret.value } : {}), ...more });
    } catch {
      throw new Error("a header takes no such letters");
    }
  }

  // Whatever goes wrong before there is an answer: nobody answers.
  async function post(end, body, more) {
    const options = { method: "POST", body, headers: headers(more), signal: stopper.signal };
    try {
      return await fetch(`${asked}/${end}`, options);
    } catch (error) {
      throw error.name === "AbortError" ? error : new Error("the server does not answer");
    }
  }

  async function infer({ inputs, given }, said) {
    const described = inputs.map(({ name, datatype, shape, bytes }) => ({ name, datatype, shape, parameters: { binary_data_size: bytes.length } }));
    const parameters = `{"troupe_timing":true,"binary_data_output":true${given && `,${given}`}}`;
    const head = new TextEncoder().encode(`{"parameters":${parameters},"inputs":${JSON.stringify(described)}}`);
    const begun = performance.now();
    const answer = await post("infer", tensors.join([head, ...inputs.map((it) => it.bytes)]), {
      "content-type": "application/octet-stream", "inference-header-content-length": String(head.length),
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
    answers.badges(all, JSON.parse(panel.dataset.steps), Number(panel.dataset.firstNode));
  }

  async function stream({ inputs, given }, said) {
    const answer = await post("generate_stream", snippets.flat(inputs, given), { "content-type": "application/json" });
    if (!answer.ok) return said.replaceChildren(...answers.failed(answer.status, await answer.text()));
    return streams.show(answer, said);
  }

  async function submit(event) {
    event.preventDefault();
    const request = await readRequest();
    if (!request || stopper) return;
    const [send, stop] = [panel.querySelector("[type=submit]"), panel.querySelector(".stop")], said = part("try-answer");
    const own = (stopper = new AbortController());
    send.disabled = true;
    stop.hidden = false;
    said.dataset.state = "waits";
    try {
      await (model.decoupled ? stream(request, said) : infer(request, said));
    } catch (error) {
      said.replaceChildren(make("p", { class: "when" }, error.name === "AbortError" ? "stopped" : error.message));
    }
    if (stopper === own) stopper = null;
    said.dataset.state = "done";
    send.disabled = false;
    stop.hidden = true;
  }

  async function copy(button) {
    const request = await readRequest();
    if (!request) return;
    const code = part("try-code"), kind = button.dataset.code;
    let text;
    try {
      text = snippets[kind](server(), model, request.inputs, request.given);
    } catch (error) {
      return part("try-answer").replaceChildren(make("p", { class: "when" }, error.message));
    }
    code.hidden = false;
    code.textContent = text;
    code.dataset.kind = kind;
    const label = (button.dataset.label ??= button.textContent);
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = label), 1500);
    } catch {
      getSelection().selectAllChildren(code);
    }
  }

  // What is about to be sent instead of the text: the names of the files, and those that are pictures.
  function preview(field) {
    const place = field.querySelector(".preview"), files = [...fileInput(field).files];
    field.querySelector("textarea").disabled = files.length !== 0;
    place.replaceChildren();
    if (files.length) place.append(make("button", { type: "button", class: "remove" }, files.length === 1 ? "Remove the file" : `Remove the ${files.length} files`));
    for (const file of files.slice(0, MOST_PREVIEWS).filter((it) => it.type.startsWith("image/"))) {
      const image = make("img", { alt: file.name }), reader = new FileReader();
      place.append(image);
      reader.onload = () => (image.src = reader.result);
      reader.readAsDataURL(file);
    }
  }

  function remove(field) {
    fileInput(field).value = "";
    preview(field);
    field.querySelector("textarea").focus();
  }

  function begin(it) {
    const told = it.dataset;
    [panel, served] = [it, it.outerHTML];
    const path = `/v2/models/${encodeURIComponent(told.model)}`;
    // Here all versions have their own address; elsewhere the newest needs none.
    asked = `${path}/versions/${told.version}`;
    const isNewest = told.newest === "true";
    model = {
      name: told.model, version: isNewest ? "" : told.version, path: isNewest ? path : asked,
      decoupled: told.decoupled === "true", binary: told.binary === "true",
    };
    const form = it.querySelector("form");
    form.addEventListener("submit", submit);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    form.addEventListener("change", (event) => {
      if (event.target.type === "file") preview(event.target.closest("fieldset"));
    });
    it.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button?.dataset.code) copy(button);
      else if (button?.matches(".remove")) remove(button.closest("fieldset"));
      else if (button?.matches(".stop")) stopper?.abort();
    });
  }

  // What was written and chosen in the form before.
  function carry(old) {
    const before = [...old.querySelectorAll("fieldset")];
    for (const field of panel.querySelectorAll("fieldset")) {
      const same = before.find((it) => it.dataset.name === field.dataset.name && it.dataset.datatype === field.dataset.datatype);
      if (!same) continue;
      for (const kind of ["textarea", ".shape"]) {
        const [from, to] = [same.querySelector(kind), field.querySelector(kind)];
        if (from && to && from.value !== from.defaultValue) to.value = from.value;
      }
      if (!fileInput(field) || !fileInput(same)?.files.length) continue;
      fileInput(field).files = fileInput(same).files;
      preview(field);
    }
    for (const id of ["#try-header", "#try-parameters"]) {
      const [from, to] = [old.querySelector(id), panel.querySelector(id)];
      if (from && to && from.value !== from.defaultValue) to.value = from.value;
    }
    part("try-answer").replaceChildren(...old.querySelector("#try-answer").childNodes);
  }

  // The form to stand in the place of `fresh`, which the server has written now: the one there was, unless
  // it has become another, with what was written into it.
  function renewed(fresh) {
    if (!fresh || (panel && served === fresh.outerHTML)) return fresh && panel;
    const old = panel;
    stopper?.abort();
    stopper = null;
    begin(fresh);
    if (old) carry(old);
    return panel;
  }

  const first = document.getElementById("try");
  if (first) begin(first);
  return { renewed };
})();
