// The live view: what the player plays is labeled, and its people are shown on the picture and beside it.

import { listenToControls } from "./controls.js";
import { announce, byId, download, setText } from "./dom.js";
import { Labeling } from "./labeling.js";
import { Announcer } from "../core/metrics.js";
import { People } from "./people.js";
import { Player } from "./player.js";
import { Settings } from "./settings.js";
import { Stage } from "./stage.js";

const DRAW_MS = 25; // cameras do not have more frames
const FIGURES_MS = 500;

export class Live {
  /** `labeler`: the service, or the labeler of local mode; `reconnected()`: the service may run another model now. */
  constructor(labeler, reconnected) {
    this.stage = new Stage();
    this.labeling = new Labeling(this.stage.video, {
      people: (faces, now, picture) => this.update(faces, now, picture),
      says: (text) => this.stage.state === "live" && this.stage.badge(text),
      stalled: () => this.people.pause(true),
      reconnected,
    });
    this.scene = this.labeling.scene;
    this.people = new People(byId("faces"), byId("nobody"));
    this.announcer = new Announcer();
    this.settings = new Settings((settings) => this.apply(settings));
    this.player = new Player(this.stage, {
      began: (source) => this.begin(source),
      paused: (paused) => {
        this.people.pause(paused);
        this.attend();
      },
      released: () => this.release(),
    });
    this.use(labeler);
    this.listen();
  }

  listen() {
    byId("snapshot").addEventListener("click", () => this.snapshot());
    listenToControls(this.stage, () => {
      this.scene.motion.clear();
      this.shown = [];
      this.redraw();
    });
    document.addEventListener("visibilitychange", () => this.attend());
    new ResizeObserver(() => this.redraw()).observe(this.stage.overlay);
  }

  /** Label with another labeler from now on. */
  use(labeler) {
    this.labeling.feed.use(labeler);
    this.attend();
  }

  apply({ smoothingMs, threshold, mirrored, statistics }) {
    this.scene.tracker.rules.smoothing_s = smoothingMs / 1000;
    this.scene.tracker.threshold = threshold;
    this.stage.video.classList.toggle("mirrored", mirrored);
    this.stage.root.classList.toggle("with-stats", statistics);
    this.redraw();
  }

  /** Send frames only while the view is visible and not paused. */
  attend() {
    this.labeling.send(this.stage.state === "live" && !document.hidden && !byId("panel-live").hidden);
  }

  begin(source) {
    this.settings.setMirrored(source.mirrored);
    this.labeling.start(source);
    this.attend();
    this.drawnAt = this.figuresAt = 0;
    const draw = (now) => {
      if (source !== this.player.source) return;
      if (this.stage.state === "live" && now - this.drawnAt > DRAW_MS) this.draw(now);
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }

  release() {
    this.labeling.stop();
    this.people.clear();
    this.shown = [];
  }

  update(faces, now, picture) {
    this.people.pause(false);
    this.people.update(faces, now, picture);
    const text = this.announcer.textOf(faces, now);
    if (text) announce(text);
  }

  draw(now) {
    this.drawnAt = now;
    this.shown = this.scene.motion.at(now);
    this.stage.draw(this.shown, this.scene.size, this.settings);
    this.people.refresh(now, this.settings.threshold);
    if (now - this.figuresAt < FIGURES_MS) return;
    this.figuresAt = now;
    for (const [id, text] of Object.entries(this.labeling.metrics.figures(now))) setText(byId(id), text);
  }

  /** A paused picture is drawn again only when its size or the settings change. */
  redraw() {
    if (this.stage.state === "paused") this.stage.draw(this.shown, this.scene.size, this.settings);
  }

  snapshot() {
    const canvas = document.createElement("canvas");
    this.stage.compose(canvas, this.shown, this.scene.size, this.settings);
    const name = `mien-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.jpg`;
    canvas.toBlob((blob) => download(blob, name), "image/jpeg", 0.92);
    this.stage.note("Snapshot saved to your downloads");
  }
}
