// The loop of `benchmarks.neighbors` for face-api.js with its WebAssembly backend.
//
//     node benchmarks/neighbors_face_api.cjs FOLDER_WITH_NODE_MODULES FOLDER_OF_PHOTOS [PREDICTIONS]

const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { createRequire } = require("node:module");
const { measure } = require("./neighbors_loop.cjs");

// names of face-api.js, and ours
const LABELS = {
  surprised: "surprise", fearful: "fear", disgusted: "disgust", happy: "happiness", sad: "sadness", angry: "anger", neutral: "neutral",
};

async function main([home, folder, predictions]) {
  const load = createRequire(path.join(home, "package.json"));
  const modules = path.join(home, "node_modules");
  const tf = load("@tensorflow/tfjs");
  const wasm = load("@tensorflow/tfjs-backend-wasm");
  const faceapi = load("@vladmandic/face-api/dist/face-api.node-wasm.js");
  const jpeg = load("jpeg-js");
  wasm.setWasmPaths(`${path.join(modules, "@tensorflow/tfjs-backend-wasm/dist")}/`);
  wasm.setThreadsCount(os.cpus().length);
  await tf.setBackend("wasm");
  await tf.ready();
  const weights = path.join(modules, "@vladmandic/face-api/model");
  await faceapi.nets.tinyFaceDetector.loadFromDisk(weights);
  await faceapi.nets.faceExpressionNet.loadFromDisk(weights);
  const options = new faceapi.TinyFaceDetectorOptions();

  async function label(file) {
    const { width, height, data } = jpeg.decode(fs.readFileSync(file), { formatAsRGBA: false, useTArray: true });
    const pixels = tf.tensor3d(data, [height, width, 3], "int32");
    const faces = await faceapi.detectAllFaces(pixels, options).withFaceExpressions();
    pixels.dispose();
    return faces.map(({ detection, expressions }) => ({
      box: [detection.box.x, detection.box.y, detection.box.width, detection.box.height],
      probabilities: Object.fromEntries(Object.entries(LABELS).map(([name, label]) => [label, expressions[name]])),
    }));
  }

  const { version } = load("@vladmandic/face-api/package.json");
  await measure(`face-api.js ${version}, TinyFaceDetector, wasm`, folder, label, predictions);
}

main(process.argv.slice(2));
