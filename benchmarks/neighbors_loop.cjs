// Timed loop over the JPEGs of a folder, for the programs of `benchmarks.neighbors` that run in Node.js.

const fs = require("node:fs");
const path = require("node:path");

/**
 * Warm up, label every photo, and print one JSON object; `label` returns the faces of a file, which are written to
 * `predictions` as JSON lines if it is set.
 */
exports.measure = async (program, folder, label, predictions) => {
  const files = fs.readdirSync(folder).filter((name) => name.endsWith(".jpg")).sort().map((name) => path.join(folder, name));
  for (const file of files.slice(0, 8)) await label(file);
  const began = performance.now();
  const photos = [];
  for (const file of files) photos.push(await label(file));
  const seconds = (performance.now() - began) / 1000;
  if (predictions) {
    const lines = photos.flatMap((faces, index) => faces.map((face) => ({ file: path.basename(files[index]), ...face })));
    fs.writeFileSync(predictions, lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  }
  console.log(JSON.stringify({
    program,
    photos_with_face: photos.filter((faces) => faces.length > 0).length,
    faces: photos.flat().length,
    images_per_s: files.length / seconds,
  }));
};
