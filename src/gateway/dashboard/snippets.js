// A request as a command line of curl and as a program in Python, which run as they are.
const snippets = (() => {
  const dtypes = {
    BOOL: "bool_", UINT8: "uint8", INT8: "int8", UINT16: "uint16", INT16: "int16", UINT32: "uint32", INT32: "int32",
    UINT64: "uint64", INT64: "int64", FP16: "float16", BF16: "float32", FP32: "float32", FP64: "float64",
  };
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

  // Elements are written unless they come from a file.
  function described(input) {
    const head = `{"name":${JSON.stringify(input.name)},"datatype":${JSON.stringify(input.datatype)},"shape":${JSON.stringify(input.shape)}`;
    if (!input.files) return `${head},"data":${list(input.elements)}}`;
    return `${head},"parameters":{"binary_data_size":${input.bytes.length}}}`;
  }

  function shell(server, model, inputs) {
    if (model.decoupled) return stream(server, model, inputs);
    const path = `${model.path}/infer`;
    const body = `{"inputs":[${inputs.map(described).join(",")}]}`;
    const files = inputs.flatMap((it) => it.files ?? []);
    // FP16 and BF16 have no JSON: such numbers, and files, follow the JSON as bytes.
    if (!files.length) return `curl ${target(server, path)}${header(server)} \\\n  -d ${quote(body)}`;
    const parts = inputs.filter((it) => it.files).flatMap((it) => it.files.flatMap((file) => {
      const length = it.datatype === "BYTES" ? [`printf ${quote(octal(tensors.length(file.size)))}`] : [];
      return [...length, `cat ${quote(file.name)}`];
    }));
    const head = new TextEncoder().encode(body).length;
    return `{ printf %s ${quote(body)}; ${parts.join("; ")}; } |\n  curl ${target(server, path)}${header(server)} \\\n` +
      `  -H 'Inference-Header-Content-Length: ${head}' --data-binary @-`;
  }

  function flat(inputs) {
    const one = (it) => (it.elements.length === 1 ? list(it.elements).slice(1, -1) : list(it.elements));
    return `{${inputs.map((it) => `${JSON.stringify(it.name)}:${one(it)}`).join(",")}}`;
  }

  function stream(server, model, inputs) {
    return `curl -N ${target(server, `${model.path}/generate_stream`)}${header(server)} \\\n  -d ${quote(flat(inputs))}`;
  }

  function python(server, model, inputs) {
    if (model.decoupled) return pythonStream(server, model, inputs);
    const lines = ["import numpy as np", "import tritonclient.http as triton", ""];
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
    lines.push(`answer = client.infer(${JSON.stringify(model.name)}, inputs${version}${headers})`);
    lines.push('for output in answer.get_response()["outputs"]:', '    print(output["name"], answer.as_numpy(output["name"]))');
    return lines.join("\n");
  }

  function array(input) {
    const { datatype, shape, files } = input;
    const reshaped = `.reshape(${JSON.stringify(shape)})`;
    if (files && datatype !== "BYTES") return `np.fromfile(${JSON.stringify(files[0].name)}, dtype=np.${dtypes[datatype]})${reshaped}`;
    if (files) {
      const read = files.map((it) => `open(${JSON.stringify(it.name)}, "rb").read()`);
      return `np.array([${read.join(", ")}], dtype=object)${reshaped}`;
    }
    if (datatype === "BYTES") return `np.array(${list(input.elements)}, dtype=object)${reshaped}`;
    if (input.filled) return filled(input);
    const elements = datatype === "BOOL" ? `[${input.elements.map((it) => (it ? "True" : "False")).join(", ")}]` : list(input.elements);
    return `np.array(${elements}, dtype=np.${dtypes[datatype]})${reshaped}`;
  }

  function filled({ filled, datatype, shape }) {
    const form = `(${JSON.stringify(shape)}`;
    if (filled !== "random") return `np.${filled}${form}, dtype=np.${dtypes[datatype]})`;
    return `np.random.random${form}).astype(np.${dtypes[datatype]})`;
  }

  function pythonStream(server, model, inputs) {
    return [
      "import urllib.request", "",
      `body = ${JSON.stringify(flat(inputs))}`,
      `url = ${JSON.stringify(`${server.url}${model.path}/generate_stream`)}`,
      "with urllib.request.urlopen(url, body.encode()) as answer:",
      "    for line in answer:",
      '        if line.startswith(b"data: "):',
      "            print(line[6:].decode().strip())",
    ].join("\n");
  }

  return { curl: shell, python, flat };
})();
