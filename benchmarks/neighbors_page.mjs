// The loop of `benchmarks.neighbors` for the page's local mode: the photo graph and ONNX Runtime Web's WebAssembly in Node.js.
//
//     node benchmarks/neighbors_page.mjs PHOTO_GRAPH FOLDER_WITH_NODE_MODULES FOLDER_OF_PHOTOS

import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { rgbOf } from "../app/static/page/pixels.js";
import { measure } from "./neighbors_loop.cjs";

const [graph, home, folder] = process.argv.slice(2);
const load = createRequire(path.join(home, "package.json"));
const [ort, jpeg] = [load("onnxruntime-web"), load("jpeg-js")];
ort.env.wasm.numThreads = Math.max(1, Math.min(os.cpus().length - 1, 4)); // as in local/labeler.js
const session = await ort.InferenceSession.create(fs.readFileSync(graph), { executionProviders: ["wasm"], logSeverityLevel: 3 });

async function label(file) {
  const { data, width, height } = jpeg.decode(fs.readFileSync(file), { useTArray: true });
  const { boxes } = await session.run({ photo: new ort.Tensor("uint8", rgbOf(data), [height, width, 3]) });
  return Array.from({ length: boxes.dims[0] }, (_, index) => ({ box: [...boxes.data.subarray(4 * index, 4 * index + 4)] }));
}

await measure(`Mien in the browser, ${path.basename(graph)}, wasm`, folder, label);
process.exit(0); // ONNX Runtime's threads would keep it alive
