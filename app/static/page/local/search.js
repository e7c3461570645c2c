// Faces at several sizes and rotations of an image, merged: app/inference/detector.py in the browser.
// `rows(picture)` runs the network; a face is {box: [x, y, width, height], points: [[x, y], ...], score}.

import { similarity } from "./align.js";
import { iou } from "./detector.js";
import { cut, enlarge, reduce, rotated, round } from "./pixels.js";

export class Search {
  /** `rules`: `search` of facts.json; `crop`: the template; `rows`: an async function from a picture to faces. */
  constructor(rules, crop, rows) {
    this.rules = rules;
    this.crop = crop;
    this.rows = rows;
  }

  /** All faces of a picture, largest first. */
  async find(picture) {
    let faces = await this.upright(picture);
    if (this.rules.detect_rotated && best(faces) < this.rules.sure_score) faces = await this.withRotated(faces, picture);
    const area = ({ box }) => box[2] * box[3];
    return faces.sort((a, b) => area(b) - area(a) || a.box[0] - b.box[0] || a.box[1] - b.box[1]);
  }

  async upright(picture) {
    const { first_px: firstPx, second_px: secondPx, close_up_px: closeUpPx, small_face_px: smallPx } = this.rules;
    const faces = await this.onePass(picture, firstPx);
    const longSide = Math.max(picture.width, picture.height);
    const smallest = faces.length ? Math.min(...faces.map(({ box }) => Math.min(box[2], box[3]))) : 0;
    if (smallest * Math.min(1, firstPx / longSide) >= smallPx) return faces;
    const passes = [[closeUpPx, longSide > closeUpPx], [secondPx, longSide > firstPx]]; // without those with the pixels of the first
    for (const [px] of passes.filter(([, differs]) => differs)) faces.push(...(await this.onePass(picture, px)));
    return this.merge(faces);
  }

  /** Run the network on the picture reduced to `longSidePx`; faces in pixels of the picture. */
  async onePass(picture, longSidePx) {
    const small = this.resized(picture, longSidePx);
    const found = await this.rows(this.padded(small));
    return found.map((face) => scaled(face, picture.width / small.width, picture.height / small.height))
      .filter((face) => this.plausible(face, picture));
  }

  /** Reduce to a long side of at most `longSidePx`; enlarge tiny pictures. */
  resized(picture, longSidePx) {
    const longSide = Math.max(picture.width, picture.height);
    const scale = Math.min(longSidePx / longSide, Math.max(1, Math.min(this.rules.max_enlargement, this.rules.tiny_px / longSide)));
    if (scale === 1) return picture;
    const [width, height] = [picture.width, picture.height].map((side) => Math.max(1, round(side * scale)));
    if (scale > 1) return enlarge(picture, width, height);
    while (picture.width % 2 === 0 && picture.height % 2 === 0 && picture.width >= 2 * width && picture.height >= 2 * height) {
      picture = reduce(picture, picture.width / 2, picture.height / 2);
    }
    return picture.width === width && picture.height === height ? picture : reduce(picture, width, height);
  }

  padded(picture) {
    const least = this.rules.min_canvas_px;
    const [width, height] = [Math.max(picture.width, least), Math.max(picture.height, least)];
    return width === picture.width && height === picture.height ? picture : cut(picture, 0, 0, width, height);
  }

  plausible({ box, points }, { width, height }) {
    const [x, y, wide, tall] = box;
    const [[leftX, leftY], [rightX, rightY]] = points;
    return [...box, ...points.flat()].every(Number.isFinite) && wide > 0 && tall > 0
      && Math.max(wide, tall) <= 3 * Math.max(width, height)
      && Math.min(x + wide, width) > Math.max(x, 0) && Math.min(y + tall, height) > Math.max(y, 0)
      && Math.hypot(rightX - leftX, rightY - leftY) >= this.rules.min_eye_distance_px
      && similarity(points, this.crop) !== null;
  }

  same(face, other) {
    return iou(face.box, other.box) >= this.rules.merge_iou;
  }

  /** Keep the better of any two detections of one face. */
  merge(faces) {
    const kept = [];
    for (const face of [...faces].sort((a, b) => b.score - a.score)) if (!kept.some((other) => this.same(face, other))) kept.push(face);
    return kept;
  }

  /** Find the rotation of the picture; add the faces found in it, and remove upright ones that score higher there. */
  async withRotated(upright, picture) {
    const { max_compared: most, rotated_score: least, sure_score: sure } = this.rules;
    const compared = new Map();
    const scoresOf = async (face) => compared.get(face) ?? compared.set(face, await this.rotationScores(picture, face)).get(face);
    const isUpright = async (face) => argmax(await scoresOf(face)) === 0;
    let areUpright = upright.length > 0;
    for (const face of this.merge(upright).slice(0, most)) areUpright &&= await isUpright(face);
    if (areUpright) return upright;
    const votes = [0, 0, 0, 0];
    for (const face of this.merge([...upright, ...(await this.inSmallCopies(picture))]).slice(0, most)) {
      const scores = await scoresOf(face);
      votes[argmax(scores)] += Math.max(...scores);
    }
    const turns = argmax(votes);
    if (turns === 0) return upright;
    const betterRotated = async (face) => {
      const scores = await scoresOf(face);
      return scores[turns] > scores[0];
    };
    const kept = [];
    for (const face of upright) if (face.score >= sure || !(await betterRotated(face))) kept.push(face);
    const found = [...kept];
    for (const face of await this.upright(rotated(picture, turns))) {
      if (face.score < least) continue;
      const back = rotateBack(face, turns, picture);
      if (!kept.some((other) => this.same(back, other)) || (await betterRotated(back))) found.push(back);
    }
    return this.merge(found);
  }

  /** Faces of the picture rotated by 90, 180 and 270 degrees, small, in its own pixels. */
  async inSmallCopies(picture) {
    const small = this.resized(picture, this.rules.rotated_px);
    const found = [];
    for (const turns of [1, 2, 3]) {
      for (const px of [this.rules.rotated_px, this.rules.close_up_px]) {
        for (const face of await this.onePass(rotated(small, turns), px)) {
          found.push(scaled(rotateBack(face, turns, small), picture.width / small.width, picture.height / small.height));
        }
      }
    }
    return found;
  }

  /** Scores of one face rotated by 0, 90, 180 and 270 degrees, from the same pixels; rotated ones less the margin. */
  async rotationScores(picture, face) {
    const { compared_px: px, rotated_margin: margin } = this.rules;
    const around = this.surroundings(picture, face);
    const scores = [];
    for (const turns of [0, 1, 2, 3]) {
      const near = ({ box: [x, y, width, height] }) => Math.max(Math.abs(x + width / 2 - px / 2), Math.abs(y + height / 2 - px / 2)) < px / 4;
      scores.push(best((await this.rows(rotated(around, turns))).filter(near)) - (turns ? margin : 0));
    }
    return scores;
  }

  surroundings(picture, face) {
    return this.square(picture, face, 1.6, this.rules.compared_px).small;
  }

  /** The square around a face, `around` times its size, at `px` by `px` pixels, with its place in the picture. */
  square(picture, { box: [x, y, width, height] }, around, px) {
    const half = Math.max(1, round((around / 2) * Math.max(width, height)));
    const [left, top] = [round(x + width / 2) - half, round(y + height / 2) - half];
    const pixels = cut(picture, left, top, 2 * half, 2 * half);
    return { small: (2 * half > px ? reduce : enlarge)(pixels, px, px), left, top, scale: (2 * half) / px };
  }

  /** Faces in the surroundings of one, best first. */
  async near(picture, face, { around, px }) {
    const { small, left, top, scale } = this.square(picture, face, around, px);
    const place = ([x, y]) => [x * scale + left, y * scale + top];
    return (await this.rows(small))
      .map(({ box: [x, y, width, height], points, score }) => ({ box: [...place([x, y]), width * scale, height * scale], points: points.map(place), score }))
      .filter((found) => this.plausible(found, picture));
  }
}

const best = (faces) => Math.max(0, ...faces.map(({ score }) => score));
const argmax = (values) => values.indexOf(Math.max(...values));

/** @param {{box: number[], points: number[][], score: number}} face */
function scaled({ box, points, score }, byX, byY) {
  const [x, y, width, height] = box;
  return { box: [x * byX, y * byY, width * byX, height * byY], points: points.map(([px, py]) => [px * byX, py * byY]), score };
}

/** Map a face back from a picture that was rotated clockwise; `width` and `height` before that. */
function rotateBack({ box: [x, y, wide, tall], points, score }, turns, { width, height }) {
  const back = ([px, py]) => (turns === 1 ? [py, height - px] : turns === 2 ? [width - px, height - py] : [width - py, px]);
  const [[ax, ay], [bx, by]] = [back([x, y]), back([x + wide, y + tall])];
  const box = [Math.min(ax, bx), Math.min(ay, by), Math.abs(bx - ax), Math.abs(by - ay)];
  return { box, points: points.map(back), score };
}
