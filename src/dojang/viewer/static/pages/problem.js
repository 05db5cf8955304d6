// One problem over training: a chart of its samples, and links to them.

import { get, runPath } from "../api.js";
import { Chart } from "../chart.js";
import { emptyState, h, replace, textBlock } from "../dom.js";
import { formatRoute } from "../router.js";
import { count, number, percent } from "../text.js";

/** Opens a problem. Parameters: run, id, kind. */
export async function problem(root, params, app) {
  const kind = params.kind ?? "train";
  const found = await get(runPath(params.run, "problem"), { id: params.id, kind });
  const shown = { run: params.run, kind: kind === "train" ? "" : kind };
  const back = formatRoute("problems", shown);
  const samples = h("a", { href: formatRoute("rollouts", { ...shown, problem: params.id }) }, "All its samples");
  const head = [
    h("a", { href: back }, "← Problems"),
    h("h1", {}, found.problem),
    h("span", { class: "grow" }),
    samples,
  ];
  const host = h("div", {});
  const chart = found.history.length > 1 && draw(host, found.history);
  const parts = [
    found.question && card("Question", textBlock(found.question, { label: "Question", lines: 30 })),
    chart && card("History", host),
    found.history.length
      ? table(params.run, params.id, found.history)
      : emptyState("No samples", "This problem has not been sampled."),
  ];
  replace(root, h("div", { class: "sample-head" }, head), h("div", { class: "stack" }, parts));
  return { title: found.problem, keys: { Escape: () => location.assign(back) }, close: () => chart && chart.destroy() };
}

function card(title, ...content) {
  return h("section", { class: "card section" }, h("h2", {}, title), content);
}

function draw(host, history) {
  const chart = new Chart(host, { label: "Accepted share and mean reward by step", height: 220 });
  const line = (name, kind, value) => {
    const rows = history.filter((each) => each.kind === kind);
    return { name, steps: rows.map((each) => each.step), values: rows.map(value) };
  };
  const kinds = [...new Set(history.map((each) => each.kind))];
  const series = kinds.flatMap((kind) => [
    line(`accepted, ${kind}`, kind, (each) => (each.samples ? each.accepted / each.samples : null)),
    line(`mean reward, ${kind}`, kind, (each) => each.mean_reward),
  ]);
  chart.set({ series });
  return chart;
}

function table(run, id, history) {
  const row = (each) => {
    const link = formatRoute("rollouts", {
      run,
      kind: each.kind === "train" ? "" : each.kind,
      step: each.step,
      problem: id,
    });
    return h(
      "tr",
      {},
      h("td", {}, h("a", { href: link }, `step ${count(each.step)}`)),
      h("td", {}, each.kind),
      cell(count(each.samples)),
      cell(`${count(each.accepted)}  (${percent(each.samples ? each.accepted / each.samples : null)})`),
      cell(number(each.mean_reward)),
      cell(`${number(each.min)} … ${number(each.max)}`),
    );
  };
  const head = h(
    "tr",
    {},
    h("th", {}, "Samples of"),
    h("th", {}, "Kind"),
    ["Samples", "Accepted", "Mean reward", "Range"].map((label) => h("th", { class: "num" }, label)),
  );
  return h(
    "div",
    { class: "card table-card always-scroll" },
    h(
      "div",
      { class: "table-scroll" },
      h("table", { "aria-label": "History" }, h("thead", {}, head), h("tbody", {}, [...history].reverse().map(row))),
    ),
  );
}

function cell(text) {
  return h("td", { class: "num" }, text);
}
