// Names and colors of the expressions, and all else that the page shares with the program: facts.json, which Python writes.

/** The facts: labels, colors, reasons, thresholds, template and rules (app/inference/in_browser.py). */
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

/** Whole percent; a probability that rounds to 100 % is shown as >99%. */
export const percent = (fraction) => (fraction >= 0.995 ? ">99%" : `${Math.round(fraction * 100)}%`);

/** The expressions of a face, most probable first. */
export const ranked = (probabilities) => LABELS.filter((label) => label in probabilities).sort((one, other) => probabilities[other] - probabilities[one]);

/** Short label of a face, with a question mark if it is uncertain: "sadness? 31%". */
export const brief = (face) => `${face.label}${face.uncertain ? "?" : ""} ${percent(face.confidence)}`;

/** What others would say: "about 6 of 10 people would say sadness"; empty if the model cannot tell. */
export const agreementOf = ({ agreement, label }) => (agreement == null ? "" : `about ${Math.round(10 * agreement)} of 10 people would say ${label}`);

/** The label of a face in words: "happiness 92%", or "uncertain (sadness 31%)". */
export function spoken(face) {
  const words = `${face.label} ${percent(face.confidence)}`;
  return face.uncertain ? `${UNCERTAIN} (${words})` : words;
}
