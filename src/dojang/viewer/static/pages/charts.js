// All metrics in groups, of one run or several in the same charts.

import { get, runPath } from "../api.js";
import { Chart, swatch } from "../chart.js";
import { emptyState, h, replace } from "../dom.js";
import { go } from "../router.js";
import { plural } from "../text.js";

const MOST_RUNS = 8;
const MOST_NAMES = 40; // of one request: its address stays short

/** Opens the charts. Parameters: runs, smooth, log, q. */
export async function charts(root, params, app) {
  const page = new ChartsPage(root, params, app);
  await page.open();
  return {
    title: "Charts",
    update: (news) => page.update(news),
    close: () => page.close(),
    keys: { "/": () => page.search.focus() },
  };
}

class ChartsPage {
  constructor(root, params, app) {
    this.root = root;
    this.app = app;
    const known = app.runs.map((run) => run.id);
    this.runs = (params.runs ?? params.run ?? "")
      .split(",")
      .filter((run) => known.includes(run))
      .slice(0, MOST_RUNS);
    if (!this.runs.length) this.runs = [app.run];
    this.smoothing = Math.min(0.99, Math.max(0, Number(params.smooth ?? 0.6) || 0));
    this.log = params.log === "1";
    this.query = params.q ?? "";
    this.cards = new Map();
    this.wanted = new Set();
    this.observer = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "300px" });
  }

  async open() {
    this.body = h("div", {});
    replace(
      this.root,
      h("div", { class: "page-head" }, h("h1", {}, "Charts")),
      this.#runChoice(),
      this.#toolbar(),
      this.body,
    );
    await this.#loadCatalogue();
  }

  close() {
    this.observer.disconnect();
    for (const card of this.cards.values()) card.chart?.destroy();
  }

  async update({ changed, before, now }) {
    const fresh = changed.filter(
      (run) => this.runs.includes(run) && before[run]?.metrics_version !== now[run].metrics_version,
    );
    if (!fresh.length) return;
    await this.#loadCatalogue();
    for (const card of this.cards.values()) if (card.visible) this.#want(card);
  }

  #runChoice() {
    if (this.app.runs.length < 2) return null;
    const buttons = this.app.runs.map((run) => {
      const place = this.runs.indexOf(run.id);
      const press = () => {
        const runs = place >= 0 ? this.runs.filter((each) => each !== run.id) : [...this.runs, run.id];
        if (runs.length) this.#go({ runs: runs.slice(-MOST_RUNS).join(",") });
      };
      return h(
        "button",
        { type: "button", class: "chip", "aria-pressed": String(place >= 0), on: { click: press } },
        place >= 0 && [swatch(place), " "],
        run.name ?? run.id,
      );
    });
    return h("div", { class: "chips", role: "group", "aria-label": "Runs" }, buttons);
  }

  #toolbar() {
    this.search = h("input", {
      type: "search",
      placeholder: "Find a metric",
      "aria-label": "Find a metric",
      value: this.query,
    });
    this.search.addEventListener("input", () => {
      this.query = this.search.value;
      this.#keep();
      this.#filter();
    });
    const value = h("output", {}, this.smoothing.toFixed(2));
    const slider = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", "aria-label": "Smoothing" });
    slider.value = this.smoothing;
    slider.addEventListener("input", () => {
      this.smoothing = Number(slider.value);
      replace(value, this.smoothing.toFixed(2));
      this.#redraw();
    });
    slider.addEventListener("change", () => this.#keep());
    const log = h("input", { type: "checkbox", checked: this.log });
    log.addEventListener("change", () => {
      this.log = log.checked;
      this.#keep();
      this.#redraw();
    });
    return h(
      "div",
      { class: "toolbar" },
      this.search,
      h("label", { class: "field" }, "Smoothing", slider, value),
      h("label", { class: "field" }, log, "Log scale"),
      h("span", { class: "note hide-narrow" }, "Drag to zoom, double-click to reset"),
    );
  }

  #params() {
    return {
      runs: this.runs.join(","),
      smooth: this.smoothing === 0.6 ? "" : this.smoothing,
      log: this.log ? "1" : "",
      q: this.query,
    };
  }

  #go(changes) {
    go("charts", { ...this.#params(), ...changes });
  }

  /** Keeps the settings in the URL without opening the page again. */
  #keep() {
    const query = new URLSearchParams(Object.entries(this.#params()).filter(([, value]) => value !== ""));
    history.replaceState(null, "", `#/charts?${query}`);
  }

  async #loadCatalogue() {
    const found = await Promise.all(this.runs.map((run) => get(runPath(run, "metrics"))));
    const metrics = new Map(found.flatMap(({ catalogue }) => catalogue.map((each) => [each.name, each])));
    if (metrics.size === this.cards.size) return;
    if (!metrics.size)
      return replace(this.body, emptyState("No metrics yet", "They appear with the first step of the run."));
    const groups = new Map();
    for (const metric of metrics.values()) {
      const name = metric.group ?? metric.name.split("/")[0];
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(metric);
    }
    const order = [...groups.keys()].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
    this.close();
    this.cards.clear();
    replace(
      this.body,
      order.map((name) => this.#group(name, groups.get(name))),
    );
    this.#filter();
  }

  #group(name, metrics) {
    const cards = metrics.sort((a, b) => a.name.localeCompare(b.name)).map((metric) => this.#card(metric));
    const title = h(
      "summary",
      { class: "group-title" },
      name,
      h("span", { class: "note" }, plural(metrics.length, "metric")),
    );
    return h("details", { class: "metric-group", open: true }, title, h("div", { class: "chart-grid" }, cards));
  }

  #card(metric) {
    const host = h("div", { class: "plot-wait" });
    const element = h(
      "section",
      { class: "card chart-card", "data-metric": metric.name, "aria-label": metric.name },
      h("h3", {}, metric.name, metric.unit && h("span", { class: "muted" }, `  ${metric.unit}`)),
      metric.help && h("p", { class: "help", title: metric.help }, metric.help),
      host,
    );
    const card = { metric, element, host, chart: null, visible: false };
    this.cards.set(metric.name, card);
    this.observer.observe(element);
    return element;
  }

  #filter() {
    const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { metric, element } of this.cards.values()) {
      const text = `${metric.name} ${metric.help ?? ""}`.toLowerCase();
      element.hidden = !words.every((word) => text.includes(word));
    }
    let shown = 0;
    for (const group of this.body.querySelectorAll(".metric-group")) {
      group.hidden = !group.querySelector(".chart-card:not([hidden])");
      if (!group.hidden) shown++;
    }
    this.none?.remove();
    this.none = shown ? null : emptyState("No metric matches", `"${this.query}" is in no name and no description.`);
    if (this.none) this.body.append(this.none);
  }

  #seen(entries) {
    for (const { target, isIntersecting } of entries) {
      const card = this.cards.get(target.dataset.metric);
      if (!card) continue;
      card.visible = isIntersecting;
      if (isIntersecting && !card.chart) this.#want(card);
    }
  }

  /** Asks for the values of charts in view, many in one request. */
  #want(card) {
    if (!this.wanted.size) setTimeout(() => this.#fetch(), 0);
    this.wanted.add(card.metric.name);
  }

  async #fetch() {
    const names = [...this.wanted];
    this.wanted.clear();
    for (let first = 0; first < names.length; first += MOST_NAMES) {
      const part = names.slice(first, first + MOST_NAMES);
      const found = await Promise.all(
        this.runs.map((run) => get(runPath(run, "metrics"), { names: part.join(",") }).catch(() => ({ series: {} }))),
      );
      for (const name of part) this.#draw(this.cards.get(name), found);
    }
  }

  #draw(card, found) {
    if (!card) return;
    const several = this.runs.length > 1;
    const series = found.flatMap(({ series }, place) => {
      const each = series[card.metric.name];
      const run = this.app.runs.find((one) => one.id === this.runs[place]);
      return each
        ? [
            {
              name: several ? (run.name ?? run.id) : card.metric.name,
              steps: each.step,
              values: each.value,
              style: place,
            },
          ]
        : [];
    });
    card.host.classList.remove("plot-wait");
    card.chart ??= new Chart(card.host, { label: card.metric.name, unit: card.metric.unit ?? "" });
    card.chart.set({ series, smoothing: this.smoothing, log: this.log });
  }

  #redraw() {
    for (const { chart } of this.cards.values()) chart?.set({ smoothing: this.smoothing, log: this.log });
  }
}

const FIRST = ["val", "critic", "actor", "response_length", "groups", "judge", "staleness", "perf", "timing_s"];

function rank(group) {
  const place = FIRST.indexOf(group);
  return place < 0 ? FIRST.length : place;
}
