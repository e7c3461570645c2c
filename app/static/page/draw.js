// Drawing of faces on a picture, for the live view, snapshots and photos.

import { DARK, brief, colorOf } from "./labels.js";
import { placeTags, shared } from "./tags.js";

const FEW = 4; // in a larger group, either all tags show their label or none

const MOVES = !globalThis.matchMedia?.("(prefers-reduced-motion: reduce)").matches;

/** The mouth of a face whose box has moved to `box`: a rectangle in pixels of its picture. */
function mouthOf({ box: from, landmarks: { left_mouth: left, right_mouth: right } }, box) {
  const [across, down] = [box.width / from.width, box.height / from.height];
  const wide = across * Math.hypot(right.x - left.x, right.y - left.y);
  const [x, y] = [box.x + across * ((left.x + right.x) / 2 - from.x), box.y + down * ((left.y + right.y) / 2 - from.y)];
  return { x: x - 0.6 * wide, y: y - 0.4 * wide, width: 1.2 * wide, height: 0.8 * wide };
}

/**
 * Faces as drawFaces takes them.
 *
 * @param {{face: any, box: any, opacity?: number}[]} shown with boxes in pixels of a picture
 * @param {{width: number}} size of the picture
 * @param {{x: number, y: number, width: number}} area of the picture on the canvas
 * @param {boolean} mirrored whether the canvas shows it so
 */
export function placed(shown, size, area, mirrored = false) {
  const scale = area.width / size.width;
  const at = ({ x, y, width, height }) => ({
    x: area.x + (mirrored ? size.width - x - width : x) * scale,
    y: area.y + y * scale,
    width: width * scale,
    height: height * scale,
  });
  return shown.map(({ face, box, opacity = 1 }, index) => ({
    face,
    opacity,
    number: face.track ?? index + 1,
    box: at(box),
    mouth: at(mouthOf(face, box)),
  }));
}

/**
 * Draw the faces of one picture.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {{face: object, number: number, box: object, mouth: object, opacity: number}[]} faces in pixels of the canvas
 * @param {{unit?: number, area: object, slots?: Map}} how `unit`: width of a thin line; `area`: rectangle of the
 * picture on the canvas, which tags do not leave; `slots`: positions of the tags in the last frame
 * @returns {object[]} the rectangles of the tags
 */
export function drawFaces(context, faces, { unit = 1, area, slots }) {
  const tagsOf = (numberOnly) => faces.map(({ face, number, box, mouth }, index) =>
    ({ key: number, box, mouth, ...tagSize(context, numberOnly[index] ? "" : brief(face), number, box, unit) }));
  let tags = tagsOf([]);
  let places = placeTags(tags, area, slots);
  const hides = places.map((place, index) => tags.some(({ box }, other) => other !== index && shared(place, box)));
  if (hides.includes(true)) {
    tags = tagsOf(faces.length > FEW ? hides.fill(true) : hides);
    places = placeTags(tags, area, slots);
  }
  faces.forEach((shown) => drawBox(context, shown, unit));
  faces.forEach((shown, index) => drawTag(context, shown, places[index], tags[index], unit));
  return places;
}

/** Four corners, which close to a box the more probable the label is. */
function drawBox(context, { face, box: { x, y, width, height }, opacity }, unit) {
  context.save();
  context.globalAlpha = opacity;
  if (face.uncertain) context.setLineDash([8 * unit, 6 * unit]);
  const arm = (side) => (side / 2) * (MOVES ? 0.25 + 0.75 * face.confidence : 1);
  const [across, down, round] = [arm(width), arm(height), Math.min(6 * unit, width / 8)];
  for (const [style, line] of [[DARK, 5 * unit], [colorOf(face.label), 2.5 * unit]]) {
    Object.assign(context, { strokeStyle: style, lineWidth: line });
    context.beginPath();
    for (const [cornerX, cornerY, toX, toY] of [
      [x, y, 1, 1],
      [x + width, y, -1, 1],
      [x + width, y + height, -1, -1],
      [x, y + height, 1, -1],
    ]) {
      context.moveTo(cornerX, cornerY + toY * down);
      context.arcTo(cornerX, cornerY, cornerX + toX * across, cornerY, round);
      context.lineTo(cornerX + toX * across, cornerY);
    }
    context.stroke();
  }
  context.restore();
}

const fontOf = (size) => `600 ${size}px system-ui, sans-serif`;

/** The size of a tag with a text, or with the number alone. */
function tagSize(context, text, number, box, unit) {
  // Whole pixels, as browsers keep the widths of texts for each size.
  const size = Math.round(Math.min(Math.max(box.width / 9, 13 * unit), 24 * unit));
  context.font = fontOf(size);
  const chip = context.measureText(String(number)).width + 0.9 * size;
  return { size, text, chip, width: chip + (text ? context.measureText(text).width + size : 0), height: 1.5 * size };
}

/** A chip with the person's number, then the label: filled with its color, or hollow if it is uncertain. */
function drawTag(context, { face, number, opacity }, place, { size, text, chip }, unit) {
  context.save();
  context.globalAlpha = opacity;
  context.font = fontOf(size);
  // Also in a page that is read from right to left.
  Object.assign(context, { textBaseline: "middle", direction: "ltr", textAlign: "left" });
  const middle = place.y + place.height / 2 + 0.04 * size;
  context.beginPath();
  context.roundRect(place.x, place.y, place.width, place.height, 4 * unit);
  context.fillStyle = face.uncertain ? DARK : colorOf(face.label);
  context.fill();
  context.save();
  context.clip();
  context.fillStyle = "#fff";
  context.fillRect(place.x, place.y, chip, place.height);
  context.restore();
  context.fillStyle = DARK;
  context.fillText(String(number), place.x + 0.45 * size, middle);
  context.fillStyle = face.uncertain ? "#fff" : DARK;
  context.fillText(text, place.x + chip + 0.5 * size, middle);
  if (face.uncertain) context.setLineDash([4 * unit, 3 * unit]);
  context.strokeStyle = face.uncertain ? colorOf(face.label) : DARK;
  context.lineWidth = unit;
  context.stroke();
  context.restore();
}
