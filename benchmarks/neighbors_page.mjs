// The loop of `benchmarks.neighbors` for the page's local mode: its modules and ONNX Runtime Web's WebAssembly in Node.js.
//
//     node benchmarks/neighbors_page.mjs FACTS_JSON FOLDER_WITH_NODE_MODULES FOLDER_OF_PHOTOS

import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { Pipeline } from "../app/static/page/local/pipeline.js";
import { measure } from "./neighbors_loop.cjs";

const [factsFile, home, folder] = process.argv.slice(2);
const { facts, graphs } = JSON.parse(fs.readFileSync(factsFile));
const load = createRequire(path.join(home, "package.json"));
const [ort, jpeg] = [load("onnxruntime-web"), load("jpeg-js")];
ort.env.wasm.numThreads = Math.max(1, Math.min(os.cpus().length - 1, 4)); // as in local/worker.js
const graph = facts.classifier.graphs.wasm;
const open = (file) => ort.InferenceSession.create(fs.readFileSync(graphs[file]), { executionProviders: ["wasm"] });
const sessions = { detector: await open(facts.detector.file), classifier: await open(graph.file) };

const pipeline = new Pipeline(facts, async (name, feeds, outputs) => {
  const tensors = Object.entries(feeds).map(([input, { type, data, dims }]) => [input, new ort.Tensor(type, data, dims)]);
  const found = await sessions[name].run(Object.fromEntries(tensors), outputs);
  return Object.fromEntries(outputs.map((output) => [output, found[output].data]));
});

async function label(file) {
  return (await pipeline.label(jpeg.decode(fs.readFileSync(file), { useTArray: true }))).faces;
}

await measure(`Mien in the browser, ${facts.detector.name}, ${graph.precision}, wasm`, folder, label);
process.exit(0); // ONNX Runtime's threads would keep it alive
