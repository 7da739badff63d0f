// A request as a command line of curl and as a program in Python, which run as they are.
const snippets = (() => {
  const dtypes = {
    BOOL: "np.bool_", UINT8: "np.uint8", INT8: "np.int8", UINT16: "np.uint16", INT16: "np.int16", UINT32: "np.uint32", INT32: "np.int32",
    UINT64: "np.uint64", INT64: "np.int64", FP16: "np.float16", BF16: "ml_dtypes.bfloat16", FP32: "np.float32", FP64: "np.float64",
  };
  const MOST_IN_ARGUMENT = 30000;
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const list = (elements) => `[${elements.map((it) => (typeof it === "bigint" ? it.toString() : JSON.stringify(it))).join(", ")}]`;
  const octal = (bytes) => [...bytes].map((it) => "\\" + it.toString(8).padStart(3, "0")).join("");

  // How curl reaches the port, and where.
  function target(server, path) {
    if (server.socket) return `--unix-socket ${quote(server.socket)} ${quote(server.url + path)}`;
    return quote(server.url + path);
  }

  function header(server) {
    return server.header ? ` \\\n  -H ${quote(`${server.header}: …`)}` : "";
  }

  // JSON has neither files nor numbers of 16 bits: they follow it as bytes.
  const isBinary = (it) => it.files || it.datatype === "FP16" || it.datatype === "BF16";

  function described(input) {
    const head = `{"name":${JSON.stringify(input.name)},"datatype":${JSON.stringify(input.datatype)},"shape":${JSON.stringify(input.shape)}`;
    if (!isBinary(input)) return `${head},"data":${list(input.elements)}}`;
    return `${head},"parameters":{"binary_data_size":${input.bytes.length}}}`;
  }

  // Commands that write what follows the JSON.
  function bytesOf(input) {
    if (!input.files) return input.filled === "zeros" ? [`head -c ${input.bytes.length} /dev/zero`] : [`printf ${quote(octal(input.bytes))}`];
    return input.files.flatMap((file) => {
      const length = input.datatype === "BYTES" ? [`printf ${quote(octal(tensors.length(file.size)))}`] : [];
      return [...length, `cat < ${quote(file.name)}`];
    });
  }

  function shell(server, model, inputs, given) {
    if (model.decoupled) return stream(server, model, inputs, given);
    const parts = inputs.filter(isBinary).flatMap(bytesOf);
    const parameters = [model.binary && '"binary_data_output":true', given].filter(Boolean).join(",");
    const body = `{"inputs":[${inputs.map(described).join(",")}]${parameters && `,"parameters":{${parameters}}`}}`;
    const call = `curl ${target(server, `${model.path}/infer`)}${header(server)}${model.binary ? " --output answer.bin" : ""}`;
    if (!parts.length) return posted(call, body);
    const head = new TextEncoder().encode(body).length;
    return `{ printf %s ${quote(body)}; ${parts.join("; ")}; } |\n  ${call} \\\n` +
      `  -H 'Inference-Header-Content-Length: ${head}' --data-binary @-`;
  }

  // One argument of a program has a limit, those of `printf` have none: it is a part of the shell.
  function posted(call, body) {
    if (body.length < MOST_IN_ARGUMENT) return `${call} \\\n  -d ${quote(body)}`;
    return `printf %s ${quote(body)} |\n  ${call} -d @-`;
  }

  // Streams are asked in plain JSON, whose strings are text.
  function flat(inputs, given) {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    const plain = (it) => {
      if (!it.files) return it.elements;
      if (it.datatype !== "BYTES") return [...it.bytes];
      try {
        return it.elements.map((bytes) => text.decode(bytes));
      } catch {
        throw new Error(`${it.name}: a stream takes text, and this file is none`);
      }
    };
    const one = (all) => (all.length === 1 ? list(all).slice(1, -1) : list(all));
    const tensors = inputs.map((it) => `${JSON.stringify(it.name)}:${one(plain(it))}`);
    return `{${[...tensors, ...(given ? [`"parameters":{${given}}`] : [])].join(",")}}`;
  }

  function stream(server, model, inputs, given) {
    return posted(`curl -N ${target(server, `${model.path}/generate_stream`)}${header(server)}`, flat(inputs, given));
  }

  // Those that the client has arguments for, and the others.
  function pythonParameters(given) {
    const own = ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout"];
    // Ids have more digits than numbers of JavaScript.
    const kept = (_, it, at) => (typeof it === "number" && at?.source ? { digits: at.source } : it);
    const words = new Map([[true, "True"], [false, "False"], [null, "None"]]);
    const value = (it) => words.get(it) ?? it.digits ?? JSON.stringify(it);
    const all = Object.entries(JSON.parse(`{${given}}`, kept)), others = all.filter(([name]) => !own.includes(name));
    const named = all.filter(([name]) => own.includes(name)).map(([name, it]) => `, ${name}=${value(it)}`).join("");
    return named + (others.length ? `, parameters={${others.map(([name, it]) => `${JSON.stringify(name)}: ${value(it)}`).join(", ")}}` : "");
  }

  function python(server, model, inputs, given) {
    if (server.socket) return "# Python's clients reach no Unix socket: curl does, or a --http-port.";
    if (model.decoupled) return pythonStream(server, model, inputs, given);
    const half = inputs.some((it) => it.datatype === "BF16") ? ["import ml_dtypes"] : [];
    const lines = [...half, "import numpy as np", "import tritonclient.http as triton", ""];
    const tls = server.url.startsWith("https") ? ", ssl=True" : "";
    lines.push(`client = triton.InferenceServerClient(${JSON.stringify(server.url.replace(/^https?:[/][/]/, ""))}${tls})`);
    lines.push("inputs = []");
    for (const it of inputs) {
      lines.push(`data = ${array(it)}`);
      lines.push(`inputs.append(triton.InferInput(${JSON.stringify(it.name)}, list(data.shape), ${JSON.stringify(it.datatype)}))`);
      lines.push("inputs[-1].set_data_from_numpy(data)");
    }
    const version = model.version ? `, model_version=${JSON.stringify(model.version)}` : "";
    const headers = server.header ? `, headers={${JSON.stringify(server.header)}: "…"}` : "";
    lines.push(`answer = client.infer(${JSON.stringify(model.name)}, inputs${version}${pythonParameters(given)}${headers})`);
    lines.push('for output in answer.get_response()["outputs"]:', '    print(output["name"], answer.as_numpy(output["name"]))');
    return lines.join("\n");
  }

  function array(input) {
    const { datatype, shape, files } = input;
    const reshaped = `.reshape(${JSON.stringify(shape)})`;
    if (files && datatype !== "BYTES") return `np.fromfile(${JSON.stringify(files[0].name)}, dtype=${dtypes[datatype]})${reshaped}`;
    if (files) {
      const read = files.map((it) => `open(${JSON.stringify(it.name)}, "rb").read()`);
      return `np.array([${read.join(", ")}], dtype=object)${reshaped}`;
    }
    if (datatype === "BYTES") return `np.array(${list(input.elements)}, dtype=object)${reshaped}`;
    if (input.filled) return filled(input);
    const elements = datatype === "BOOL" ? `[${input.elements.map((it) => (it ? "True" : "False")).join(", ")}]` : list(input.elements);
    return `np.array(${elements}, dtype=${dtypes[datatype]})${reshaped}`;
  }

  function filled({ filled, datatype, shape }) {
    const form = `(${JSON.stringify(shape)}`;
    if (filled === "random" && datatype === "BOOL") return `np.random.random${form}) < 0.5`;
    if (filled === "random" && datatype.includes("INT")) return `np.random.randint(0, 100, ${JSON.stringify(shape)}).astype(${dtypes[datatype]})`;
    if (filled !== "random") return `np.${filled}${form}, dtype=${dtypes[datatype]})`;
    return `np.random.random${form}).astype(${dtypes[datatype]})`;
  }

  function pythonStream(server, model, inputs, given) {
    const headers = server.header ? `, {${JSON.stringify(server.header)}: "…"}` : "";
    return [
      "import urllib.request", "",
      `body = ${JSON.stringify(flat(inputs, given))}`,
      `url = ${JSON.stringify(`${server.url}${model.path}/generate_stream`)}`,
      `request = urllib.request.Request(url, body.encode()${headers})`,
      "with urllib.request.urlopen(request) as answer:",
      "    for line in answer:",
      '        if line.startswith(b"data: "):',
      "            print(line[6:].decode().strip())",
    ].join("\n");
  }

  return { curl: shell, python, flat };
})();
