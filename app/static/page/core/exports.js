// Results as files. The CSV has columns of `labels.csv`, in the same order, as `mien label --spreadsheet-safe` writes them.

import { LABELS, facts } from "./labels.js";

/** The column of contempt came later; those of classes that are not expressions are last. */
function columns() {
  const shares = Object.keys(facts.colors).map((label) => `p_${label}`);
  return ["file", "status", "face", "x", "y", "width", "height", "label", "confidence", ...shares.slice(0, 7), "detector", "model", "reason",
    "error", "uncertain", "precision", shares[7], "reasons", "agreement", ...shares.slice(8)];
}

/** One cell. Text that a spreadsheet would interpret as a formula gets a leading apostrophe. */
function cell(value) {
  if (value == null) return "";
  let text = String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const sixDigits = (probability) => probability?.toFixed(6);

function rowsOf({ name, answer, error }) {
  if (error) return [{ file: name, status: "error", reason: error.type?.split(":").pop(), error: error.detail }];
  const [image] = answer.images;
  const shared = { file: name, detector: answer.detector, model: answer.model, precision: answer.precision };
  if (!image.faces.length) return [{ ...shared, status: "no_face" }];
  return image.faces.map((face, number) => ({
    ...shared, ...face.box, status: "ok", face: number, label: face.label, confidence: sixDigits(face.confidence),
    uncertain: face.uncertain,
    reasons: face.reasons.join(" "),
    agreement: sixDigits(face.agreement),
    ...Object.fromEntries(LABELS.map((label) => [`p_${label}`, sixDigits(face.probabilities[label])])),
  }));
}

/** Rows as CSV with a header, after a byte-order mark, without which Excel does not read UTF-8. */
export function table(names, rows) {
  const lines = [names, ...rows.map((row) => names.map((name) => row[name]))];
  return new Blob(["\ufeff", lines.map((line) => `${line.map(cell).join(",")}\n`).join("")], { type: "text/csv" });
}

export const asCsv = (results) => table(columns(), results.flatMap(rowsOf));

export function asJson(results) {
  const plain = results.map(({ name, answer, error }) => ({ file: name, ...(error ? { error } : answer) }));
  return new Blob([`${JSON.stringify(plain, null, 2)}\n`], { type: "application/json" });
}
