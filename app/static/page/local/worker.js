// The worker of local mode: opens the graphs in ONNX Runtime Web and labels pictures. Nothing is sent from here.
//
// Messages: {open: facts} once, then {id, source} with a File or an ImageBitmap; each gets {id, ...result} or {id, error}.

import { Pipeline } from "./pipeline.js";

const PAGE = new URL("../", import.meta.url);
const MAX_THREADS = 4;
const ERRORS_ONLY = 3;
const UNREADABLE = "This browser cannot read this format. Save the photo as JPEG, or turn off local mode.";
let pipeline;
let limits;

async function open(facts) {
  limits = facts.limits;
  const gpu = await hasGpu();
  const ort = await import(new URL(`runtime/ort.${gpu ? "webgpu" : "wasm"}.min.mjs`, PAGE));
  const cores = navigator.hardwareConcurrency - 1; // one is left for the page; threads that share a core are slower
  const threads = self.crossOriginIsolated ? Math.max(1, Math.min(cores, MAX_THREADS)) : 1;
  Object.assign(ort.env.wasm, { wasmPaths: new URL("runtime/", PAGE).href, numThreads: threads });
  const graph = facts.classifier.graphs[gpu ? "webgpu" : "wasm"];
  const options = { executionProviders: [gpu ? "webgpu" : "wasm"], logSeverityLevel: ERRORS_ONLY };
  const load = (file) => ort.InferenceSession.create(new URL(`models/${file}`, PAGE).href, options);
  const sessions = { detector: await load(facts.detector.file), classifier: await load(graph.file) };
  pipeline = new Pipeline(facts, (name, feeds, outputs) => run(ort, sessions[name], feeds, outputs));
  await warmUp(facts);
  const on = gpu ? "WebGPU" : `WebAssembly, ${threads} thread${threads > 1 ? "s" : ""}`;
  return { model: facts.classifier.name, precision: graph.precision, provider: on, detector: facts.detector.name };
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
  const bitmap = source instanceof ImageBitmap ? source
    : await createImageBitmap(source, { imageOrientation: "from-image", colorSpaceConversion: "none" }).catch(() => { throw new Error(UNREADABLE); });
  const { width, height } = bitmap;
  if (width * height > limits.max_pixels) throw new Error(`image of ${width}x${height} px: the limit is ${limits.max_pixels.toLocaleString("en")} pixels`);
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, width, height);
}

async function label(source) {
  const began = performance.now();
  const picture = await pixelsOf(source);
  const decode = performance.now() - began;
  const { faces, timings_ms: timings } = await pipeline.label(picture);
  return { width: picture.width, height: picture.height, faces, timings_ms: { decode, ...timings } };
}

let last = Promise.resolve(); // one picture at a time
self.onmessage = ({ data: { id, open: facts, source } }) => {
  last = last.then(() => (facts ? open(facts) : label(source)))
    .then((result) => self.postMessage({ id, result }), (error) => self.postMessage({ id, error: error.message }));
};
