// Detect, align, classify: app/inference/labeler.py in the browser. `run(graph, feeds, outputs)` runs a network.

import { align, rollDegrees } from "./align.js";
import { decode, toBlob } from "./detector.js";
import { measure, reasonsOf, soften } from "./quality.js";
import { Search } from "./search.js";

const BATCH = 16;

export class Pipeline {
  /** `facts`: facts.json; `run(name, {input: {type, data, dims}}, outputs)`: resolves to values by output. */
  constructor(facts, run) {
    this.facts = facts;
    this.run = run;
    this.search = new Search(facts.search, facts.crop, (picture) => this.rows(picture));
  }

  async rows(picture) {
    const { input, grid_px: gridPx, strides } = this.facts.detector;
    const { blob, dims } = toBlob(picture, gridPx);
    const outputs = strides.flatMap((stride) => ["cls", "obj", "bbox", "kps"].map((kind) => `${kind}_${stride}`));
    const grids = await this.run("detector", { [input]: { type: "float32", data: blob, dims } }, outputs);
    return decode(grids, dims[3], this.facts.detector);
  }

  /** All faces that are large enough, largest first. */
  async find(picture) {
    const { min_face_px: least, max_faces: most } = this.facts.limits;
    return (await this.search.find(picture)).filter(({ box }) => Math.min(box[2], box[3]) >= least).slice(0, most);
  }

  /** Label the faces of a picture, by default all and each anew: {faces, timings_ms}, as REST gives them. */
  async label(picture, find = () => this.find(picture), assess = (crops, found) => this.assess(crops, found)) {
    const clock = [performance.now()];
    const lap = () => clock.push(performance.now());
    const found = await find();
    lap();
    const crops = found.map(({ points }) => align(picture, points, this.facts.crop));
    lap();
    const assessed = await assess(crops, found);
    lap();
    const timings = Object.fromEntries(["detect", "align", "classify"].map((stage, index) => [stage, rounded(clock[index + 1] - clock[index], 2)]));
    return { faces: found.map((face, index) => this.faceOf(face, assessed[index])), timings_ms: timings };
  }

  /** {row, votes, reasons} per crop: calibrated probabilities, expected votes and reasons for doubt; the first two softened by the quality. */
  async assess(crops, found) {
    const { quality: facts, classifier: { agreement } } = this.facts;
    const rows = await this.classify(crops);
    return crops.map((crop, index) => {
      const quality = measure(crop, found[index].points, this.facts);
      const row = soften(rows[index], quality, facts);
      const votes = agreement && soften(this.votes(rows[index]), quality, facts, facts.votes_softening);
      const flaws = reasonsOf(quality, facts);
      const [first, second] = row.toSorted((one, other) => other - one);
      return { row, votes, reasons: first < facts.ambiguous_below * second ? [...flaws, "ambiguous"] : flaws };
    });
  }

  /** Calibrated probabilities per crop. */
  async classify(crops) {
    const { input, output, labels } = this.facts.classifier;
    const { px } = this.facts.crop;
    const rows = [];
    for (let start = 0; start < crops.length; start += BATCH) {
      const batch = crops.slice(start, start + BATCH);
      const data = new Uint8Array(batch.length * px * px * 3);
      batch.forEach((crop, index) => withoutAlpha(crop.data, data, index * px * px * 3));
      const logits = (await this.run("classifier", { [input]: { type: "uint8", data, dims: [batch.length, px, px, 3] } }, [output]))[output];
      for (let at = 0; at < logits.length; at += labels.length) rows.push(this.softmax([...logits.subarray(at, at + labels.length)]));
    }
    return rows;
  }

  /** Expected share of people who would choose each expression: Manifest.votes of models/manifest.py. */
  votes(row) {
    const { agreement, offsets } = this.facts.classifier;
    return this.softmax(row.map((value, index) => Math.log(Math.max(value, 1e-12)) - offsets[index]), agreement);
  }

  softmax(logits, { temperature, offsets } = this.facts.classifier) {
    const scaled = logits.map((logit, index) => logit / temperature + offsets[index]);
    const most = Math.max(...scaled);
    const powers = scaled.map((value) => Math.exp(value - most));
    const sum = powers.reduce((total, power) => total + power, 0);
    return powers.map((power) => power / sum);
  }

  faceOf({ box: [x, y, width, height], points, score }, { row, votes, reasons }) {
    const { labels, confidence_threshold: threshold } = this.facts.classifier;
    const best = row.indexOf(Math.max(...row));
    const share = (value) => rounded(value, 6);
    return {
      box: { x: rounded(x, 2), y: rounded(y, 2), width: rounded(width, 2), height: rounded(height, 2) },
      landmarks: Object.fromEntries(this.facts.landmarks.map((name, index) => [name, { x: rounded(points[index][0], 2), y: rounded(points[index][1], 2) }])),
      detection_score: rounded(Math.min(Math.max(score, 0), 1), 4),
      roll_degrees: rounded(rollDegrees(points), 2),
      label: labels[best],
      confidence: share(row[best]),
      uncertain: row[best] < threshold,
      reasons,
      probabilities: Object.fromEntries(labels.map((label, index) => [label, share(row[index])])),
      ...(votes && { agreement: share(votes[best]) }),
    };
  }
}

const rounded = (value, digits) => Math.round(value * 10 ** digits) / 10 ** digits;

function withoutAlpha(from, to, at) {
  for (let index = 0; index < from.length; index += 4) {
    to[at++] = from[index];
    to[at++] = from[index + 1];
    to[at++] = from[index + 2];
  }
}
