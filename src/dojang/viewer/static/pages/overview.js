// All runs: what they achieved, key figures, small charts.

import { get, runPath } from "../api.js";
import { Chart } from "../chart.js";
import { errorState, h, loading, replace } from "../dom.js";
import { diagnosisView } from "../findings.js";
import { formatRoute } from "../router.js";
import { number, withUnit } from "../text.js";

const METRICS = [
  ["val/accuracy", "Held-out accuracy"],
  ["critic/rewards/mean", "Reward"],
  ["actor/loss", "Loss"],
  ["actor/entropy", "Entropy"],
  ["response_length/mean", "Response length"],
];
const EXPLAIN_EVERY_MS = 15_000;

/** Opens the overview. */
export async function overview(root, params, app) {
  const cards = app.runs.map((run) => new RunCard(run, app));
  const title = h(
    "div",
    { class: "page-head" },
    h("h1", {}, app.runs.length === 1 ? "Run" : `${app.runs.length} runs`),
  );
  const compare =
    app.runs.length > 1 &&
    h(
      "a",
      {
        href: formatRoute("charts", {
          runs: app.runs
            .slice(0, 6)
            .map((run) => run.id)
            .join(","),
        }),
      },
      "Compare in charts",
    );
  if (compare) title.append(compare);
  replace(
    root,
    title,
    h(
      "div",
      { class: "stack" },
      cards.map((card) => card.element),
    ),
  );
  cards.forEach((card) => card.load());
  return {
    title: "Overview",
    update: ({ changed }) => cards.filter((card) => changed.includes(card.run.id)).forEach((card) => card.load()),
    close: () => cards.forEach((card) => card.close()),
  };
}

class RunCard {
  constructor(run, app) {
    this.run = run;
    this.app = app;
    this.head = h("div", {});
    this.diagnosis = h("div", {}, loading("the diagnosis"));
    this.plots = h("div", { class: "mini-charts" });
    this.charts = new Map();
    this.explained = 0;
    this.element = h(
      "article",
      { class: "card run-card", "aria-label": run.name ?? run.id },
      this.head,
      this.diagnosis,
      this.plots,
    );
  }

  close() {
    for (const { chart } of this.charts.values()) chart.destroy();
  }

  async load() {
    this.run = this.app.runs.find((each) => each.id === this.run.id) ?? this.run;
    this.#drawHead();
    await Promise.all([this.#loadMetrics(), this.#loadDiagnosis()]);
  }

  #drawHead() {
    const state = this.app.poller.runs?.[this.run.id] ?? {};
    const status = state.status ?? this.run.status;
    const [step, total] = [state.step ?? this.run.steps, this.run.total_steps];
    const link = h("a", { href: formatRoute("rollouts", { run: this.run.id }) }, this.run.name ?? this.run.id);
    const share = total ? Math.min(1, step / total) : 0;
    const bar =
      status === "running" &&
      total &&
      h(
        "div",
        { class: "progress", role: "progressbar", "aria-valuenow": Math.round(100 * share), "aria-label": "Steps" },
        h("span", { style: { width: `${100 * share}%` } }),
      );
    const sub = h(
      "p",
      { class: "note" },
      [
        this.run.recipe && `recipe ${this.run.recipe}`,
        total ? `step ${number(step)} of ${number(total)}` : `step ${number(step)}`,
        this.run.path,
      ]
        .filter(Boolean)
        .join("  ·  "),
    );
    const notes = (this.run.notes ?? []).map((each) => h("p", { class: "note" }, each));
    replace(this.head, h("div", { class: "run-title" }, h("h2", {}, link), statusBadge(status)), sub, notes, bar);
  }

  async #loadDiagnosis() {
    const running = (this.app.poller.runs?.[this.run.id]?.status ?? this.run.status) === "running";
    if (running && Date.now() - this.explained < EXPLAIN_EVERY_MS) return;
    this.explained = Date.now();
    try {
      const open = [...this.diagnosis.querySelectorAll("details[open] > summary")].map((each) => each.textContent);
      replace(this.diagnosis, diagnosisView(await get(runPath(this.run.id, "explain"))));
      for (const each of this.diagnosis.querySelectorAll("summary"))
        each.parentElement.open = open.includes(each.textContent);
    } catch (error) {
      replace(this.diagnosis, errorState(error));
    }
  }

  async #loadMetrics() {
    try {
      const found = await get(runPath(this.run.id, "metrics"), { names: METRICS.map(([name]) => name).join(",") });
      const units = Object.fromEntries(found.catalogue.map((each) => [each.name, each.unit]));
      const there = METRICS.filter(([name]) => found.series[name]?.value.some((value) => value !== null));
      // The loss says little where there is a reward.
      const shown = there.filter(
        ([name]) => name !== "actor/loss" || !there.some(([other]) => other === "critic/rewards/mean"),
      );
      for (const [name, label] of shown) this.#drawChart(name, label, found.series[name], units[name] ?? "");
      if (!shown.length) replace(this.plots, h("p", { class: "note" }, "No metrics yet."));
    } catch (error) {
      replace(this.plots, errorState(error));
    }
  }

  #drawChart(name, label, series, unit) {
    const shownUnit = name === "val/accuracy" ? "share" : unit;
    if (!this.charts.size) replace(this.plots);
    if (!this.charts.has(name)) {
      const [host, last] = [h("div", {}), h("b", {})];
      const chart = new Chart(host, {
        label: `${label} of ${this.run.name ?? this.run.id}`,
        unit: shownUnit,
        height: 84,
        compact: true,
        legend: false,
      });
      this.charts.set(name, { chart, last });
      this.plots.append(h("div", {}, h("div", { class: "mini-head" }, h("span", {}, label), last), host));
    }
    const { chart, last } = this.charts.get(name);
    chart.set({ series: [{ name: label, steps: series.step, values: series.value }], smoothing: 0.6 });
    const values = series.value.filter((each) => each !== null);
    const first = shownUnit === "share" ? withUnit(values[0], shownUnit) : number(values[0]);
    const then = values.length > 1 && h("span", { class: "then" }, `${first} → `);
    replace(last, then, withUnit(values.at(-1), shownUnit));
  }
}

/** Returns the badge of a run's status. */
export function statusBadge(status) {
  const kind = { running: "live", finished: "good", interrupted: "odd", failed: "bad" }[status] ?? "";
  return h("span", { class: `badge ${kind}` }, status ?? "unknown");
}
