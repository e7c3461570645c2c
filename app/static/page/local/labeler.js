// Labeling in this tab: the interface of service.js, with a worker that runs the released graphs. Nothing is sent.

export class LocalLabeler {
  /** `facts`: `pipeline` of local.json; `opened(runs)`: called with what runs. The graphs are loaded on first use. */
  constructor(facts, opened) {
    Object.assign(this, { facts, tell: opened, pending: new Map(), next: 0 });
  }

  /** Open the graphs, once. Resolves to what runs: {model, precision, provider, detector}. */
  open() {
    if (this.opened) return this.opened;
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data: { id, result, error } }) => {
      const { resolve, reject } = this.pending.get(id);
      this.pending.delete(id);
      if (error) reject(failure(error));
      else resolve(result);
    };
    this.worker.onerror = (event) => this.pending.forEach(({ reject }) => reject(failure(event.message || "the worker did not start")));
    this.opened = this.ask({ open: this.facts });
    this.opened.then(this.tell, () => this.forget());
    return this.opened;
  }

  /** After an error, which all callers get, the next use tries again. */
  forget() {
    this.worker.terminate();
    this.opened = null;
  }

  ask(message, transfer = []) {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject });
      this.worker.postMessage({ ...message, id }, transfer);
    });
  }

  /** Label one photo; the response is that of POST /v1/expressions. */
  async label(file) {
    const began = performance.now();
    const about = await this.open();
    const image = { index: 0, name: null, ...(await this.ask({ source: file })) };
    const threshold = this.facts.classifier.abstain_threshold;
    return { ...about, confidence_threshold: threshold, images: [image], timings_ms: { total: performance.now() - began } };
  }

  stream(on) {
    return new LocalStream(this, on);
  }
}

const failure = (detail) => ({ title: "Not labeled", detail, message: detail });

/** The interface of FrameStream; one frame at a time. */
class LocalStream {
  static opened = 0;

  constructor(labeler, on) {
    Object.assign(this, { labeler, on, wanted: false, busy: false });
  }

  async open() {
    if (this.wanted) return;
    this.wanted = true;
    Object.assign(this, { id: `local-${++LocalStream.opened}`, frame: 0 });
    const { id } = this;
    this.on.loading();
    try {
      await this.labeler.open();
    } catch (error) {
      return this.on.failed(error.message);
    }
    if (id === this.id) this.on.open();
    this.loaded = true;
  }

  close() {
    this.wanted = false;
    this.id = null;
  }

  ready() {
    return this.wanted && this.loaded && !this.busy;
  }

  encode(canvas) {
    return createImageBitmap(canvas);
  }

  async send(bitmap, takenAt) {
    const { id } = this;
    this.busy = true;
    try {
      const result = await this.labeler.ask({ source: bitmap }, [bitmap]);
      if (id === this.id) this.on.answer({ stream: id, frame: this.frame++, ...result }, takenAt);
    } catch (error) {
      this.on.failed(error.message);
    } finally {
      this.busy = false;
    }
  }
}
