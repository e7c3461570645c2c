// The worker of local mode: decodes pictures, and runs the photo graph (docs/models.md) in ONNX Runtime Web. Nothing is
// sent from here.
//
// Messages: {id, open: facts, base, runtimeBytes, threads} once, then {id, source, live} with a File, or an ImageBitmap
// of a stream (`live`); each gets {id, result} or {id, error}. While the graph is loaded, {loaded} states the bytes so
// far.

import { isFaithful, rgbOf } from "../pixels.js";
import { uprightBitmap } from "../upright.js";

const ERRORS_ONLY = 3;
let facts;
let run; // of a picture and `live`
let canvas;

async function open({ open: given, base, runtimeBytes, threads }) {
  if (!self.WebAssembly)
    throw new Error("the browser has switched off WebAssembly (Lockdown Mode of Apple devices, or a security setting)");
  if (!isFaithful(new OffscreenCanvas(8, 8).getContext("2d")))
    throw new Error("the browser hides pixels from pages (protection against fingerprinting)");
  facts = given;
  const { file, version, precision, defaults } = facts.graph;
  let loaded = 0;
  const progress = (bytes) => self.postMessage({ loaded: (loaded += bytes) });
  const download = fetched(new URL(`models/${file}?v=${version}`, base), progress);
  download.catch(() => {}); // awaited below
  const ort = await import(new URL("runtime/ort.wasm.min.mjs", base));
  Object.assign(ort.env.wasm, { wasmPaths: new URL("runtime/", base).href, numThreads: threads });
  progress(runtimeBytes);
  const graph = await download;
  for (const [name, values] of Object.entries(defaults)) setDefault(graph, name, values);
  const sessions = new Map(); // one for streams, and one when the first photo comes
  run = async ({ data, width, height }, live) => {
    if (!sessions.has(live)) {
      setDefault(graph, "live", [live]);
      const options = { executionProviders: ["wasm"], logSeverityLevel: ERRORS_ONLY };
      sessions.set(live, await ort.InferenceSession.create(graph, options));
    }
    return sessions.get(live).run({ photo: new ort.Tensor("uint8", rgbOf(data), [height, width, 3]) });
  };
  await run({ data: new Uint8Array(4 * 64 * 64), width: 64, height: 64 }, true); // the first run of a graph is slow
  return {
    model: facts.classifier.name,
    precision,
    provider: `WebAssembly, ${threads} thread${threads > 1 ? "s" : ""}`,
    detector: "builtin",
  };
}

async function fetched(url, progress) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.pathname}: ${response.status} ${response.statusText}`);
  const [reader, parts] = [response.body.getReader(), []];
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    parts.push(read.value);
    progress(read.value.length);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/**
 * Change the default of an input in the bytes of a graph, because ONNX Runtime Web takes no value for an input that has
 * one.
 */
function setDefault(graph, name, values) {
  const types = { max_faces: () => BigInt64Array.from(values, BigInt), live: () => Uint8Array.from(values) };
  const raw = new Uint8Array((types[name]?.() ?? Float32Array.from(values)).buffer);
  // Its fields `name` and `raw_data`.
  const tensor = [0x42, name.length, ...new TextEncoder().encode(name), 0x4a, raw.length];
  const start = graph.findIndex((_, at) => tensor.every((byte, offset) => graph[at + offset] === byte));
  graph.set(raw, start + tensor.length);
}

/**
 * The upright pixels of a file or a frame, transparent ones over white; colors as stored, as the service reads them.
 */
async function pixelsOf(source) {
  const bitmap = source instanceof ImageBitmap ? source : await uprightBitmap(source, { colorSpaceConversion: "none" });
  const { width, height } = bitmap;
  const { max_pixels: limit } = facts.limits;
  if (width * height > limit)
    throw new Error(`image of ${width}x${height} px: the limit is ${limit.toLocaleString("en")} pixels`);
  if (canvas?.width !== width || canvas.height !== height) canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, width, height);
}

/** The faces of a picture, as REST gives them. */
async function label(source, live = false) {
  const began = performance.now();
  const picture = await pixelsOf(source);
  const decoded = performance.now();
  const found = await run(picture, live);
  const faces = Array.from({ length: found.boxes.dims[0] }, (_, index) => faceOf(found, index));
  const timings = { decode: decoded - began, label: performance.now() - decoded };
  return { width: picture.width, height: picture.height, timings_ms: timings,
    faces: faces.filter(({ box }) => Math.min(box.width, box.height) >= facts.limits.min_face_px) };
}

function faceOf(found, index) {
  const { landmarks: names, reasons, classifier: { labels } } = facts;
  const rowOf = ({ data, size, dims }) => [...data.subarray((index * size) / dims[0], ((index + 1) * size) / dims[0])];
  const [x, y, width, height] = rowOf(found.boxes);
  const points = rowOf(found.landmarks);
  const row = rowOf(found.probabilities);
  const doubts = rowOf(found.reasons);
  const [agreement] = rowOf(found.agreement);
  const confidence = Math.max(...row);
  return {
    box: { x, y, width, height },
    landmarks: Object.fromEntries(
      names.map((name, place) => [name, { x: points[2 * place], y: points[2 * place + 1] }]),
    ),
    detection_score: found.detection_scores.data[index],
    label: labels[row.indexOf(confidence)],
    confidence,
    uncertain: Boolean(found.uncertain.data[index]),
    reasons: reasons.filter((_, place) => doubts[place]),
    probabilities: Object.fromEntries(labels.map((name, place) => [name, row[place]])),
    ...(agreement >= 0 && { agreement }), // not a number without one
  };
}

let last = Promise.resolve(); // one picture at a time
self.onmessage = ({ data }) => {
  const { id } = data;
  last = last.then(() => (data.open ? open(data) : label(data.source, data.live)))
    .then((result) => self.postMessage({ id, result }), (error) => self.postMessage({ id, error: error.message }));
};
