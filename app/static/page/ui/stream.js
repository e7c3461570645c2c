// Frames out, results in: one WebSocket, which is reopened whenever it is lost.
//
// At most two frames are in flight. The second one is sent when the first has been in flight for half of the mean
// round trip, so that the service is never idle and no frame waits long behind another.

const QUALITY = 0.8;
const IN_FLIGHT = 2;
const SILENT_MS = 8000;
const FIRST_RETRY_MS = 400;
const LAST_RETRY_MS = 5000;

export class FrameStream {
  /** `on.answer(result, sentAt)`, `on.open()`, `on.lost(retryMs, everOpen)`; times as of performance.now(). */
  constructor(url, on) {
    this.url = url;
    this.on = on;
    this.socket = null;
    this.wanted = false;
    this.everOpen = false;
    this.retryMs = FIRST_RETRY_MS;
    this.meanMs = 100;
    this.silentMs = SILENT_MS;
    this.reset();
  }

  reset() {
    this.sent = new Map(); // number of the frame on this connection -> when it was sent
    this.next = 0;
  }

  open() {
    if (this.wanted) return;
    this.wanted = true;
    this.connect();
  }

  close() {
    this.wanted = false;
    clearTimeout(this.timer);
    clearInterval(this.watch);
    const socket = this.socket;
    this.socket = null;
    this.reset();
    if (socket && socket.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close(1000); // else the browser logs an error
    else socket?.close(1000);
  }

  connect() {
    this.reset();
    const socket = new WebSocket(this.url);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    socket.onopen = () => {
      if (socket !== this.socket) return;
      this.retryMs = FIRST_RETRY_MS;
      this.everOpen = true;
      this.on.open();
    };
    socket.onmessage = (event) => socket === this.socket && this.receive(JSON.parse(event.data));
    socket.onclose = () => socket === this.socket && this.lose();
    clearInterval(this.watch);
    this.watch = setInterval(() => this.checkSilence(), 1000);
  }

  lose() {
    this.socket = null;
    this.reset();
    clearInterval(this.watch);
    if (!this.wanted) return;
    this.on.lost(this.retryMs, this.everOpen);
    this.timer = setTimeout(() => this.connect(), this.retryMs);
    this.retryMs = Math.min(this.retryMs * 1.8, LAST_RETRY_MS);
  }

  /** Reconnect if a connection is dead although nobody has closed it. */
  checkSilence() {
    const [oldest] = this.sent.values();
    if (oldest !== undefined && performance.now() - oldest > this.silentMs) {
      this.silentMs *= 2; // perhaps it is only slow
      const socket = this.socket;
      this.lose();
      socket.close();
    }
  }

  /** Whether a frame may be sent now. */
  ready(now) {
    if (this.socket?.readyState !== WebSocket.OPEN || this.socket.bufferedAmount > 0) return false;
    if (this.sent.size === 0) return true;
    const [oldest] = this.sent.values();
    return this.sent.size < IN_FLIGHT && now - oldest > this.meanMs / 2;
  }

  /** A frame as JPEG. */
  async encode(canvas) {
    const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", QUALITY));
    return blob?.arrayBuffer();
  }

  send(payload, now) {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    this.socket.send(payload);
    this.sent.set(this.next++, now);
  }

  receive(result) {
    const sentAt = this.sent.get(result.frame);
    for (const number of this.sent.keys()) if (number <= result.frame) this.sent.delete(number);
    if (sentAt === undefined) return;
    const passed = performance.now() - sentAt;
    this.meanMs += 0.2 * (passed - this.meanMs);
    this.silentMs = Math.max(SILENT_MS, 2 * passed);
    this.on.answer(result, sentAt);
  }
}
