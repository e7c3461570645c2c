// Prints the numbers that the page gives to people who cross, and how often one moves to another person, per film.

import fs from "node:fs";
import { useFacts } from "../../app/static/page/labels.js";
import { Tracker } from "../../app/static/page/tracker.js";

const { facts, films } = JSON.parse(fs.readFileSync(process.env.VECTORS));
useFacts(facts);
const results = films.map((film) => {
  const tracker = new Tracker();
  const owners = new Map();
  let swaps = 0;
  for (const { at, faces } of film) {
    for (const { track, person } of tracker.update(faces, at)) {
      if (!owners.has(track)) owners.set(track, person);
      if (person === null || owners.get(track) === person) continue;
      if (owners.get(track) !== null) swaps++;
      owners.set(track, person);
    }
  }
  return [owners.size, swaps];
});
console.log(JSON.stringify(results));
