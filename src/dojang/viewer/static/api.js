// The server's API, and its state, which is polled. Listeners hear of every change of a version, and of a lost connection.

const INTERVAL_MS = 2000;

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Returns the JSON of a path below /api; raises ApiError with the server's words. */
export async function get(path, params = {}, { signal } = {}) {
  return request(url(path, params), { signal });
}

/** Sends an object. The header is one that forms of other sites cannot send. */
export async function post(path, body) {
  const headers = { "Content-Type": "application/json", "X-Dojang": "1" };
  return request(url(path), { method: "POST", headers, body: JSON.stringify(body) });
}

/** Returns the address of a path below /api; leaves out empty parameters. */
export function url(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  const text = query.toString();
  return `/api/${path}${text ? `?${text}` : ""}`;
}

/** Returns the path of a run's resource. */
export function runPath(run, resource) {
  return `runs/${encodeURIComponent(run)}/${resource}`;
}

async function request(address, options) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is `dojang view` still running?", 0);
  }
  const type = response.headers.get("content-type") ?? "";
  const body = type.includes("json") ? await response.json() : { error: await response.text() };
  if (!response.ok)
    throw new ApiError(body.error || `The server answered with status ${response.status}.`, response.status);
  return body;
}

/** The polled state of all runs. */
export class Poller extends EventTarget {
  constructor() {
    super();
    this.runs = null;
    this.connected = true;
  }

  start() {
    this.#loop();
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
  }

  async #loop() {
    for (;;) {
      if (!document.hidden) await this.poll();
      await new Promise((done) => setTimeout(done, INTERVAL_MS));
    }
  }

  async poll() {
    try {
      const found = await get("state", {}, { signal: AbortSignal.timeout(10_000) });
      const before = this.runs ?? found.runs; // the pages have just loaded what the first answer tells
      this.runs = found.runs ?? {};
      this.#setConnected(true);
      const changed = Object.keys(this.runs).filter(
        (run) => JSON.stringify(before[run]) !== JSON.stringify(this.runs[run]),
      );
      this.dispatchEvent(new CustomEvent("state"));
      if (changed.length) this.dispatchEvent(new CustomEvent("change", { detail: { changed, before } }));
    } catch (error) {
      this.#setConnected(false, error);
    }
  }

  #setConnected(connected, error = null) {
    if (connected === this.connected) return;
    this.connected = connected;
    this.dispatchEvent(new CustomEvent("connection", { detail: { connected, error } }));
  }
}
