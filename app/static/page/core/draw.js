// Drawing of faces on a picture, for the live view, snapshots and photos.

import { DARK, brief, colorOf } from "./labels.js";
import { placeTags, shared } from "./tags.js";

const FEW = 4; // in a larger group, either all tags show their label or none

/** Landmarks of a face whose box has moved to `box`. */
function landmarksIn(face, box) {
  const at = ({ x, y }) => ({
    x: box.x + ((x - face.box.x) / face.box.width) * box.width,
    y: box.y + ((y - face.box.y) / face.box.height) * box.height,
  });
  return Object.fromEntries(Object.entries(face.landmarks).map(([name, point]) => [name, at(point)]));
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
  const at = ({ x, y }, width = 0) => ({ x: area.x + (mirrored ? size.width - x - width : x) * scale, y: area.y + y * scale });
  return shown.map(({ face, box, opacity }, index) => ({
    face, opacity, number: face.track ?? index + 1,
    box: { ...at(box, box.width), width: box.width * scale, height: box.height * scale },
    points: Object.fromEntries(Object.entries(landmarksIn(face, box)).map(([name, point]) => [name, at(point)])),
  }));
}

function mouthOf({ mouth_left: left, mouth_right: right }) {
  const wide = Math.hypot(right.x - left.x, right.y - left.y);
  const [x, y] = [(left.x + right.x) / 2, (left.y + right.y) / 2];
  return { x: x - 0.6 * wide, y: y - 0.4 * wide, width: 1.2 * wide, height: 0.8 * wide };
}

/**
 * Draw the faces of one picture.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {{face: object, number: number, box: object, points: object, opacity?: number}[]} faces in pixels of the canvas
 * @param {{unit?: number, area: object, landmarks?: boolean, slots?: Map, taken?: object[]}} how `unit`: width of a thin line; `area`:
 *   rectangle of the picture on the canvas, which tags do not leave; `slots`: positions of the tags in the last frame;
 *   `taken`: rectangles of other things
 * @returns {object[]} the rectangles of the tags
 */
export function drawFaces(context, faces, { unit = 1, area, landmarks = false, slots, taken }) {
  const tagsOf = (numberOnly) => faces.map(({ face, number, box, points }, index) =>
    ({ key: number, box, mouth: mouthOf(points), ...tagSize(context, numberOnly[index] ? "" : brief(face), number, box, unit) }));
  let tags = tagsOf([]);
  let places = placeTags(tags, area, slots, taken);
  const hides = places.map((place, index) => tags.some(({ box }, other) => other !== index && shared(place, box)));
  if (hides.includes(true)) {
    tags = tagsOf(faces.length > FEW ? hides.fill(true) : hides);
    places = placeTags(tags, area, slots, taken);
  }
  faces.forEach((shown) => drawBox(context, shown, unit, landmarks));
  faces.forEach((shown, index) => drawTag(context, shown, places[index], tags[index], unit));
  return places;
}

function drawBox(context, { face, box, points, opacity = 1 }, unit, landmarks) {
  context.save();
  context.globalAlpha = opacity;
  if (face.uncertain) context.setLineDash([8 * unit, 6 * unit]);
  for (const [style, width] of [[DARK, 5 * unit], [colorOf(face.label), 2.5 * unit]]) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.beginPath();
    context.roundRect(box.x, box.y, box.width, box.height, 6 * unit);
    context.stroke();
  }
  if (landmarks) drawLandmarks(context, points, colorOf(face.label), unit);
  context.restore();
}

function drawLandmarks(context, points, color, unit) {
  context.setLineDash([]);
  for (const { x, y } of Object.values(points)) {
    context.beginPath();
    context.arc(x, y, 3 * unit, 0, 2 * Math.PI);
    context.fillStyle = color;
    context.fill();
    context.strokeStyle = DARK;
    context.lineWidth = unit;
    context.stroke();
  }
}

const fontOf = (size) => `600 ${size}px system-ui, sans-serif`;

/** The size of a tag with a text, or with the number alone. */
function tagSize(context, text, number, box, unit) {
  const size = Math.min(Math.max(box.width / 9, 13 * unit), 24 * unit);
  context.font = fontOf(size);
  const chip = context.measureText(String(number)).width + 0.9 * size;
  return { size, text, chip, width: chip + (text ? context.measureText(text).width + size : 0), height: 1.5 * size };
}

/** A chip with the person's number, then the label: filled with its color, or hollow if it is uncertain. */
function drawTag(context, { face, number, opacity = 1 }, place, { size, text, chip }, unit) {
  context.save();
  context.globalAlpha = opacity;
  context.font = fontOf(size);
  Object.assign(context, { textBaseline: "middle", direction: "ltr", textAlign: "left" }); // also in a page that is read from right to left
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
