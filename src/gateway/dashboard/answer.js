// What a request was answered: tables, pictures with boxes, and where its time went.
const answers = (() => {
  const MOST_ROWS = 200, MOST_ELEMENTS = 50000, MOST_IN_CELL = 64, MOST_TEXT = 4000, MOST_SHORT = 20;
  const MOST_HEX = 24;
  // How files begin; a hole is any byte.
  const names = { PNG: [0x89, 0x50, 0x4e, 0x47], JPEG: [0xff, 0xd8, 0xff], GIF: [0x47, 0x49, 0x46, 0x38], WEBP: [0x52, 0x49, 0x46, 0x46, , , , , 0x57, 0x45, 0x42, 0x50] };
  const space = "http:" + "//www.w3.org/2000/svg";

  // Whatever a model answers is text: nothing here writes markup.
  function make(tag, attributes, ...inside) {
    const element = tag.startsWith("svg:") ? document.createElementNS(space, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
    element.append(...inside);
    return element;
  }

  const pictureType = (bytes) => Object.keys(names).find((name) => names[name].every((it, at) => bytes[at] === it));

  // Of bytes, as the policy of the page lets pictures in.
  function dataUrl(bytes) {
    let text = "";
    for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
    return `data:image/${pictureType(bytes).toLowerCase()};base64,${btoa(text)}`;
  }

  // Text, or what says that it is none.
  function words(bytes) {
    const cut = bytes.subarray(0, MOST_TEXT), isCut = cut.length < bytes.length;
    let text = "\0";
    try {
      // The last letter may be cut in two.
      text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(cut, { stream: isCut });
    } catch {
      // Shown as numbers below.
    }
    if (!text.includes("\0")) return isCut ? `${text}… (${bytes.length} bytes)` : text;
    const hex = [...bytes.subarray(0, MOST_HEX)].map((it) => it.toString(16).padStart(2, "0")).join(" ");
    return `${bytes.length} bytes, no text: ${hex}${MOST_HEX < bytes.length ? " …" : ""}`;
  }

  function shown(value, datatype) {
    if (value instanceof Uint8Array) return words(value);
    if (typeof value === "number" && !Number.isInteger(value) && datatype !== "FP64") return String(Number(value.toPrecision(7)));
    return String(value);
  }

  // Elements of one row as lists in lists; the elements behind the first ones are "…".
  function cell(elements, shape, datatype) {
    let left = MOST_IN_CELL;
    const list = (from, [size, ...inner]) => {
      if (size === undefined) {
        left -= 1;
        return shown(elements[from], datatype);
      }
      const items = [], width = tensors.count(inner);
      for (let at = 0; at < size && 0 < left && from + at * width < elements.length; at++) items.push(list(from + at * width, inner));
      if (items.length < size) items.push("…");
      return `[${items.join(", ")}]`;
    };
    return list(0, shape);
  }

  // A batch of one short row is shown as that row.
  function unbatched(it) {
    const { shape } = it;
    const isOne = 2 <= shape.length && shape[0] === 1 && (shape[1] <= MOST_SHORT || 4 <= shape.length);
    return isOne ? { ...it, shape: shape.slice(1), answered: shape } : it;
  }

  const rowsOf = (it) => (it.shape.length ? it.shape[0] : 1);
  const title = (it) => `${it.datatype} [${(it.answered ?? it.shape).join(",")}]`;

  // Outputs with as many rows side by side.
  function table(outputs) {
    const rows = rowsOf(outputs[0]);
    const heads = outputs.map((it) => make("th", { scope: "col" }, it.name, make("small", {}, ` ${title(it)}`)));
    const body = make("tbody");
    // Of large outputs not all elements were decoded.
    const known = (it) => {
      const width = tensors.count(it.shape.slice(1));
      return width ? Math.ceil(it.elements.length / width) : rows;
    };
    const shownRows = Math.min(rows, MOST_ROWS, Math.max(...outputs.map(known)));
    for (let row = 0; row < shownRows; row++) {
      const cells = outputs.map((it) => {
        const inner = it.shape.slice(1), width = tensors.count(inner);
        const value = it.elements.slice(row * width, (row + 1) * width);
        if (it.datatype === "BYTES" && width === 1 && value[0] && pictureType(value[0])) {
          return make("td", {}, make("img", { src: dataUrl(value[0]), alt: `${it.name} ${row}` }));
        }
        // What has one element in each row is that element.
        return make("td", {}, value.length || !width ? cell(value, width === 1 ? [] : inner, it.datatype) : "…");
      });
      body.append(make("tr", {}, make("th", { scope: "row" }, String(row)), ...cells));
    }
    const all = [make("table", { class: "answer" }, make("thead", {}, make("tr", {}, make("th"), ...heads)), body)];
    if (!rows) all.push(make("p", { class: "none" }, "There are no rows."));
    if (shownRows < rows) all.push(make("p", { class: "none" }, `${rows - shownRows} more rows are not shown.`));
    return make("div", { class: "scroll" }, ...all);
  }

  // Four corners each, or left, top, right and bottom of what is called a box.
  function corners(output) {
    const { elements, datatype, name } = output;
    const isBatch = output.shape.length === (output.shape.at(-1) === 2 ? 4 : 3) && output.shape[0] === 1;
    const shape = isBatch ? output.shape.slice(1) : output.shape;
    if (!datatype.startsWith("FP") && !datatype.includes("INT")) return null;
    const isQuads = shape.length === 3 && shape[1] === 4 && shape[2] === 2;
    const isBoxes = shape.length === 2 && shape[1] === 4 && /box|rect/i.test(name);
    if (!isQuads && !isBoxes) return null;
    const numbers = elements.map(Number), width = isQuads ? 8 : 4, all = [];
    for (let at = 0; at + width <= numbers.length; at += width) {
      const it = numbers.slice(at, at + width);
      all.push(isQuads ? it : [it[0], it[1], it[2], it[1], it[2], it[3], it[0], it[3]]);
    }
    return all;
  }

  // The picture that was sent, with every box that came back, and the words for it.
  async function marked(bytes, outputs) {
    const found = outputs.map(corners).find((it) => it);
    if (!found || !bytes || !pictureType(bytes)) return null;
    const url = dataUrl(bytes), image = new Image();
    image.src = url;
    await image.decode();
    const [width, height] = [image.naturalWidth, image.naturalHeight];
    const labels = outputs.find((it) => it.datatype === "BYTES" && it.elements.length === found.length);
    // Parts of the whole, or pixels.
    const scale = found.flat().every((it) => 0 <= it && it <= 1) ? [width, height] : [1, 1];
    const size = Math.max(9, Math.round(width / 36));
    const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, class: "boxes", role: "img", "aria-label": `${found.length} boxes` });
    svg.append(make("svg:image", { href: url, width, height }));
    found.forEach((box, index) => {
      const points = [0, 2, 4, 6].map((at) => [box[at] * scale[0], box[at + 1] * scale[1]]);
      svg.append(make("svg:polygon", { points: points.map((it) => it.join(",")).join(" "), class: "box" }));
      const [x, y] = [Math.min(...points.map((it) => it[0])), Math.min(...points.map((it) => it[1]))];
      if (labels) svg.append(make("svg:text", { x, y: Math.max(size, y - 3), "font-size": size }, shown(labels.elements[index])));
    });
    return svg;
  }

  // A tensor of 8-bit pixels.
  function pixels(output) {
    const { shape } = output, [height, width, depth] = shape;
    if (output.datatype !== "UINT8" || shape.length !== 3 || ![1, 3, 4].includes(depth) || height < 4 || width < 4) return null;
    if (output.bytes.length !== height * width * depth || 4096 < Math.max(height, width)) return null;
    const canvas = make("canvas", { width, height, "aria-label": output.name });
    const data = new ImageData(width, height);
    for (let at = 0; at < height * width; at++) {
      for (let channel = 0; channel < 3; channel++) data.data[4 * at + channel] = output.bytes[at * depth + (depth === 1 ? 0 : channel)];
      data.data[4 * at + 3] = depth === 4 ? output.bytes[at * depth + 3] : 255;
    }
    canvas.getContext("2d").putImageData(data, 0, 0);
    return make("figure", { class: "pixels" }, canvas, make("figcaption", {}, `${output.name} ${title(output)}`));
  }

  const duration = (us) => (us < 1000 ? `${us} µs` : us < 1e6 ? `${Number((us / 1000).toPrecision(3))} ms` : `${Number((us / 1e6).toPrecision(3))} s`);

  // Microseconds by path and what they are of: `1.mul` → {start, total, queue, …}.
  function times(parameters) {
    const all = new Map();
    for (const [key, value] of Object.entries(parameters ?? {})) {
      const found = /^troupe_timing(?:\.(.*))?\.(start|total|queue|compute_input|compute_infer|compute_output)_us$/s.exec(key);
      if (!found) continue;
      const path = found[1] ?? "";
      if (!all.has(path)) all.set(path, {});
      all.get(path)[found[2]] = value;
    }
    return all;
  }

  // One bar for each step, from its begin to its end; what waited is pale.
  function waterfall(all) {
    const whole = all.get("")?.total;
    const rows = [...all].filter(([path]) => path).sort((one, other) => one[1].start - other[1].start);
    if (!whole || !rows.length) return null;
    const body = make("tbody");
    for (const [path, it] of rows) {
      const part = (us) => `${Math.max(0, Math.min(100, (100 * us) / whole)).toFixed(2)}%`;
      const svg = make("svg:svg", { height: 10, "aria-hidden": "true" });
      svg.append(make("svg:rect", { class: "track", width: "100%", height: 10, rx: 3 }));
      svg.append(make("svg:rect", { class: "wait", x: part(it.start), width: part(it.total), height: 10, rx: 2 }));
      const work = it.total - (it.queue ?? 0);
      svg.append(make("svg:rect", { class: "bar", x: part(it.start + (it.queue ?? 0)), width: part(work), height: 10, rx: 2 }));
      const waited = it.queue === undefined ? "" : `${duration(it.queue)} in the queue`;
      body.append(make("tr", {}, make("th", { scope: "row" }, path), make("td", { class: "share" }, svg), make("td", {}, duration(it.total)), make("td", {}, waited)));
    }
    return make("table", { class: "waterfall", "aria-label": "time of each step" }, body);
  }

  // The time of each step beside it in the graph.
  function badges(all, steps, firstNode) {
    document.querySelectorAll(".graph .asked").forEach((it) => it.remove());
    steps.forEach((name, index) => {
      const it = all.get(`${index}.${name}`) ?? (steps.length === 1 ? all.get("") : undefined);
      if (!it || it.total === undefined) return;
      for (const prefix of ["", "m"]) {
        const card = document.querySelector(`#${prefix}n${firstNode + index} .card`);
        if (!card) continue;
        const text = duration(it.total), width = 12 + 6.6 * text.length;
        const x = Number(card.getAttribute("x")) + Number(card.getAttribute("width")) - width - 6;
        const y = Number(card.getAttribute("y")) - 9;
        card.parentNode.append(make("svg:g", { class: "asked" }, make("svg:rect", { x, y, width, height: 18, rx: 9 }), make("svg:text", { x: x + width / 2, y: y + 13, "text-anchor": "middle" }, text)));
      }
    });
  }

  function failed(status, text) {
    let error = text, place;
    try {
      // The first event of a stream that failed is its answer.
      ({ error, troupe: place } = JSON.parse(text.replace(/^data: /, "")));
    } catch {
      // A proxy between may answer in its own words.
    }
    const where = place ? Object.entries(place).map(([key, value]) => `${key} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ") : "";
    const parts = [make("p", { class: "when" }, `Failed with ${status}`), make("pre", { tabindex: "0" }, String(error ?? text))];
    if (where) parts.push(make("p", { class: "none" }, where));
    return parts;
  }

  async function good(answered, sent, parameters) {
    const outputs = answered.map(unbatched), parts = [];
    const picture = await marked(sent, outputs).catch(() => null);
    if (picture) parts.push(picture);
    const groups = new Map();
    for (const it of outputs) {
      const drawn = pixels(it);
      if (drawn) parts.push(drawn);
      else groups.set(rowsOf(it), [...(groups.get(rowsOf(it)) ?? []), it]);
    }
    for (const group of groups.values()) parts.push(table(group));
    const drawn = waterfall(times(parameters));
    if (drawn) parts.push(make("h3", {}, "Time of each step"), drawn);
    return parts;
  }

  return { make, good, failed, times, badges, duration, MOST_ELEMENTS };
})();
