// The stream of the service: one WebSocket, which is reopened whenever it is lost.
//
// At most two frames are in flight. The second one is sent when the first has been in flight for half of the mean
// round trip, so that the service is never idle and no frame waits long behind another.

const FRAME_PX = 640; // long side of a frame
const FRAME_QUALITY = 0.8;
const IN_FLIGHT = 2;
const NEXT_FRAME_MS = 33; // The camera's next frame would be late by the rest of this.
const SILENT_MS = 8000;
const FIRST_RETRY_MS = 400;
const LAST_RETRY_MS = 5000;
const SLOW_RETRY_MS = 1000;

export class FrameSocket {
  /** `reopened()` is called when a lost connection is there again: the service may run another model now. */
  constructor(reopened) {
    this.reopened = reopened;
    this.framePx = FRAME_PX;
    this.wanted = this.everOpen = this.encoding = false;
    this.socket = null;
    this.retryMs = FIRST_RETRY_MS;
    this.meanMs = 100;
    this.silentMs = SILENT_MS;
    this.message = ""; // what the user should know about the connection
    this.waiting = new Map(); // number of a frame on this connection -> {sentAt, resolve}
  }

  open() {
    if (this.wanted) return;
    this.wanted = true;
    this.connect();
  }

  close() {
    this.wanted = false;
    this.message = "";
    const { socket } = this;
    this.drop();
    clearTimeout(this.timer);
    if (socket && socket.readyState === WebSocket.CONNECTING)
      socket.onopen = () => socket.close(1000); // else the browser logs an error
    else socket?.close(1000);
  }

  /** Forget the connection: the frames in flight have no result. */
  drop() {
    this.socket = null;
    clearInterval(this.watch);
    for (const { resolve } of this.waiting.values()) resolve(null);
    this.waiting.clear();
  }

  connect() {
    const address = new URL("v1/stream", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address.href);
    this.socket = socket;
    this.next = 0;
    socket.onopen = () => {
      if (socket !== this.socket) return;
      if (this.message) this.reopened();
      Object.assign(this, { everOpen: true, retryMs: FIRST_RETRY_MS, message: "" });
    };
    socket.onmessage = (event) => socket === this.socket && this.receive(JSON.parse(event.data));
    socket.onclose = () => socket === this.socket && this.lose();
    this.watch = setInterval(() => this.checkSilence(), 1000);
  }

  async lose() {
    this.drop();
    if (!this.wanted) return;
    const { retryMs } = this;
    this.timer = setTimeout(() => this.connect(), retryMs);
    this.retryMs = Math.min(retryMs * 1.8, LAST_RETRY_MS);
    this.message ||= this.everOpen ? "Connection lost, trying again…" : "Connecting…";
    const response = await fetch("v1/models").catch(() => null);
    if (!this.wanted || this.socket) return;
    if (response?.status === 401) this.message = "The API key is no longer accepted: reload the page";
    else if (!response && !this.everOpen) this.message = "The service does not respond, trying again…";
    else if (response?.ok && retryMs > SLOW_RETRY_MS)
      this.message = "The service has no free streams now, or a proxy does not pass on WebSockets. Trying again…";
  }

  /** Reconnect if a connection is dead although nobody has closed it. */
  checkSilence() {
    const [oldest] = this.waiting.values();
    if (!oldest || performance.now() - oldest.sentAt <= this.silentMs) return;
    this.silentMs *= 2; // perhaps it is only slow
    const { socket } = this;
    this.lose();
    socket.close();
  }

  /** Whether a frame may be sent now. */
  ready(now) {
    if (this.socket?.readyState !== WebSocket.OPEN || this.socket.bufferedAmount > 0 || this.encoding) return false;
    const [oldest] = this.waiting.values();
    return !oldest || (this.waiting.size < IN_FLIGHT && now - oldest.sentAt > this.meanMs / 2 - NEXT_FRAME_MS / 2);
  }

  /**
   * Label the picture of a canvas. Resolves to the result, or null if there is none: the connection was lost, or a
   * newer frame came first.
   */
  async label(canvas) {
    this.encoding = true;
    const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", FRAME_QUALITY));
    const frame = await blob?.arrayBuffer();
    this.encoding = false;
    if (!frame || this.socket?.readyState !== WebSocket.OPEN) return null;
    this.socket.send(frame);
    return new Promise((resolve) => this.waiting.set(this.next++, { sentAt: performance.now(), resolve }));
  }

  receive(result) {
    for (const [number, { sentAt, resolve }] of this.waiting) {
      if (number > result.frame) continue;
      this.waiting.delete(number);
      if (number < result.frame) resolve(null);
      else {
        const passed = performance.now() - sentAt;
        this.meanMs += 0.2 * (passed - this.meanMs);
        this.silentMs = Math.max(SILENT_MS, 2 * passed);
        resolve(result);
      }
    }
  }
}
