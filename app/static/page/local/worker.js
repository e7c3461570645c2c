// The worker of local mode: opens the graphs in ONNX Runtime Web and labels pictures. Nothing is sent from here.
//
// Messages: {id, open: facts, base, runtimeBytes, threads} once, then {id, source} with a File or an ImageBitmap, and `stream` if it
// is a frame; each gets {id, result} or {id, error}. While graphs are loaded, {loaded, kind} states the bytes so far.

import { Follower } from "./follower.js";
import { useFacts } from "../labels.js";
import { Pipeline } from "./pipeline.js";
import { isFaithful } from "./pixels.js";
import { uprightBitmap } from "./upright.js";

const ERRORS_ONLY = 3;
let pipeline;
let follower;
let limits;
let canvas;

async function open({ open: facts, base, runtimeBytes, threads }) {
  if (!self.WebAssembly) throw new Error("the browser has switched off WebAssembly (Lockdown Mode of Apple devices, or a security setting)");
  if (!isFaithful(new OffscreenCanvas(8, 8).getContext("2d"))) throw new Error("the browser hides pixels from pages (protection against fingerprinting)");
  useFacts(facts);
  limits = facts.limits;
  const kind = (await hasGpu()) ? "webgpu" : "wasm";
  let loaded = 0;
  const progress = (bytes) => self.postMessage({ loaded: (loaded += bytes), kind });
  const graph = facts.classifier.graphs[kind];
  const files = Promise.all([facts.detector.file, graph.file].map((file) => download(new URL(`models/${file}?v=${facts.versions[file]}`, base), progress)));
  files.catch(() => {}); // awaited below
  const ort = await import(new URL(`runtime/ort.${kind}.min.mjs`, base));
  Object.assign(ort.env.wasm, { wasmPaths: new URL("runtime/", base).href, numThreads: threads });
  const options = { executionProviders: [kind], logSeverityLevel: ERRORS_ONLY };
  const [detector, classifier] = await files;
  const sessions = { detector: await ort.InferenceSession.create(detector, options) };
  progress(runtimeBytes[kind]);
  sessions.classifier = await ort.InferenceSession.create(classifier, options);
  pipeline = new Pipeline(facts, (name, feeds, outputs) => run(ort, sessions[name], feeds, outputs));
  follower = new Follower(pipeline);
  await warmUp(facts);
  const on = kind === "webgpu" ? "WebGPU" : `WebAssembly, ${threads} thread${threads > 1 ? "s" : ""}`;
  return { model: facts.classifier.name, precision: graph.precision, provider: on, detector: facts.detector.name };
}

async function download(url, progress) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.pathname}: ${response.status} ${response.statusText}`);
  const [reader, parts] = [response.body.getReader(), []];
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    parts.push(read.value);
    progress(read.value.length);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Whether WebGPU has a GPU; a software-emulated one is slower than WebAssembly. */
async function hasGpu() {
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  return Boolean(adapter) && !adapter.info?.isFallbackAdapter;
}

async function run(ort, session, feeds, outputs) {
  const tensors = Object.entries(feeds).map(([name, { type, data, dims }]) => [name, new ort.Tensor(type, data, dims)]);
  const found = await session.run(Object.fromEntries(tensors), outputs);
  return Object.fromEntries(outputs.map((name) => [name, found[name].data]));
}

/** The first run of a graph is slow. */
async function warmUp({ crop: { px } }) {
  const picture = { width: px, height: px, data: new Uint8ClampedArray(4 * px * px) };
  await pipeline.rows(picture);
  await pipeline.classify([picture]);
}

/** The upright pixels of a file or a frame, transparent ones over white; colors as stored, as the service reads them. */
async function pixelsOf(source) {
  const bitmap = source instanceof ImageBitmap ? source : await uprightBitmap(source, { colorSpaceConversion: "none" });
  const { width, height } = bitmap;
  if (width * height > limits.max_pixels) throw new Error(`image of ${width}x${height} px: the limit is ${limits.max_pixels.toLocaleString("en")} pixels`);
  if (canvas?.width !== width || canvas.height !== height) canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, width, height);
}

async function label(source, stream) {
  const began = performance.now();
  const picture = await pixelsOf(source);
  const decode = performance.now() - began;
  const { faces, timings_ms: timings } = await (stream ? follower.label(picture, stream) : pipeline.label(picture));
  return { width: picture.width, height: picture.height, faces, timings_ms: { decode, ...timings } };
}

let last = Promise.resolve(); // one picture at a time
self.onmessage = ({ data }) => {
  const { id } = data;
  last = last.then(() => (data.open ? open(data) : label(data.source, data.stream)))
    .then((result) => self.postMessage({ id, result }), (error) => self.postMessage({ id, error: error.message }));
};
