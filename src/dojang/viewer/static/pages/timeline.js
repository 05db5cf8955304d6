// Who waited for whom: a lane for each part of a run, with the stages it went through.

import { get, runPath } from "../api.js";
import { append, emptyState, h, replace, s } from "../dom.js";
import { go } from "../router.js";
import { linearTicks, scale } from "../scales.js";
import { count, number, percent, seconds } from "../text.js";

const STYLES = ["rollout", "update", "publish", "teacher", "eval", "load", "checkpoint"];
const STEPS = 8;
const [LANE, NAME, TOP] = [40, 96, 26];

/** Opens the timeline. Parameters: run, from_step, to_step. */
export async function timeline(root, params, app) {
  const page = new TimelinePage(root, params);
  await page.load();
  return {
    title: "Timeline",
    update: ({ changed, before, now }) => {
      const fresh =
        changed.includes(params.run) && before[params.run]?.metrics_version !== now[params.run].metrics_version;
      if (fresh && !params.from_step) page.load().catch(() => {});
    },
    close: () => page.observer?.disconnect(),
  };
}

class TimelinePage {
  constructor(root, params) {
    Object.assign(this, { root, run: params.run, from: params.from_step ?? "", to: params.to_step ?? "" });
  }

  async load() {
    let [from, to] = [this.from, this.to];
    if (from === "") {
      const { steps } = await get(runPath(this.run, "timeline"), { from_step: 0, to_step: 0 });
      if (steps?.length) [from, to] = [Math.max(steps[0], steps[1] - STEPS + 1), steps[1]];
    }
    const found = await get(runPath(this.run, "timeline"), { from_step: from, to_step: to });
    this.shown = [Number(from), Number(to)];
    this.#draw(found);
  }

  #draw({ spans, steps, source }) {
    const head = h(
      "div",
      { class: "page-head" },
      h("h1", {}, "Timeline"),
      h("span", { class: "muted" }, explain(source)),
    );
    if (!spans.length)
      return replace(this.root, head, emptyState("No times recorded", "A run records them from its first step on."));
    this.spans = spans;
    this.svg = s("svg", {
      class: "plot timeline",
      role: "img",
      "aria-label": "Stages over time; the table below has the same figures",
    });
    this.tip = h("div", { class: "chart-tip", hidden: true });
    const card = h(
      "section",
      { class: "card section" },
      this.#steps(steps),
      h("div", { class: "plot-box" }, this.svg, this.tip),
      legend(spans),
    );
    replace(this.root, head, h("div", { class: "stack" }, card, summary(spans)));
    this.observer?.disconnect();
    this.observer = new ResizeObserver(() => this.#lanes());
    this.observer.observe(card);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => (this.tip.hidden = true));
  }

  #steps(steps) {
    if (!steps?.length) return null;
    const [first, last] = steps;
    const [from, to] = this.shown;
    const width = to - from + 1;
    const show = (start, end) =>
      go("timeline", { run: this.run, from_step: Math.max(first, start), to_step: Math.min(last, end) });
    const button = (label, off, press) => h("button", { type: "button", disabled: off, on: { click: press } }, label);
    const field = (value, press) => {
      const input = h("input", { type: "number", min: first, max: last, value });
      input.addEventListener("change", () => press(Number(input.value)));
      return input;
    };
    const moves = h(
      "div",
      { class: "segmented", role: "group", "aria-label": "Steps" },
      button("First", from <= first, () => show(first, first + width - 1)),
      button("Earlier", from <= first, () => show(from - width, from - 1)),
      button("Later", to >= last, () => show(to + 1, to + width)),
      button("Last", to >= last, () => go("timeline", { run: this.run })),
    );
    return h(
      "div",
      { class: "row" },
      h(
        "label",
        { class: "field" },
        "Steps",
        field(from, (value) => show(value, Math.max(value, to))),
      ),
      h(
        "label",
        { class: "field" },
        "to",
        field(to, (value) => show(Math.min(from, value), value)),
      ),
      moves,
      h("span", { class: "note" }, `of ${count(first)} to ${count(last)}`),
    );
  }

  #lanes() {
    const width = this.svg.parentElement.clientWidth;
    if (!width) return;
    const whos = lanes(this.spans);
    const [start, end] = [
      Math.min(...this.spans.map((each) => each.start)),
      Math.max(...this.spans.map((each) => each.end)),
    ];
    const height = TOP + whos.length * LANE + 20;
    const x = scale(start, Math.max(end, start + 1e-6), NAME, width - 8);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    replace(
      this.svg,
      pattern(),
      this.#axis(x, start, end, width),
      whos.map((who, place) => [
        s("rect", { class: "lane", x: NAME, y: TOP + place * LANE, width: width - NAME - 8, height: LANE - 10, rx: 3 }),
        s(
          "text",
          { class: "lane-name", x: 0, y: TOP + place * LANE + 19 },
          who.length > 13 ? `${who.slice(0, 12)}…` : who,
        ),
      ]),
    );
    this.drawn = this.spans.map((span) => ({
      span,
      x: x(span.start),
      width: Math.max(1, x(span.end) - x(span.start)),
      y: TOP + whos.indexOf(span.who) * LANE,
    }));
    append(this.svg, [this.#stepNames(x, TOP + whos.length * LANE)]);
    for (const { span, x: left, width: long, y } of this.drawn) {
      this.svg.append(
        s("rect", { class: `span ${style(span.stage)}`, x: left, y, width: long, height: LANE - 10, rx: 2 }),
      );
      if (long > 8 * span.stage.length && !isWaiting(span.stage))
        this.svg.append(s("text", { class: "span-label", x: left + 5, y: y + 19 }, span.stage));
    }
  }

  #axis(x, start, end, width) {
    const ticks = linearTicks(0, end - start, Math.max(2, Math.floor(width / 120)));
    return ticks.map((tick) => [
      s("line", { class: "grid", x1: x(start + tick), x2: x(start + tick), y1: 18, y2: TOP }),
      s("text", { class: "tick", x: x(start + tick), y: 12, "text-anchor": "middle" }, `${number(tick)} s`),
    ]);
  }

  /** The beginning of every step, named where there is room. */
  #stepNames(x, bottom) {
    const starts = new Map();
    for (const { step, start } of this.spans) starts.set(step, Math.min(start, starts.get(step) ?? Infinity));
    let room = 0;
    return [...starts]
      .sort((a, b) => a[1] - b[1])
      .map(([step, start]) => {
        const at = x(start);
        const named = at >= room;
        if (named) room = at + 60;
        const line = s("line", { class: "step-line", x1: at, x2: at, y1: TOP - 4, y2: bottom + (named ? 6 : 0) });
        return [line, named && s("text", { class: "tick", x: at + 3, y: bottom + 8 }, `step ${count(step)}`)];
      });
  }

  #point(event) {
    const box = this.svg.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const hit = this.drawn?.findLast(
      (each) => left >= each.x - 1 && left <= each.x + each.width + 1 && top >= each.y && top <= each.y + LANE - 10,
    );
    this.tip.hidden = !hit;
    if (!hit) return;
    const { span } = hit;
    replace(
      this.tip,
      h("div", { class: "tip-step" }, `${span.who}, step ${count(span.step)}`),
      h("div", {}, h("b", {}, span.stage), `  ${seconds(span.end - span.start)}`),
    );
    this.tip.style.setProperty("left", `${Math.min(left + 12, Math.max(0, box.width - 190))}px`);
    this.tip.style.setProperty("top", `${hit.y + LANE - 4}px`);
  }
}

function explain(source) {
  if (source === "durations")
    return "This run has no timeline.jsonl: its stages are drawn one after the other, as long as timing_s/* says; overlaps are not known.";
  return source === "spans" ? "Hatched: waiting" : "";
}

function lanes(spans) {
  const rank = (who) => ["trainer", "engine"].indexOf(who) >>> 0;
  return [...new Set(spans.map((each) => each.who))].sort(
    (a, b) => rank(a) - rank(b) || a.localeCompare(b, "en", { numeric: true }),
  );
}

function style(stage) {
  if (isWaiting(stage)) return "waiting";
  const place = STYLES.indexOf(stage);
  return `series-${place >= 0 ? place : 7}`;
}

function isWaiting(stage) {
  return stage === "wait" || stage.startsWith("idle");
}

function pattern() {
  return s(
    "defs",
    {},
    s(
      "pattern",
      { id: "waiting", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("line", { class: "waiting-line", x1: 0, x2: 0, y1: 0, y2: 6 }),
    ),
  );
}

function legend(spans) {
  const stages = [...new Set(spans.map((each) => each.stage))];
  return h(
    "ul",
    { class: "legend" },
    stages.map((stage) =>
      h(
        "li",
        { class: "row note" },
        h("span", { class: `stage-swatch ${style(stage)}`, "aria-hidden": "true" }),
        stage,
      ),
    ),
  );
}

function summary(spans) {
  const rows = lanes(spans).flatMap((who) => {
    const own = spans.filter((each) => each.who === who);
    const whole = Math.max(...own.map((each) => each.end)) - Math.min(...own.map((each) => each.start));
    const totals = new Map();
    for (const each of own) totals.set(each.stage, (totals.get(each.stage) ?? 0) + each.end - each.start);
    return [...totals]
      .sort((a, b) => b[1] - a[1])
      .map(([stage, time]) => ({ who, stage, time, share: whole > 0 ? time / whole : null }));
  });
  const row = (each) =>
    h(
      "tr",
      {},
      h("td", {}, each.who),
      h(
        "td",
        {},
        h(
          "span",
          { class: "row" },
          h("span", { class: `stage-swatch ${style(each.stage)}`, "aria-hidden": "true" }),
          each.stage,
        ),
      ),
      h("td", { class: "num" }, seconds(each.time)),
      h("td", { class: "num" }, percent(each.share)),
    );
  const head = h(
    "tr",
    {},
    h("th", {}, "Who"),
    h("th", {}, "Stage"),
    h("th", { class: "num" }, "Time"),
    h("th", { class: "num" }, "Share"),
  );
  return h(
    "div",
    { class: "card table-card always-scroll" },
    h(
      "div",
      { class: "table-scroll" },
      h("table", { "aria-label": "Time by stage" }, h("thead", {}, head), h("tbody", {}, rows.map(row))),
    ),
  );
}
