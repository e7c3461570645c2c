// "Your minute": one picture to share, made in this tab: the strongest moment of each expression of the last minute,
// over its timeline.

import { byId, download } from "./dom.js";
import { LABELS, percent, plotColor } from "./labels.js";
import { drawThumb } from "./people.js";
import { SPAN_MS, plot } from "./timeline.js";

const [WIDE, TALL, THUMB, GAP] = [1200, 630, 260, 24];
const INK = "#1c2424";

/** Keeps the moments; an observer of the live view. */
export class Minute {
  constructor(live) {
    this.live = live;
    this.moments = new Map(); // label -> {at, confidence, canvas}
    live.observers.push(this);
    byId("minute").addEventListener("click", () => this.save());
  }

  people(faces, now, picture) {
    for (const face of faces) {
      const known = this.moments.get(face.label);
      if (face.uncertain || (known && now - known.at < SPAN_MS && known.confidence >= face.confidence)) continue;
      const canvas = known?.canvas ?? Object.assign(document.createElement("canvas"), { width: THUMB, height: THUMB });
      drawThumb(canvas, picture, face);
      this.moments.set(face.label, { at: now, confidence: face.confidence, canvas });
    }
  }

  stop() {
    this.moments.clear();
  }

  save() {
    const now = performance.now();
    const moments = LABELS.map((label) => ({ label, ...this.moments.get(label) })).filter(
      ({ at }) => now - at < SPAN_MS,
    );
    if (!moments.length) return this.live.stage.note("No certain expression in the last minute yet");
    this.draw(moments, now).toBlob((blob) => download(blob, "mien-minute.png"));
    this.live.stage.note("Your minute is in your downloads");
  }

  draw(moments, now) {
    const canvas = Object.assign(document.createElement("canvas"), { width: WIDE, height: TALL });
    const context = canvas.getContext("2d");
    const write = (text, x, y, font, textAlign = "left") => {
      Object.assign(context, {
        font: `${font} system-ui, sans-serif`,
        fillStyle: INK,
        textBaseline: "alphabetic",
        textAlign,
        direction: "ltr",
      });
      context.fillText(text, x, y);
    };
    context.fillStyle = "#f5f6f4";
    context.fillRect(0, 0, WIDE, TALL);
    write("My minute", GAP, 58, "700 40px");
    write("Mien reads expressions, not feelings", WIDE - GAP, 56, "400 26px", "right");
    const side = Math.min(THUMB, (WIDE - GAP) / moments.length - GAP);
    moments.forEach(({ label, at, confidence, canvas: thumb }, index) => {
      const x = GAP + index * (side + GAP);
      context.drawImage(thumb, x, 90, side, side);
      context.fillStyle = plotColor(label);
      context.fillRect(x, 90 + side, side, 10);
      write(label, x, 136 + side, `600 ${Math.min(28, side / 5)}px`);
      write(
        `${percent(confidence)}, ${Math.round((now - at) / 1000)} s ago`,
        x,
        170 + side,
        `400 ${Math.min(22, side / 7)}px`,
      );
    });
    const people = [...this.live.people.people.values()].slice(0, 2);
    people.forEach((person, index) => {
      const height = 150 / people.length;
      context.fillStyle = "#e9ecea";
      context.fillRect(GAP, TALL - 180 + index * height, WIDE - 2 * GAP, height - 6);
      const strip = Object.assign(document.createElement("canvas"), { width: WIDE - 2 * GAP, height: height - 6 });
      plot(strip.getContext("2d"), person.timeline.history, {
        width: strip.width,
        height: strip.height,
        ratio: 2,
        ink: INK,
        now,
        threshold: 0,
      });
      context.drawImage(strip, GAP, TALL - 180 + index * height);
    });
    write("60 s ago", GAP, TALL - 6, "400 18px");
    write("now", WIDE - GAP, TALL - 6, "400 18px", "right");
    return canvas;
  }
}
