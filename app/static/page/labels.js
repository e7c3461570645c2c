// What the seven expressions are called and colored. The colors on pictures are those of app/inference/drawing.py.

export const LABELS = ["surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral"];
export const UNCERTAIN = "uncertain";

const ON_PICTURE = {
  surprise: "rgb(240 228 66)",
  fear: "rgb(204 121 167)",
  disgust: "rgb(0 158 115)",
  happiness: "rgb(230 159 0)",
  sadness: "rgb(86 180 233)",
  anger: "rgb(213 94 0)",
  neutral: "rgb(200 200 200)",
};

export const colorOnPicture = (label) => ON_PICTURE[label] ?? ON_PICTURE.neutral;

/** The color of a label in the current theme, for drawing on the page. */
export const colorOnPage = (label) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${LABELS.includes(label) ? label : "neutral"}`).trim();

/** Whole percent; what rounds to certainty is not called that. */
export const percent = (fraction) => (fraction > 0.995 ? ">99%" : `${Math.round(fraction * 100)}%`);

/** The likeliest expression of a face, also where it is uncertain. */
export function likeliest(face) {
  return LABELS.reduce((best, label) => (face.probabilities[label] > face.probabilities[best] ? label : best));
}

/** What is said of a face in words: "happiness 92%", or "uncertain (sadness 31%)". */
export function spoken(face) {
  const words = `${likeliest(face)} ${percent(face.probabilities[likeliest(face)])}`;
  return face.uncertain ? `${UNCERTAIN} (${words})` : `${face.label} ${percent(face.confidence)}`;
}
