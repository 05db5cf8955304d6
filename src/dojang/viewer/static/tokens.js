// The token view: a span per token, coloured by a value; values of the token under the pointer or the keyboard.

import { h, replace } from "./dom.js";
import { MODES, coloring, difference, modesOf } from "./token_colors.js";
import { number, signed, visible } from "./text.js";

const CHUNK = 1500; // tokens made in one frame
const KEPT = "dojang-token-mode";

/** The tokens of a sample. `element` is the view; `nextMode` switches the colour. */
export class TokenView {
  constructor(sample) {
    this.sample = { advantage: sample.advantage ?? sample.row?.advantage ?? null, group: sample.group };
    this.tokens = sample.tokens;
    this.first = this.tokens.findIndex((token) => token.sampled);
    if (this.first < 0) this.first = this.tokens.length;
    this.modes = modesOf(this.tokens, this.sample);
    this.mode =
      this.modes.find((mode) => mode.name === kept()) ?? this.modes.find((mode) => mode.name === "logprob") ?? MODES[0];
    this.spans = [];
    this.turns = new Map((sample.environment_turns ?? []).map((turn) => [turn.start, turn]));
    this.at = -1;
    this.choice = h("div", { class: "segmented", role: "group", "aria-label": "Colour tokens by" });
    this.legend = h("div", { class: "token-legend" });
    this.tip = h("div", { class: "chart-tip token-tip", role: "status", hidden: true });
    this.text = h("div", {
      class: "text tokens",
      dir: "ltr",
      tabindex: "0",
      role: "group",
      "aria-label": "Tokens; arrow keys move from token to token",
    });
    this.before = h("span", { class: "prompt-tokens" });
    this.element = h(
      "div",
      { class: "token-view" },
      h("div", { class: "row" }, this.choice, this.legend),
      h("div", { class: "token-box" }, this.text, this.tip),
      this.#promptButton(),
    );
    this.#listen();
    this.#drawMode();
    this.#build(this.first, this.tokens.length, this.text);
  }

  nextMode() {
    this.setMode(this.modes[(this.modes.indexOf(this.mode) + 1) % this.modes.length]);
  }

  setMode(mode) {
    this.mode = mode;
    try {
      localStorage.setItem(KEPT, mode.name);
    } catch {
      // storage is switched off
    }
    this.#drawMode();
    this.spans.forEach((span, place) => span && (span.className = this.#classOf(this.tokens[place])));
  }

  #classOf(token) {
    return `tok ${token.sampled ? "" : "given "}${this.colors.classOf(token)}`;
  }

  #drawMode() {
    this.colors = coloring(this.mode, this.tokens, this.sample);
    replace(
      this.choice,
      this.modes.map((mode) =>
        h(
          "button",
          { type: "button", "aria-pressed": String(mode === this.mode), on: { click: () => this.setMode(mode) } },
          mode.label,
        ),
      ),
    );
    const { legend, ends, words } = this.colors;
    const swatches = legend.map((each) => h("span", { class: `swatch-box ${each.class}` }, each.text));
    replace(
      this.legend,
      ends && [words[0], h("span", { class: "num" }, ends[0])],
      h("span", { class: "swatches" }, swatches),
      ends && [h("span", { class: "num" }, ends.at(-1)), words[1]],
    );
  }

  #promptButton() {
    if (this.first === 0) return null;
    const button = h(
      "button",
      { type: "button", class: "quiet" },
      `Show the ${this.first.toLocaleString("en-US")} tokens of the prompt`,
    );
    button.addEventListener("click", () => {
      this.text.prepend(this.before);
      this.#build(0, this.first, this.before);
      button.remove();
    });
    return button;
  }

  /** Makes spans in pieces, so that the page answers while ten thousand are made. */
  #build(from, end, host) {
    const part = document.createDocumentFragment();
    const stop = Math.min(end, from + CHUNK);
    for (let place = from; place < stop; place++) {
      if (this.turns.has(place)) part.append(turnMark(this.turns.get(place)));
      part.append(this.#span(place));
    }
    host.append(part);
    if (stop < end) requestAnimationFrame(() => this.#build(stop, end, host));
    else if (host === this.text) this.text.dataset.done = "true";
  }

  #span(place) {
    const token = this.tokens[place];
    const span = document.createElement("span");
    span.className = this.#classOf(token);
    span.dataset.place = place;
    span.textContent = tokenText(token);
    this.spans[place] = span;
    return span;
  }

  #listen() {
    let pointer = "";
    this.text.addEventListener("pointerover", (event) => {
      const span = event.target.closest(".tok");
      const moved = pointer !== `${event.screenX} ${event.screenY}`; // not so when text scrolls under the pointer
      pointer = `${event.screenX} ${event.screenY}`;
      if (span && moved) this.#show(Number(span.dataset.place));
    });
    this.text.addEventListener("pointerleave", () => this.#show(-1));
    this.text.addEventListener("blur", () => this.#show(-1));
    this.text.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = this.at < 0 ? this.first : this.at + step;
      if (!this.spans[next]) return;
      this.#show(next);
      this.spans[next].scrollIntoView({ block: "nearest" });
    });
  }

  #show(place) {
    this.spans[this.at]?.classList.remove("at");
    this.at = place;
    const span = this.spans[place];
    this.tip.hidden = !span;
    if (!span) return;
    span.classList.add("at");
    replace(this.tip, this.#values(place));
    const [box, where] = [this.text.getBoundingClientRect(), span.getClientRects()[0] ?? span.getBoundingClientRect()];
    const left = Math.max(0, Math.min(where.left - box.left, box.width - 270));
    this.tip.style.setProperty("left", `${left}px`);
    this.tip.style.setProperty("top", `${where.bottom - box.top + 6}px`);
  }

  #values(place) {
    const token = this.tokens[place];
    const gap = difference(token);
    const rows = [
      ["token", `${token.id}${typeof token.text === "string" ? `  ${JSON.stringify(token.text)}` : ""}`],
      ["place", `${place}${token.sampled ? "" : ", given, not sampled"}`],
      ...(token.sampled
        ? [
            ["log-prob", `${number(token.logprob)}${probability(token.logprob)}`],
            ["trainer", number(token.trainer_logprob)],
            ["difference", gap === null ? "–" : signed(gap)],
            ["entropy", number(token.entropy)],
            ["version", number(token.version)],
          ]
        : []),
    ];
    return h(
      "dl",
      {},
      rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    );
  }
}

/** Returns the line above a turn of an environment: who speaks, and the turn's reward. */
function turnMark(turn) {
  const reward = turn.role === "assistant" && typeof turn.reward === "number" && `  reward ${number(turn.reward)}`;
  return h("span", { class: "turn-mark" }, turn.role ?? "turn", reward);
}

function probability(logprob) {
  return typeof logprob === "number" ? `  (${(100 * Math.exp(logprob)).toPrecision(3)}%)` : "";
}

function tokenText(token) {
  if (token.text === null || token.text === undefined) return `⟨${token.id}⟩`;
  return visible(token.text).replace(/\n/g, "⏎\n");
}

function kept() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}
