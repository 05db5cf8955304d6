// The problems of a run: how often each was sampled and solved.

import { get, runPath } from "../api.js";
import { emptyState, h, replace } from "../dom.js";
import { formatRoute, go } from "../router.js";
import { Table } from "../table.js";
import { count, number, percent } from "../text.js";

const LIMIT = 100;
const WAIT_MS = 350;

/** Opens the table. Parameters: run, kind, q, sort, offset. */
export async function problems(root, params, app) {
  const page = new ProblemsPage(root, params);
  await page.open();
  return {
    title: "Problems",
    keys: { ...page.table.keys(), "/": () => page.search.focus() },
    update: ({ changed, before, now }) => {
      const new_rows =
        changed.includes(page.run) && before[page.run]?.rollouts_version !== now[page.run].rollouts_version;
      if (new_rows) page.load().catch(() => {});
    },
    navigate: (next) => page.navigate(next),
    close: () => page.abort.abort(),
  };
}

class ProblemsPage {
  constructor(root, params) {
    Object.assign(this, { root, run: params.run, abort: new AbortController() });
    this.#take(params);
  }

  #take({ kind = "train", q = "", sort = "", offset = 0 }) {
    this.params = { kind, q, sort };
    this.offset = Math.max(0, Number(offset) || 0);
  }

  async open() {
    this.status = h("span", { class: "muted", role: "status" });
    this.search = h("input", {
      type: "search",
      class: "search",
      placeholder: "Find a problem",
      "aria-label": "Find a problem",
      value: this.params.q,
    });
    let timer = 0;
    this.search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#go({ q: this.search.value, offset: "" }), WAIT_MS);
    });
    const link = (row) =>
      formatRoute("problem", {
        run: this.run,
        id: row.problem,
        kind: this.params.kind === "train" ? "" : this.params.kind,
      });
    this.table = new Table({
      columns: columns(),
      label: "Problems",
      limit: LIMIT,
      link,
      onSort: (sort) => this.#go({ sort, offset: "" }),
      onPage: (offset) => this.#go({ offset }),
    });
    this.kinds = h("div", {});
    const [facets] = await Promise.all([get(runPath(this.run, "facets"), { kind: this.params.kind }), this.load()]);
    this.all = Object.keys(facets.kinds ?? {});
    this.#drawKinds();
    replace(
      this.root,
      h("div", { class: "page-head" }, h("h1", {}, "Problems"), this.status),
      h("div", { class: "stack" }, h("div", { class: "filters" }, this.kinds, this.search), this.table.element),
    );
  }

  async navigate(params) {
    this.abort.abort();
    this.abort = new AbortController();
    this.#take(params);
    this.#drawKinds();
    this.table.wait();
    await this.load().catch((error) => {
      if (error.name !== "AbortError") throw error;
    });
  }

  async load() {
    const { rows, total } = await get(
      runPath(this.run, "problems"),
      { ...this.params, offset: this.offset, limit: LIMIT },
      { signal: this.abort.signal },
    );
    replace(this.status, `${count(total)} problems`);
    const empty = this.params.q
      ? emptyState("No problem matches", "Search looks at the ids of problems.")
      : emptyState("No problems yet", "They appear with the first samples.");
    this.table.show({ rows, total, offset: this.offset, sort: this.params.sort, empty });
  }

  #drawKinds() {
    if (this.all.length < 2) return;
    const name = (kind) =>
      kind === "train" ? "Training" : kind === "test" ? "Evaluation" : kind.replace(/^test-/, "");
    const sorted = this.all.sort((a, b) => (b === "train") - (a === "train") || a.localeCompare(b));
    const buttons = sorted.map((kind) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(kind === this.params.kind),
          on: { click: () => this.#go({ kind, offset: "" }) },
        },
        name(kind),
      ),
    );
    replace(this.kinds, h("div", { class: "segmented", role: "group", "aria-label": "Kind" }, buttons));
  }

  #go(changes) {
    const next = { run: this.run, ...this.params, offset: this.offset || "", ...changes };
    go("problems", { ...next, kind: next.kind === "train" ? "" : next.kind });
  }
}

function columns() {
  const share = (row) => (row.samples ? row.accepted / row.samples : null);
  return [
    { label: "Problem", sort: "problem", class: "id wide", cell: (row) => row.problem },
    { label: "Source", class: "hide-narrow", cell: (row) => row.data_source ?? "–" },
    { label: "Samples", sort: "samples", class: "num", cell: (row) => count(row.samples) },
    {
      label: "Accepted",
      sort: "accepted",
      class: "num",
      cell: (row) => `${count(row.accepted)}  (${percent(share(row))})`,
    },
    { label: "", class: "share", cell: (row) => shareBar(share(row)) },
    { label: "Mean reward", sort: "mean_reward", class: "num", cell: (row) => number(row.mean_reward) },
    { label: "First step", sort: "first_step", class: "num", cell: (row) => count(row.first_step) },
    { label: "Last step", sort: "last_step", class: "num", cell: (row) => count(row.last_step) },
    {
      label: "First solved",
      sort: "first_accepted_step",
      class: "num",
      cell: (row) => (row.first_accepted_step === null ? "never" : `step ${count(row.first_accepted_step)}`),
    },
  ];
}

function shareBar(share) {
  return h(
    "span",
    { class: "share-bar", "aria-hidden": "true" },
    h("span", { style: { width: `${100 * (share ?? 0)}%` } }),
  );
}
