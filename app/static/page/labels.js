// Names, colors and words of the expressions, and all else that the page shares with the program: facts.json, which
// Python writes.

/** The facts: labels, colors, thresholds, template and rules (app/service/page.py). */
export let facts;

/** The expressions of the model, in the order of the program. */
export let LABELS = [];

/** Use the facts of a program; before anything is labeled or drawn. */
export function useFacts(values) {
  facts = values;
  LABELS = Object.keys(facts.colors).filter((label) => facts.classifier.labels.includes(label));
}

export const UNCERTAIN = "uncertain";
export const DARK = "rgb(20 20 20)"; // text on every color

export const colorOf = (label) => `rgb(${facts.colors[label].join(" ")})`;

/** The color of an expression on the ground of the page: gray is darker there, to differ from it. */
export const plotColor = (label) => (label === "neutral" ? "#7c8583" : colorOf(label));

/** Whole percent; a probability that rounds to 100 % is shown as >99%. */
export const percent = (fraction) => (fraction >= 0.995 ? ">99%" : `${Math.round(fraction * 100)}%`);

/** The expressions of a face, most probable first. */
export const ranked = (probabilities) =>
  LABELS.filter((label) => label in probabilities).sort((one, other) => probabilities[other] - probabilities[one]);

/** The label with a question mark if it is uncertain: "sadness?". */
export const marked = (face) => `${face.label}${face.uncertain ? "?" : ""}`;

/** Short label of a face: "sadness? 31%". */
export const brief = (face) => `${marked(face)} ${percent(face.confidence)}`;

/** What others would say: "about 6 of 10 people would say sadness"; empty if the model cannot tell. */
export const agreementOf = ({ agreement, label }) =>
  agreement == null ? "" : `about ${Math.round(10 * agreement)} of 10 people would say ${label}`;

/** The label of a face in words: "happiness 92%", or "uncertain (sadness 31%)". */
export function spoken(face) {
  const words = `${face.label} ${percent(face.confidence)}`;
  return face.uncertain ? `${UNCERTAIN} (${words})` : words;
}

// Why the label of a face may be wrong. The reasons are those of data/quality.py.
const HINTS = {
  small: [
    "Move closer",
    ({ box }) => `the face is too small, ${Math.round(Math.min(box.width, box.height))} pixels wide`,
  ],
  blurred: ["Hold still", () => "the face is blurred"],
  turned: ["Look at the camera", () => "the head is turned away"],
  dark: ["Turn on a light", () => "the face is dark"],
  covered: ["Uncover the face", () => "eyes or mouth seem to be covered"],
  ambiguous: ["Between two labels", ({ probabilities }) => `it may also be ${ranked(probabilities)[1]}`],
};

/** One line about the first reason: what is wrong, and with `advice` what the person can do; empty without a reason. */
export function hintOf(face, { advice }) {
  const [what, why] = HINTS[face.reasons?.[0]] ?? [];
  if (!why) return "";
  return advice ? `${what}: ${why(face)}` : `${why(face)[0].toUpperCase()}${why(face).slice(1)}`;
}

/** The reasons of a face with other probabilities, such as smoothed ones. */
export function withProbabilities(reasons, probabilities) {
  const [first, second] = ranked(probabilities).map((label) => probabilities[label]);
  const others = reasons.filter((reason) => reason !== "ambiguous");
  return first < facts.quality.ambiguous_below * second ? [...others, "ambiguous"] : others;
}

const STEADY_MS = 1200;
const QUIET_MS = 5000;

/** Labels that have been stable for a moment, at most every few seconds, for those who listen to the page. */
export class Announcer {
  constructor() {
    this.said = this.scene = "";
    this.saidAt = -QUIET_MS;
    this.since = 0;
  }

  /** What to say about the people of a result; empty most of the time. */
  textOf(people, now) {
    const scene = people.map((face) => `${face.track} ${face.label}`).sort().join();
    if (scene !== this.scene) Object.assign(this, { scene, since: now });
    if (scene === this.said || now - this.since < STEADY_MS || now - this.saidAt < QUIET_MS) return "";
    Object.assign(this, { said: scene, saidAt: now });
    return people.map((face) => `Person ${face.track}: ${spoken(face)}`).join(". ") || "No face in view";
  }
}
