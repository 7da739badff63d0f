// Tensors: text to elements, elements to bytes and back, and the shapes they fit.
const tensors = (() => {
  const types = {
    BOOL: [1, (view, at) => view.getUint8(at) !== 0, (view, at, it) => view.setUint8(at, it ? 1 : 0)],
    UINT8: [1, (view, at) => view.getUint8(at), (view, at, it) => view.setUint8(at, it)],
    INT8: [1, (view, at) => view.getInt8(at), (view, at, it) => view.setInt8(at, it)],
    UINT16: [2, (view, at) => view.getUint16(at, true), (view, at, it) => view.setUint16(at, it, true)],
    INT16: [2, (view, at) => view.getInt16(at, true), (view, at, it) => view.setInt16(at, it, true)],
    UINT32: [4, (view, at) => view.getUint32(at, true), (view, at, it) => view.setUint32(at, it, true)],
    INT32: [4, (view, at) => view.getInt32(at, true), (view, at, it) => view.setInt32(at, it, true)],
    UINT64: [8, (view, at) => view.getBigUint64(at, true), (view, at, it) => view.setBigUint64(at, BigInt(it), true)],
    INT64: [8, (view, at) => view.getBigInt64(at, true), (view, at, it) => view.setBigInt64(at, BigInt(it), true)],
    FP16: [2, (view, at) => fromHalf(view.getUint16(at, true)), (view, at, it) => view.setUint16(at, toHalf(it), true)],
    BF16: [2, (view, at) => fromBrain(view.getUint16(at, true)), (view, at, it) => view.setUint16(at, toBrain(it), true)],
    FP32: [4, (view, at) => view.getFloat32(at, true), (view, at, it) => view.setFloat32(at, it, true)],
    FP64: [8, (view, at) => view.getFloat64(at, true), (view, at, it) => view.setFloat64(at, it, true)],
  };
  const scratch = new DataView(new ArrayBuffer(4));

  function fromHalf(bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  }
  // As numpy rounds: halves go to the even neighbour.
  function toEven(value) {
    const near = Math.round(value);
    return near - value === 0.5 && near % 2 ? near - 1 : near;
  }
  function toHalf(value) {
    const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0, size = Math.abs(value);
    if (Number.isNaN(size)) return 0x7e00;
    if (65520 <= size) return sign | 0x7c00;
    const exponent = Math.max(-14, Math.floor(Math.log2(size || 2 ** -14)));
    // What rounds up to the next power of two carries into the exponent by itself.
    const fraction = toEven((size / 2 ** exponent) * 1024);
    return sign | (fraction < 1024 ? fraction : ((exponent + 14) << 10) + fraction);
  }
  function fromBrain(bits) {
    scratch.setUint32(0, bits << 16);
    return scratch.getFloat32(0);
  }
  function toBrain(value) {
    scratch.setFloat32(0, value);
    const bits = scratch.getUint32(0);
    return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
  }

  const count = (shape) => shape.reduce((all, it) => all * it, 1);
  const isWide = (datatype) => datatype === "INT64" || datatype === "UINT64";

  // JSON as it was written: integers of 64 bits keep all their digits, which numbers of scripts do not.
  function json(datatype, text) {
    if (!isWide(datatype)) return JSON.parse(text);
    const quoted = text.replace(/-?\d+(\.\d+)?([eE][-+]?\d+)?/g, '"$&"');
    const exact = (_, it) => (typeof it !== "string" ? it : /^-?\d+$/.test(it) ? BigInt(it) : Number(it) || it);
    return JSON.parse(quoted, exact);
  }

  // The least and the greatest of an integer type.
  function range(datatype) {
    const bits = BigInt(/\d+$/.exec(datatype)[0]);
    return datatype.startsWith("U") ? [0n, 2n ** bits - 1n] : [-(2n ** (bits - 1n)), 2n ** (bits - 1n) - 1n];
  }

  function flatten(value, shape, depth, into, check) {
    if (depth === shape.length) {
      if (Array.isArray(value)) throw new Error("the lists are of different depths");
      check(value);
      into.push(value);
      return;
    }
    if (!Array.isArray(value) || value.length !== shape[depth]) throw new Error("the lists are of different lengths");
    for (const it of value) flatten(it, shape, depth + 1, into, check);
  }

  function nested(value, check) {
    const shape = [];
    for (let it = value; Array.isArray(it); it = it[0]) shape.push(it.length);
    const elements = [];
    flatten(value, shape, 0, elements, check);
    return { shape, elements };
  }

  function checkNumber(datatype) {
    const kinds = datatype === "BOOL" ? ["boolean"] : isWide(datatype) ? ["bigint"] : ["number"];
    const wanted = datatype === "BOOL" ? "true or false" : isWide(datatype) ? "whole numbers" : "numbers";
    const isWhole = datatype.includes("INT"), [least, most] = isWhole ? range(datatype) : [];
    return (it) => {
      if (!kinds.includes(typeof it) || (isWhole && typeof it === "number" && !Number.isInteger(it))) {
        throw new Error(`${datatype} has ${wanted}, not ${JSON.stringify(it) ?? it}`);
      }
      if (isWhole && (it < least || most < it)) throw new Error(`${datatype} goes from ${least} to ${most}: ${it} does not fit`);
    };
  }

  // What is written for an input: its elements, and the shape they were written in.
  function parse(datatype, text) {
    const trimmed = text.trim();
    if (datatype === "BYTES") {
      const isString = (it) => {
        if (typeof it !== "string") throw new Error("not all are strings");
      };
      try {
        if (/^[["]/.test(trimmed)) return nested(JSON.parse(trimmed), isString);
      } catch {
        // Text that only begins like JSON is text.
      }
      return { shape: [], elements: [text] };
    }
    let value;
    try {
      value = json(datatype, trimmed);
    } catch {
      try {
        value = json(datatype, `[${trimmed}]`);
      } catch {
        throw new Error("this is no JSON: write numbers like [1, 2, 3], or zeros, ones or random");
      }
    }
    return nested(value, checkNumber(datatype));
  }

  // The shape of elements that were written in the shape `written`, for an input declared with -1
  // where any size fits.
  function fit(declared, written, elements) {
    const fits = (shape) => shape.length === declared.length && shape.every((it, at) => declared[at] < 0 || declared[at] === it);
    for (const shape of [written, [1, ...written]]) if (fits(shape)) return shape;
    let left = elements;
    const shape = [...declared];
    for (const it of declared) if (0 <= it) left /= it || 1;
    for (let at = shape.length - 1; 0 <= at; at--) {
      if (shape[at] < 0) [shape[at], left] = [left, 1];
    }
    if (left === 1 && shape.every(Number.isInteger) && written.length < 2) return shape;
    throw new Error(`${elements} elements, written as [${written}], do not fit the shape [${declared}]: write lists in lists, or give the shape`);
  }

  function filled(datatype, kind, length) {
    const random = () => (datatype === "BOOL" ? Math.random() < 0.5 : datatype.includes("INT") ? Math.floor(Math.random() * 100) : Math.random());
    const one = { zeros: () => 0, ones: () => 1, random }[kind];
    return Array.from({ length }, () => (isWide(datatype) ? BigInt(one()) : datatype === "BOOL" ? !!one() : one()));
  }

  function join(parts) {
    const all = new Uint8Array(parts.reduce((sum, it) => sum + it.length, 0));
    parts.reduce((at, it) => (all.set(it, at), at + it.length), 0);
    return all;
  }

  // Lengths of strings have 32 bits.
  function length(bytes) {
    const all = new Uint8Array(4);
    new DataView(all.buffer).setUint32(0, bytes, true);
    return all;
  }

  function encode(datatype, elements) {
    if (datatype === "BYTES") {
      const bytes = elements.map((it) => (typeof it === "string" ? new TextEncoder().encode(it) : it));
      return join(bytes.flatMap((it) => [length(it.length), it]));
    }
    const [size, , write] = types[datatype];
    const all = new Uint8Array(size * elements.length);
    const view = new DataView(all.buffer);
    elements.forEach((it, at) => write(view, at * size, it));
    return all;
  }

  // The first `most` elements; those of BYTES are bytes.
  function decode(datatype, bytes, most) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const elements = [];
    if (datatype === "BYTES") {
      for (let at = 0; at + 4 <= bytes.length && elements.length < most; ) {
        const end = at + 4 + view.getUint32(at, true);
        elements.push(bytes.subarray(at + 4, end));
        at = end;
      }
      return elements;
    }
    const [size, read] = types[datatype];
    const all = Math.min(most, Math.floor(bytes.length / size));
    for (let at = 0; at < all; at++) elements.push(read(view, at * size));
    return elements;
  }

  return { count, parse, fit, filled, join, length, encode, decode };
})();
