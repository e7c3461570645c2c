// The duration of a WebM, which recorders leave at zero, as they write the head first: programs could neither show nor seek it.

const HEAD_BYTES = 512;
const DURATION = [0x44, 0x89, 0x88]; // of Matroska: the id, and the size of a float64 in milliseconds

/** A video that states its duration; one without a field for it stays as it is. */
export async function withDuration(blob, seconds) {
  if (!blob.type.startsWith("video/webm")) return blob;
  const head = await blob.slice(0, HEAD_BYTES).arrayBuffer();
  const bytes = new Uint8Array(head);
  const field = bytes.findIndex((_, at) => DURATION.every((byte, index) => bytes[at + index] === byte));
  if (field < 0 || field + 11 > bytes.length) return blob;
  new DataView(head).setFloat64(field + 3, 1000 * seconds);
  return new Blob([head, blob.slice(HEAD_BYTES)], { type: blob.type });
}
