// Timed loop over the JPEGs of a folder, for the programs of `benchmarks.neighbors` that run in Node.js.

const fs = require("node:fs");
const path = require("node:path");

/** Warm up, label every photo, and print one JSON object; `label` returns the number of faces of a file. */
exports.measure = async (program, folder, label) => {
  const files = fs.readdirSync(folder).filter((name) => name.endsWith(".jpg")).sort().map((name) => path.join(folder, name));
  for (const file of files.slice(0, 8)) await label(file);
  const began = performance.now();
  const counts = [];
  for (const file of files) counts.push(await label(file));
  const seconds = (performance.now() - began) / 1000;
  console.log(JSON.stringify({
    program,
    photos_with_face: counts.filter((count) => count > 0).length,
    faces: counts.reduce((sum, count) => sum + count, 0),
    images_per_s: files.length / seconds,
  }));
};
