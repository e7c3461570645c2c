// The page's computations, compared with the vectors that tests/page/test_core.py writes.

import assert from "node:assert/strict";
import fs from "node:fs";
import { test } from "node:test";
import { Pace } from "../../app/static/page/camera.js";
import { Cuts } from "../../app/static/page/cuts.js";
import { descriptorOf } from "../../app/static/page/descriptor.js";
import { drawFaces, placed } from "../../app/static/page/draw.js";
import { Announcer, DARK, colorOf, percent, plotColor, useFacts } from "../../app/static/page/labels.js";
import { similarity } from "../../app/static/page/looks.js";
import { FrameSocket } from "../../app/static/page/socket.js";
import { placeTags, shared } from "../../app/static/page/tags.js";
import { History, plot } from "../../app/static/page/timeline.js";
import { Tracker } from "../../app/static/page/tracker.js";

const { facts, tracked, aligned, cuts } = JSON.parse(fs.readFileSync(process.env.VECTORS));
useFacts(facts);
const picture = ({ width, height, data }) => ({ width, height, data: Uint8ClampedArray.from(data) });

/** Assert that numbers differ by at most `most`, in nested arrays and objects. */
function near(actual, expected, most, where = "") {
  if (typeof expected === "number") assert.ok(Math.abs(actual - expected) <= most, `${where}: ${actual}, expected ${expected}`);
  else for (const [key, value] of Object.entries(expected)) near(actual[key], value, most, `${where} ${key}`);
}

test("people keep their numbers, and their labels are smoothed, as in Python", () => {
  const tracker = Object.assign(new Tracker(), { threshold: 0.45, newPersonS: 0, holdS: 0 });
  for (const { at, cut, faces, expected } of tracked) {
    const people = tracker.update(faces, at, cut);
    assert.equal(people.length, expected.length, `${at} ms`);
    for (const [place, person] of expected.entries()) {
      for (const name of ["track", "label", "uncertain", "reasons"]) assert.deepEqual(people[place][name], person[name], `${at} ms: ${name}`);
      near(people[place].probabilities, person.probabilities, 1e-9);
      near(people[place].agreement ?? -1, person.agreement ?? -1, 1e-9);
    }
  }
});

const EVEN = Object.fromEntries(facts.classifier.labels.map((label) => [label, 1 / facts.classifier.labels.length]));
const faceAt = (x, given) => ({ box: { x, y: 0, width: 120, height: 120 }, detection_score: 0.95, probabilities: EVEN, ...given });

test("a face that turns out to be a known person has that one's number and never one of its own, also of two who are gone and alike", () => {
  const [one, other] = [[0.9, 0.436, 0], [1, 0, 0]];
  const half = [0.5, 0, 0.866]; // of neither one's look
  const returned = [0.9, 0, 0.436]; // a cosine of 0.81 with `one` and of 0.9 with `other`
  const tracker = new Tracker();
  const numbers = [];
  for (let at = 0; at < 4000; at += 100) {
    const faces = at < 1000 ? [faceAt(0, { descriptor: one }), faceAt(500, { descriptor: other })]
      : at < 1500 ? [] : [faceAt(1000, { descriptor: at < 2200 ? half : returned })];
    numbers.push(tracker.update(faces, at).map(({ track }) => track).join());
  }
  assert.deepEqual([...new Set(numbers)], ["1,2", "", "2"]);
  const cosine = (facts.tracking.other_face + facts.tracking.same_face) / 2; // of a head that turns in one place
  const turned = faceAt(1000, { descriptor: [cosine, 0, Math.sqrt(1 - cosine ** 2)] });
  const still = new Tracker();
  assert.deepEqual([faceAt(1000, { descriptor: other }), turned].map((face, frame) => still.update([face], 100 * frame)[0]?.track), [1, 1]);
});

test("near the threshold, a label stays uncertain or certain for a second", () => {
  const tracker = Object.assign(new Tracker(), { threshold: 0.5 });
  let changes = 0;
  let last = false;
  for (let at = 0; at < 12_000; at += 100) {
    const neutral = Math.floor(at / 400) % 2 ? 0.7 : 0.3; // it crosses the threshold each 0.4 s
    const probabilities = Object.fromEntries(facts.classifier.labels.map((name) => [name, name === "neutral" ? neutral : (1 - neutral) / (facts.classifier.labels.length - 1)]));
    const [{ uncertain }] = tracker.update([faceAt(0, { probabilities })], at);
    if (uncertain !== last) changes++;
    last = uncertain;
  }
  assert.ok(changes >= 4 && changes <= 12, `${changes} changes in 12 s`);
});

test("the agreement of a person is that with the label shown", () => {
  const tracker = Object.assign(new Tracker(), { threshold: 0.3 });
  const shares = (label) => Object.fromEntries(facts.classifier.labels.map((name) => [name, name === label ? 0.94 : 0.01]));
  const shown = [["fear", 0.8], ["fear", 0.4], ["anger", 0.2], ["anger", 0.6]].map(([label, agreement], frame) => {
    const [person] = tracker.update([faceAt(0, { probabilities: shares(label), label, agreement })], 100 * frame);
    return [person.label, person.agreement];
  });
  const share = 1 - Math.exp(-0.1 / facts.tracking.smoothing_s);
  near(shown, [["fear", 0.8], ["fear", 0.8 - 0.4 * share], ["fear", 0.8 - 0.4 * share], ["anger", 0.6]].map(([, value]) => [, value]), 1e-9);
  assert.deepEqual(shown.map(([label]) => label), ["fear", "fear", "fear", "anger"]);
});

test("scenes of a video begin where they do in Python", () => {
  const finder = new Cuts();
  assert.deepEqual(cuts.map((frame) => finder.isCut(picture(frame.picture))), cuts.map(({ cut }) => cut));
  assert.equal(new Cuts().isCut(picture(cuts[0].picture)), false, "the first frame of another video");
});

test("only a sure or lasting detection becomes a person, and who comes later waits a second", () => {
  const cases = {
    brief: [[[0, { 1: 0.95 }], [60, { 1: 0.95, 2: 0.8 }], [120, { 1: 0.95, 3: 0.97 }]], [[1], [1], [1]]],
    later: [[0, 100, 700, 1000, 1100].map((at) => [at, at ? { 1: 0.95, 3: 0.97 } : { 1: 0.95 }]), [[1], [1], [1], [1], [1, 2]]],
    unsure: [[0, 200, 400, 460].map((at) => [at, { 1: 0.7 }]), [[], [], [1], [1]]],
    unsteady: [[[0, { 1: 0.7 }], [100, {}], [200, { 1: 0.7 }], [500, { 1: 0.7 }], [600, { 1: 0.7 }]], [[], [], [], [], [1]]],
    "beside another": [[[0, { 1: 0.95 }], [60, { 1: 0.95, 1.4: 0.95 }], [120, { 1: 0.95 }]], [[1], [1], [1]]],
    "staying beside another": [[0, 200, 400].map((at) => [at, { 1: 0.95, 1.4: 0.95 }]), [[], [], [1, 2]]],
    slow: [[0, 2500, 5000].map((at) => [at, { 1: 0.95 }]), [[1], [1], [1]]],
    "turned away": [[[0, { 1: 0.95 }], [60, { 1: 0.3 }], [120, {}], [180, { 1: 0.3 }]], [[1], [1], [], [1]]],
  };
  for (const [name, [frames, expected]] of Object.entries(cases)) {
    const tracker = new Tracker();
    const face = ([place, score]) => faceAt(250 * place, { detection_score: score });
    const numbers = frames.map(([at, scores]) => tracker.update(Object.entries(scores).map(face), at).map(({ track }) => track));
    assert.deepEqual(numbers, expected, name);
  }
});

test("transforms and descriptors of faces are those of Python", () => {
  for (const { points, matrix: [[a, , x], [b, , y]], crop, descriptor } of aligned) {
    near(similarity(points.map(([px, py]) => ({ x: px, y: py })), facts.crop.template_px), [a, b, -b, a, x, y], 1e-4);
    near([...descriptorOf(picture(crop))], descriptor, 1e-3);
  }
});

test("tags stay in the picture, off mouths and other tags", () => {
  const area = { x: 0, y: 0, width: 800, height: 600 };
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  for (let scene = 0; scene < 300; scene++) {
    const tags = Array.from({ length: 1 + Math.floor(6 * random()) }, (_, key) => {
      const side = 40 + 260 * random();
      const box = { x: random() * 800 - side / 2, y: random() * 600 - side / 2, width: side, height: side };
      const mouth = { x: box.x + 0.3 * side, y: box.y + 0.68 * side, width: 0.4 * side, height: 0.24 * side };
      return { key, box, mouth, width: 90 + 60 * random(), height: 26 };
    });
    const places = placeTags(tags, area);
    for (const [index, place] of places.entries()) {
      assert.ok(place.x >= 0 && place.y >= 0 && place.x + place.width < 800.01 && place.y + place.height < 600.01);
      for (const { mouth } of tags) assert.equal(shared(place, mouth), 0);
      for (const other of places.slice(0, index)) assert.equal(shared(place, other), 0);
    }
  }
});

test("a tag keeps its side of the face until there is no room", () => {
  const area = { x: 0, y: 0, width: 800, height: 600 };
  const slots = new Map();
  const tagAt = (y) => {
    const tag = { key: 1, box: { x: 300, y, width: 120, height: 120 }, mouth: { x: 340, y: y + 80, width: 40, height: 25 }, width: 100, height: 26 };
    return placeTags([tag], area, slots)[0].y < y;
  };
  assert.deepEqual([200, 10, 20, 200, 475].map(tagAt), [true, false, false, false, true]);
});

/** What a canvas is asked to draw: calls of fill() and stroke() with their style, and texts. */
function drawn(faces, how) {
  const [calls, arms] = [[], []];
  const context = new Proxy({
    moveTo(x, y) { arms.push(y); },
    measureText(text) { return { width: 0.6 * parseFloat(this.font.split(" ")[1]) * text.length }; },
    fill() { calls.push(`fill ${this.fillStyle}`); },
    setLineDash(dash) { calls.push(`dash ${dash.length}`); },
    fillText(text) { calls.push(text); },
  }, { get: (own, name) => own[name] ?? (() => {}) });
  return { places: drawFaces(context, faces, how), calls, arms };
}

test("a tag is filled with the color of its label, and that of an uncertain one is hollow", () => {
  const landmarks = { left_mouth: { x: 130, y: 160 }, right_mouth: { x: 150, y: 160 } };
  const face = { box: { x: 100, y: 100, width: 80, height: 80 }, landmarks, track: 2, label: "neutral", confidence: 0.6, uncertain: false };
  const area = { x: 0, y: 0, width: 640, height: 480 };
  const drawnOf = (one) => drawn(placed([{ face: one, box: one.box }], area, area), { area });
  const callsOf = (one) => drawnOf(one).calls;
  assert.equal(drawnOf(face).arms[0], 100 + 40 * (0.25 + 0.75 * 0.6), "the corners of a box close with the probability");
  assert.deepEqual(callsOf(face), [`fill ${colorOf("neutral")}`, "2", "neutral 60%"]);
  assert.deepEqual(callsOf({ ...face, uncertain: true }), ["dash 2", `fill ${DARK}`, "2", "neutral? 60%", "dash 2"]);
});

test("boxes and mouths follow the size of the canvas, the mirror, and a box that has moved", () => {
  const face = { box: { x: 10, y: 20, width: 40, height: 40 }, landmarks: { left_mouth: { x: 20, y: 50 }, right_mouth: { x: 30, y: 50 } } };
  const [{ number, box, mouth }] = placed([{ face, box: { x: 20, y: 20, width: 40, height: 80 } }], { width: 100 }, { x: 5, y: 7, width: 200 }, true);
  assert.deepEqual({ number, box, mouth }, { number: 1, box: { x: 85, y: 47, width: 80, height: 160 }, mouth: { x: 123, y: 159, width: 24, height: 16 } });
});

test("in a group, tags do not lie on other faces: all are numbers alone if one has no room", () => {
  for (const [width, words] of [[336, 0], [1200, 12]]) {
    const unit = width / 640;
    const faces = Array.from({ length: 12 }, (_, index) => {
      const box = { x: unit * (20 + 150 * (index % 4)), y: unit * (30 + 150 * Math.floor(index / 4)), width: 85 * unit, height: 85 * unit };
      const mouth = { x: box.x + 27 * unit, y: box.y + 58 * unit, width: 30 * unit, height: 20 * unit };
      return { face: { label: "anger", confidence: 0.9 }, number: index + 1, box, mouth, opacity: 1 };
    });
    const { places, calls } = drawn(faces, { area: { x: 0, y: 0, width, height: 0.75 * width } });
    places.forEach((place, index) => faces.forEach(({ box }, other) => assert.ok(index === other || shared(place, box) === 0)));
    assert.equal(calls.filter((call) => call === "anger 90%").length, words);
  }
});

test("in a timeline, the label is at the bottom below a line: in its color, or hatched if it is uncertain", () => {
  const probabilities = { ...Object.fromEntries(facts.classifier.labels.map((name) => [name, 0.3 / (facts.classifier.labels.length - 1)])), fear: 0.7 };
  for (const uncertain of [true, false]) {
    const rows = Array(100).fill("");
    const context = { globalAlpha: 1, clearRect() {}, fillRect(x, y, width, height) {
      rows.fill(`${this.fillStyle} ${this.globalAlpha}`, Math.round(y), Math.round(y + height));
    } };
    const history = new History();
    history.add({ label: "fear", uncertain, probabilities }, 0);
    plot(context, history, { width: 2, height: 100, ratio: 1, ink: "ink", now: 30_050, threshold: 0 });
    assert.equal(rows[30], "ink 1");
    assert.notEqual(rows[29], "ink 1");
    assert.deepEqual(new Set(rows.slice(31)), new Set([`${plotColor("fear")} ${uncertain ? 0.3 : 1}`, ...(uncertain ? [`${plotColor("fear")} 1`] : [])]));
  }
});

test("a percentage does not claim certainty", () => assert.deepEqual([0.995, 0.994, 0].map(percent), [">99%", "99%", "0%"]));

test("a label is announced once it is stable, and the next one after some seconds", () => {
  const announcer = new Announcer();
  const person = (label) => [{ track: 1, label, confidence: 0.9, uncertain: false }];
  const said = [[0, "fear"], [1000, "anger"], [2100, "anger"], [2300, "anger"], [2400, "anger"], [3000, "fear"], [7000, "fear"], [7400, "fear"]]
    .map(([at, label]) => announcer.textOf(person(label), at));
  assert.deepEqual(said, ["", "", "", "Person 1: anger 90%", "", "", "", "Person 1: fear 90%"]);
  assert.equal(announcer.textOf([], 20_000) + announcer.textOf([], 22_000), "No face in view");
});

test("30 frames per second are labeled, also if the browser shows them late and then early", () => {
  const taken = (times) => {
    const pace = new Pace();
    return times.filter((at) => pace.isDue(at) && (pace.took(at), true)).length;
  };
  const [late, fast] = [33.4, 16.7].map((step) => Array.from({ length: 60 }, (_, index) => 1000 + index * step));
  assert.equal(taken(late.map((at, index) => at + (index % 2) * 16.7)), 60);
  assert.equal(taken(fast), 31);
});

test("the next frame is sent early enough that the service does not wait for the one after", () => {
  globalThis.WebSocket ??= { OPEN: 1 };
  const stream = Object.assign(new FrameSocket(() => {}), { meanMs: 60, socket: { readyState: 1, bufferedAmount: 0 } });
  assert.ok(stream.ready(0));
  stream.waiting.set(0, { sentAt: 0 });
  assert.deepEqual([5, 13, 25].map((at) => stream.ready(at)), [false, false, true]);
  stream.waiting.set(1, { sentAt: 20 });
  assert.ok(!stream.ready(100));
});
