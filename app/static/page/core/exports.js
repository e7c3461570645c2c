// Results as files. The CSV has columns of `labels.csv` of `mien label`, in the same order.

import { LABELS } from "./labels.js";

const COLUMNS = ["file", "status", "face", "x", "y", "width", "height", "label", "confidence",
  ...LABELS.slice(0, 7).map((label) => `p_${label}`), "detector", "model", "reason", "error", "uncertain", "precision",
  "p_contempt", "reasons"];

/** One cell. Text that a spreadsheet would interpret as a formula gets a leading apostrophe. */
function cell(value) {
  if (value == null) return "";
  let text = String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function rowsOf({ name, answer, error }) {
  if (error) return [{ file: name, status: "error", reason: error.type?.split(":").pop(), error: error.detail }];
  const [image] = answer.images;
  const shared = { file: name, detector: answer.detector, model: answer.model, precision: answer.precision };
  if (!image.faces.length) return [{ ...shared, status: "no_face" }];
  return image.faces.map((face, number) => ({
    ...shared, ...face.box, status: "ok", face: number, label: face.label, confidence: face.confidence,
    uncertain: face.uncertain,
    reasons: face.reasons.join(" "),
    ...Object.fromEntries(LABELS.map((label) => [`p_${label}`, face.probabilities[label]])),
  }));
}

/** Rows as CSV with a header, after a byte-order mark, without which Excel does not read UTF-8. */
export function table(columns, rows) {
  const lines = [columns, ...rows.map((row) => columns.map((column) => row[column]))];
  return new Blob(["\ufeff", lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("")], { type: "text/csv" });
}

export const asCsv = (results) => table(COLUMNS, results.flatMap(rowsOf));

export function asJson(results) {
  const plain = results.map(({ name, answer, error }) => ({ file: name, ...(error ? { error } : answer) }));
  return new Blob([`${JSON.stringify(plain, null, 2)}\n`], { type: "application/json" });
}
