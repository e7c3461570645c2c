// Labeling in this tab: the interface of service.js, with a worker that runs the photo graph. Nothing is sent.

const LOCAL_IN_FLIGHT = 2; // the worker never waits for the next frame
const LOCAL_FRAME_PX = 448; // long side of a frame: smaller frames hide what a face shows
const RUNTIME_BYTES = 4e6; // ONNX Runtime Web, compressed
const MAX_THREADS = 4;
const OFFLINE = "you are offline, and the model was never loaded";

export class LocalLabeler {
  facts; base; changed; pending; next;

  /**
   * The graph is loaded on first use. `facts`: facts.json; `base`: address of the folder with local/, runtime/ and
   * models/. `changed()` is called when one of these changes: `loaded`, the [bytes, total] while it loads; `runs`, the
   * {precision, provider, detector}; `why` it failed.
   */
  constructor(facts, base, changed = () => {}) {
    Object.assign(this, {
      facts,
      base,
      changed,
      pending: new Map(),
      next: 0,
      local: true,
      loaded: null,
      runs: null,
      why: "",
    });
    this.bytes = RUNTIME_BYTES + facts.graph.bytes; // to load
  }

  /** Open the graph, once. Resolves to what runs: {model, precision, provider, detector}. */
  open() {
    if (this.opened) return this.opened;
    this.worker = new Worker(new URL("local/worker.js", this.base), { type: "module" });
    this.worker.onmessage = ({ data: { id, result, error, loaded } }) => {
      if (loaded) return this.report({ loaded: [Math.min(loaded, this.bytes), this.bytes] });
      const { resolve, reject } = this.pending.get(id);
      this.pending.delete(id);
      if (error) reject(failure(error));
      else resolve(result);
    };
    this.worker.onerror = (event) =>
      this.pending.forEach(({ reject }) => reject(failure(event.message || "the worker did not start")));
    const cores = navigator.hardwareConcurrency - 1; // one is left for the page; threads that share a core are slower
    const threads = self.crossOriginIsolated ? Math.max(1, Math.min(cores, MAX_THREADS)) : 1;
    this.opened = this.ask({ open: this.facts, base: this.base, runtimeBytes: RUNTIME_BYTES, threads })
      .catch((error) => { throw Object.assign(navigator.onLine ? error : failure(OFFLINE), { again: true }); });
    this.opened.then((runs) => this.report({ runs }), (error) => {
      this.worker.terminate();
      this.opened = null; // the next use tries again
      this.report({ why: error.message });
    });
    return this.opened;
  }

  report({ loaded = null, runs = null, why = "" }) {
    Object.assign(this, { loaded, runs, why });
    this.changed();
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
    return {
      ...about,
      confidence_threshold: threshold,
      images: [image],
      timings_ms: { total: performance.now() - began },
    };
  }

  stream() {
    return new LocalStream(this);
  }
}

const failure = (detail) => Object.assign(new Error(detail), { title: "Not labeled", detail });

/** The interface of FrameSocket. */
class LocalStream {
  static count = 0;
  id; loaded;

  constructor(labeler) {
    this.labeler = labeler;
    this.framePx = LOCAL_FRAME_PX;
    this.wanted = false;
    this.inFlight = 0;
    this.message = "";
  }

  async open() {
    if (this.wanted) return;
    const id = `local-${++LocalStream.count}`;
    Object.assign(this, { wanted: true, id, message: "Loading the model…" });
    const message = await this.labeler.open().then(
      () => "",
      (error) => `Labeling in this tab failed: ${error.message}. Pause and resume to try again.`,
    );
    if (id === this.id) Object.assign(this, { message, loaded: !message });
  }

  close() {
    Object.assign(this, { wanted: false, id: null, message: "", loaded: false });
  }

  ready() {
    return this.loaded && this.inFlight < LOCAL_IN_FLIGHT;
  }

  async label(canvas) {
    const { id } = this;
    this.inFlight++;
    try {
      const bitmap = await createImageBitmap(canvas);
      const result = await this.labeler.ask({ source: bitmap, live: true }, [bitmap]);
      return id === this.id ? result : null;
    } catch (error) {
      if (id === this.id) this.message = `Labeling in this tab failed: ${error.message}`;
      return null;
    } finally {
      this.inFlight--;
    }
  }
}
