// Labeling in this tab: the interface of service.js, with a worker that runs the released graphs. Nothing is sent.

const IN_FLIGHT = 2; // the worker never waits for the next frame
const RUNTIME_BYTES = { wasm: 4e6, webgpu: 7e6 }; // ONNX Runtime Web, compressed
const MAX_THREADS = 4;
const OFFLINE = "you are offline, and the models were never loaded";

export class LocalLabeler {
  /**
   * The graphs are loaded on first use. `facts`: facts.json; `base`: address of the folder with local/,
   * runtime/ and models/; `opened(runs)` is called with what runs, `loaded(bytes, total)` with the progress of loading, `failed(why)` if it fails.
   */
  constructor(facts, { base, opened, loaded, failed }) {
    const { classifier: { graphs }, bytes } = facts;
    this.facts = facts;
    this.base = base;
    this.tell = opened;
    this.progress = loaded;
    this.failed = failed;
    this.pending = new Map();
    this.next = 0;
    this.local = true;
    const size = (kind) => RUNTIME_BYTES[kind] + bytes[facts.detector.file] + bytes[graphs[kind].file];
    this.bytes = { wasm: size("wasm"), webgpu: size("webgpu") }; // to load; which of them, the worker finds out
  }

  /** Open the graphs, once. Resolves to what runs: {model, precision, provider, detector}. */
  open() {
    if (this.opened) return this.opened;
    this.worker = new Worker(new URL("local/worker.js", this.base), { type: "module" });
    this.worker.onmessage = ({ data: { id, result, error, loaded, kind } }) => {
      if (loaded) return this.progress(Math.min(loaded, this.bytes[kind]), this.bytes[kind]);
      const { resolve, reject } = this.pending.get(id);
      this.pending.delete(id);
      if (error) reject(failure(error));
      else resolve(result);
    };
    this.worker.onerror = (event) => this.pending.forEach(({ reject }) => reject(failure(event.message || "the worker did not start")));
    const cores = navigator.hardwareConcurrency - 1; // one is left for the page; threads that share a core are slower
    const threads = self.crossOriginIsolated ? Math.max(1, Math.min(cores, MAX_THREADS)) : 1;
    this.opened = this.ask({ open: this.facts, base: this.base, runtimeBytes: RUNTIME_BYTES, threads })
      .catch((error) => { throw Object.assign(navigator.onLine ? error : failure(OFFLINE), { again: true }); });
    this.opened.then(this.tell, (error) => {
      this.forget();
      this.failed(error.message);
    });
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

  /** Label one photo, a File; the response is that of POST /v1/expressions. */
  async label(photo) {
    const began = performance.now();
    const about = await this.open();
    const image = { index: 0, name: null, ...(await this.ask({ source: photo })) };
    const threshold = this.facts.classifier.confidence_threshold;
    return { ...about, confidence_threshold: threshold, images: [image], timings_ms: { total: performance.now() - began } };
  }

  stream(on) {
    return new LocalStream(this, on);
  }
}

const failure = (detail) => Object.assign(new Error(detail), { title: "Not labeled", detail });

/** The interface of FrameStream. */
class LocalStream {
  static opened = 0;

  constructor(labeler, on) {
    this.labeler = labeler;
    this.on = on;
    this.wanted = false;
    this.inFlight = 0;
  }

  async open() {
    if (this.wanted) return;
    this.wanted = true;
    this.id = `local-${++LocalStream.opened}`;
    const { id } = this;
    this.on.loading();
    try {
      await this.labeler.open();
    } catch (error) {
      if (id === this.id) this.on.failed(`${error.message}. Pause and resume to try again.`);
      return;
    }
    if (id === this.id) this.on.open();
    this.loaded = true;
  }

  close() {
    this.wanted = false;
    this.id = null;
  }

  ready() {
    return this.wanted && this.loaded && this.inFlight < IN_FLIGHT;
  }

  encode(canvas) {
    return createImageBitmap(canvas);
  }

  async send(bitmap, takenAt) {
    const { id } = this;
    this.inFlight++;
    try {
      const result = await this.labeler.ask({ source: bitmap, stream: id }, [bitmap]);
      if (id === this.id) this.on.answer(result, takenAt);
    } catch (error) {
      if (id === this.id) this.on.failed(error.message);
    } finally {
      this.inFlight--;
    }
  }
}
