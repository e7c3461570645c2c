// Names and colors of the expressions; people have numbers. The colors are those of data/contract/palette.py.

const EXPRESSIONS = ["surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral", "contempt"];

/** The expressions of the served model. */
export let LABELS = EXPRESSIONS.slice(0, 7);

/** Set the expressions of the model; called before anything is drawn. */
export function setLabels(names) {
  LABELS = EXPRESSIONS.filter((label) => names.includes(label));
}

export const UNCERTAIN = "uncertain";
export const DARK = "rgb(20 20 20)"; // text on every color below

export const COLORS = {
  surprise: "rgb(240 228 66)",
  fear: "rgb(204 121 167)",
  disgust: "rgb(0 158 115)",
  happiness: "rgb(230 159 0)",
  sadness: "rgb(86 180 233)",
  anger: "rgb(213 94 0)",
  neutral: "rgb(200 200 200)",
  contempt: "rgb(0 114 178)",
};

export const colorOf = (label) => COLORS[label];

/** Whole percent; a probability that rounds to 100 % is shown as >99%. */
export const percent = (fraction) => (fraction >= 0.995 ? ">99%" : `${Math.round(fraction * 100)}%`);

/** The expressions of a face, most probable first. */
export const ranked = (probabilities) => LABELS.filter((label) => label in probabilities).sort((one, other) => probabilities[other] - probabilities[one]);

/** Short label of a face, with a question mark if it is uncertain, and a star if it is corrected: "sadness? 31%", "neutral* 62%". */
export const brief = (face) => `${face.label}${face.uncertain ? "?" : ""}${face.corrected ? "*" : ""} ${percent(face.confidence)}`;

/** The label of a face in words: "happiness 92%", or "uncertain (sadness 31%)". */
export function spoken(face) {
  const words = `${face.label} ${percent(face.confidence)}`;
  return face.uncertain ? `${UNCERTAIN} (${words})` : words;
}
