// A line chart in SVG: several series over steps, smoothed with the raw line behind, values under the pointer, zoom by
// dragging. Series differ by colour, dashes and marks.

import { h, replace, s } from "./dom.js";
import { bounds, isValue, linearTicks, logTicks, nearest, padded, scale, smooth, thin } from "./scales.js";
import { number, withUnit } from "./text.js";

const STYLES = 8;
const MARGIN = { top: 8, right: 12, bottom: 24, left: 52 };
const MARKED = 30; // series with at most this number of points in view have a mark at each
const POINTS = 2000;
const SMOOTHED = 20; // shorter series, such as evaluations, are drawn as they are

/** A chart in a host element. `set` changes series and options and draws again. */
export class Chart {
  constructor(host, { label = "", unit = "", height = 190, compact = false, legend = true, onZoom = null } = {}) {
    Object.assign(this, { host, label, unit, height, compact, onZoom });
    this.state = { series: [], smoothing: 0, log: false, domain: null };
    this.hidden = new Set();
    this.at = null; // place of the pointer, as a step
    this.svg = s("svg", { class: "plot", role: "img", tabindex: compact ? false : "0", "aria-label": label });
    this.tip = h("div", { class: "chart-tip", hidden: true });
    this.legend = legend ? h("ul", { class: "legend" }) : null;
    this.reset = h(
      "button",
      { type: "button", class: "chip reset", hidden: true, on: { click: () => this.zoom(null) } },
      "Reset zoom",
    );
    replace(host, h("div", { class: "plot-box" }, this.svg, this.tip, this.reset), this.legend);
    host.classList.add("chart");
    if (compact) host.classList.add("compact");
    this.#listen();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(host);
  }

  set(changes) {
    Object.assign(this.state, changes);
    if (changes.series) this.state.series = changes.series.map((each, place) => prepared(each, place));
    this.draw();
  }

  zoom(domain) {
    this.state.domain = domain;
    this.draw();
    this.onZoom?.(domain);
  }

  destroy() {
    this.observer.disconnect();
  }

  draw() {
    const width = this.host.clientWidth;
    if (!width) return;
    const { log } = this.state;
    const shown = this.#inView();
    const box = this.#box(width);
    this.frame = this.#frame(shown, box);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    replace(this.svg);
    this.reset.hidden = this.state.domain === null;
    if (!this.frame) {
      const text = log && this.state.series.length ? "no values above zero" : "no values";
      this.svg.append(s("text", { class: "none", x: width / 2, y: this.height / 2, "text-anchor": "middle" }, text));
    } else {
      this.#axes(box);
      for (const each of shown) this.#line(each, box);
      this.cross = s("g", { class: "cross" });
      this.brush = s("rect", { class: "brush", y: box.top, height: box.bottom - box.top, width: 0 });
      this.svg.append(this.brush, this.cross);
      this.#point();
    }
    this.#drawLegend();
  }

  #box(width) {
    const left = this.compact ? 4 : MARGIN.left;
    return {
      left,
      right: width - (this.compact ? 4 : MARGIN.right),
      top: MARGIN.top,
      bottom: this.height - (this.compact ? 6 : MARGIN.bottom),
    };
  }

  /** Series that are not hidden, cut to the zoomed steps with one point on either side, smoothed and thinned. */
  #inView() {
    const { series, smoothing, domain } = this.state;
    const found = [];
    for (const each of series) {
      if (this.hidden.has(each.name)) continue;
      const weight = each.steps.length < SMOOTHED ? 0 : smoothing;
      const smoothed = smooth(each.values, weight);
      let [first, end] = [0, each.steps.length];
      if (domain) {
        while (first < end && each.steps[first] < domain[0]) first++;
        while (end > first && each.steps[end - 1] > domain[1]) end--;
        [first, end] = [Math.max(0, first - 1), Math.min(each.steps.length, end + 1)];
      }
      const part = (values) => thin(each.steps.slice(first, end), values.slice(first, end), POINTS);
      found.push({ ...each, raw: weight > 0 ? part(each.values) : null, main: part(smoothed), smoothed });
    }
    return found;
  }

  #frame(shown, box) {
    const { log, domain } = this.state;
    const inside = (part) =>
      domain ? part.values.filter((_, at) => part.steps[at] >= domain[0] && part.steps[at] <= domain[1]) : part.values;
    const ys = bounds(
      shown.flatMap(({ main, raw }) => (raw ? [inside(main), inside(raw)] : [inside(main)])),
      log,
    );
    const xs = domain ?? bounds(shown.map((each) => each.main.steps));
    if (!ys || !xs) return null;
    const [low, high] = padded(ys, log);
    const [first, last] = xs[0] === xs[1] ? [xs[0] - 1, xs[1] + 1] : xs;
    return {
      x: scale(first, last, box.left, box.right),
      y: scale(low, high, box.bottom, box.top, log),
      xs: [first, last],
      ys: [low, high],
      shown,
    };
  }

  #axes(box) {
    if (this.compact) return;
    const { x, y, xs, ys } = this.frame;
    const [yTicks, xTicks] = [
      this.state.log ? logTicks(...ys) : linearTicks(...ys, 5),
      linearTicks(...xs, Math.max(2, Math.min(8, Math.floor((box.right - box.left) / 65)))).filter(Number.isInteger),
    ];
    for (const tick of yTicks) {
      const at = y(tick);
      this.svg.append(s("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }));
      this.svg.append(
        s("text", { class: "tick", x: box.left - 7, y: at + 3.5, "text-anchor": "end" }, this.#tick(tick)),
      );
    }
    this.svg.append(s("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    for (const tick of xTicks) {
      const at = x(tick);
      this.svg.append(s("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }));
      this.svg.append(s("text", { class: "tick", x: at, y: box.bottom + 16, "text-anchor": "middle" }, number(tick)));
    }
  }

  #tick(value) {
    if (this.unit === "share") return `${Number((100 * value).toPrecision(6))}%`;
    const size = Math.abs(value);
    if (size >= 1e9) return `${Number((value / 1e9).toPrecision(4))}G`;
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
    if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
    return number(value);
  }

  #line(each, box) {
    const { x, y } = this.frame;
    const style = `series-${each.style % STYLES}`;
    const clip = { left: box.left - 1, right: box.right + 1 };
    if (each.raw) this.svg.append(s("path", { class: `raw ${style}`, d: path(each.raw, x, y, this.state.log, clip) }));
    this.svg.append(s("path", { class: `line ${style}`, d: path(each.main, x, y, this.state.log, clip) }));
    const { steps, values } = each.main;
    if (this.compact ? steps.length > 1 : steps.length > MARKED) return;
    steps.forEach((step, at) => {
      const there =
        isValue(values[at]) && (!this.state.log || values[at] > 0) && x(step) >= clip.left && x(step) <= clip.right;
      if (there) this.svg.append(mark(each.style % STYLES, x(step), y(values[at])));
    });
  }

  #listen() {
    let start = null;
    const place = (event) => event.clientX - this.svg.getBoundingClientRect().left;
    this.svg.addEventListener("pointermove", (event) => {
      if (!this.frame) return;
      this.at = this.frame.x.invert(place(event));
      if (start !== null) this.#drawBrush(start, place(event));
      this.#point();
    });
    this.svg.addEventListener("pointerleave", () => this.#leave());
    this.svg.addEventListener("blur", () => this.#leave());
    if (this.compact) return;
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch" || !this.frame) return;
      start = place(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const ends = [start, place(event)].sort((a, b) => a - b);
      start = null;
      const steps = ends.map((each) => this.frame.x.invert(each));
      if (ends[1] - ends[0] > 6)
        this.zoom([Math.max(this.frame.xs[0], steps[0]), Math.min(this.frame.xs[1], steps[1])]);
      else this.#drawBrush(0, 0);
    });
    this.svg.addEventListener("dblclick", () => this.zoom(null));
    this.svg.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Moves the crosshair by the arrow keys, so that values can be read without a pointer. */
  #key(event) {
    const all = this.frame?.shown.find((each) => each.steps.length)?.steps ?? [];
    if (!all.length || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") {
      if (this.state.domain) event.stopPropagation();
      return this.state.domain ? this.zoom(null) : this.#leave();
    }
    const last = all.length - 1;
    const [left, right] = this.at === null ? [last, 0] : [nearest(all, this.at) - 1, nearest(all, this.at) + 1];
    const next = { ArrowLeft: left, ArrowRight: right, Home: 0, End: last }[event.key];
    this.at = all[Math.min(last, Math.max(0, next))];
    this.#point();
  }

  #leave() {
    this.at = null;
    this.#point();
  }

  #drawBrush(from, to) {
    this.brush.setAttribute("x", Math.min(from, to));
    this.brush.setAttribute("width", Math.abs(to - from));
  }

  /** Draws the crosshair and the values at the step nearest to the pointer. */
  #point() {
    if (!this.frame || !this.cross) return;
    replace(this.cross);
    const rows = this.at === null ? [] : this.#valuesAt(this.at);
    this.tip.hidden = rows.length === 0;
    if (!rows.length) return;
    const { x, y } = this.frame;
    const at = x(rows[0].step);
    this.cross.append(
      s("line", { x1: at, x2: at, y1: MARGIN.top, y2: this.height - (this.compact ? 6 : MARGIN.bottom) }),
    );
    for (const row of rows) {
      if (isValue(row.drawn) && (!this.state.log || row.drawn > 0))
        this.cross.append(
          s("circle", { class: `series-${row.style % STYLES}`, cx: x(row.step), cy: y(row.drawn), r: 3.5 }),
        );
    }
    this.#fillTip(rows, at);
  }

  #valuesAt(wanted) {
    const near = this.frame.shown
      .map((each) => ({ each, place: nearest(each.steps, wanted) }))
      .filter(({ place }) => place >= 0);
    if (!near.length) return [];
    const steps = near.map(({ each, place }) => each.steps[place]);
    const step = steps.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best));
    return near
      .filter(({ each, place }) => each.steps[place] === step)
      .map(({ each, place }) => ({
        step,
        name: each.name,
        style: each.style,
        value: each.values[place],
        drawn: each.smoothed[place],
        smooth: each.raw !== null,
      }));
  }

  #fillTip(rows, at) {
    const several = this.state.series.length > 1;
    const averaged = rows.some((row) => row.smooth);
    const line = (row) =>
      h(
        "tr",
        {},
        several && h("td", { class: "tip-name" }, swatch(row.style), " ", row.name),
        h("td", { class: "tip-value" }, withUnit(row.value, this.unit)),
        averaged && h("td", { class: "muted num" }, row.smooth ? withUnit(row.drawn, this.unit) : ""),
      );
    const head = h(
      "tr",
      {},
      several && h("th", {}, `step ${number(rows[0].step)}`),
      h("th", { class: "num" }, several ? "" : `step ${number(rows[0].step)}`),
      averaged && h("th", { class: "num" }, "smoothed"),
    );
    replace(this.tip, h("table", {}, head, rows.map(line)));
    const width = this.host.clientWidth;
    const right = at > width / 2;
    this.tip.style.setProperty("left", right ? "auto" : `${at + 12}px`);
    this.tip.style.setProperty("right", right ? `${width - at + 12}px` : "auto");
    const spoken = rows.map((row) => `${row.name} ${withUnit(row.value, this.unit)}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.label}, step ${rows[0].step}: ${spoken}`);
  }

  #drawLegend() {
    if (!this.legend) return;
    this.legend.hidden = this.state.series.length < 2;
    replace(this.legend, this.legend.hidden ? [] : this.state.series.map((each) => this.#legendItem(each)));
  }

  #legendItem(each) {
    const toggle = () => {
      if (!this.hidden.delete(each.name)) this.hidden.add(each.name);
      this.draw();
      this.legend.querySelectorAll("button")[this.state.series.indexOf(each)]?.focus();
    };
    const shown = !this.hidden.has(each.name);
    const button = h(
      "button",
      { type: "button", "aria-pressed": String(shown), title: shown ? "Hide" : "Show", on: { click: toggle } },
      swatch(each.style),
      each.name,
    );
    return h("li", {}, button);
  }
}

/** Returns the sample of a series' line for a legend. */
export function swatch(style) {
  const place = style % STYLES;
  return s(
    "svg",
    { class: "swatch", width: 22, height: 10, "aria-hidden": "true" },
    s("line", { class: `line series-${place}`, x1: 0, x2: 22, y1: 5, y2: 5 }),
    mark(place, 11, 5),
  );
}

function prepared(series, place) {
  const values = series.values.map((value) => (isValue(value) ? value : null));
  return { name: series.name, steps: series.steps, values, style: series.style ?? place };
}

function mark(style, x, y) {
  const shape = style % 4;
  const options = { class: `mark series-${style}` };
  if (shape === 0) return s("circle", { ...options, cx: x, cy: y, r: 2.6 });
  if (shape === 1) return s("rect", { ...options, x: x - 2.4, y: y - 2.4, width: 4.8, height: 4.8 });
  const points =
    shape === 2
      ? [
          [0, -3.4],
          [3.1, 2.4],
          [-3.1, 2.4],
        ]
      : [
          [0, -3.5],
          [3.5, 0],
          [0, 3.5],
          [-3.5, 0],
        ];
  return s("polygon", {
    ...options,
    points: points.map(([dx, dy]) => `${(x + dx).toFixed(1)},${(y + dy).toFixed(1)}`).join(" "),
  });
}

/** Returns the path of a line; a missing value is a gap. Lines that leave the plot are cut at its edge. */
function path({ steps, values }, x, y, log, clip) {
  let text = "";
  let before = null;
  for (let at = 0; at < steps.length; at++) {
    const value = values[at];
    const point = isValue(value) && (!log || value > 0) ? [x(steps[at]), y(value)] : null;
    if (point && before) {
      const [from, to] = [inside(before, point, clip), inside(point, before, clip)];
      if (from && to) text += `${text && same(from, before) ? "" : `M${place(from)}`}L${place(to)}`;
    } else if (point && point[0] >= clip.left && point[0] <= clip.right) {
      text += `M${place(point)}`;
    }
    before = point;
  }
  return text;
}

function inside(point, other, clip) {
  if (point[0] >= clip.left && point[0] <= clip.right) return point;
  const edge = point[0] < clip.left ? clip.left : clip.right;
  if ((other[0] - edge) * (point[0] - edge) >= 0) return null;
  const share = (edge - point[0]) / (other[0] - point[0]);
  return [edge, point[1] + share * (other[1] - point[1])];
}

function same(a, b) {
  return a[0] === b[0] && a[1] === b[1];
}

function place(point) {
  return `${point[0].toFixed(1)},${point[1].toFixed(1)}`;
}
