// The table of samples with filters, search and sorting.

import { get, runPath } from "../api.js";
import { emptyState, h, outcomeBadge, replace } from "../dom.js";
import { Filters } from "../filters.js";
import { formatRoute, go, sampleParams } from "../router.js";
import { Table } from "../table.js";
import { count, number, signed } from "../text.js";

const LIMIT = 100;
const SEARCH_MS = 700;
const NAMES = [
  "kind",
  "step",
  "from_step",
  "to_step",
  "outcome",
  "problem",
  "role",
  "finish",
  "data_source",
  "turn",
  "min_reward",
  "max_reward",
  "q",
  "sort",
];

/** Opens the table. Parameters: those of the API, and offset. */
export async function rollouts(root, params, app) {
  const page = new RolloutsPage(root, params, app);
  await page.open();
  return {
    title: "Rollouts",
    keys: { ...page.table.keys(), "/": () => page.filters.search.focus() },
    update: (news) => page.update(news),
    navigate: (params) => page.navigate(params),
    close: () => page.close(),
  };
}

class RolloutsPage {
  constructor(root, params, app) {
    Object.assign(this, { root, app, run: params.run });
    this.abort = new AbortController();
    this.#take(params);
  }

  #take(params) {
    this.offset = Math.max(0, Number(params.offset) || 0);
    this.params = Object.fromEntries(NAMES.map((name) => [name, params[name] ?? ""]));
    this.params.kind ||= "train";
    this.params.sort ||= "-step";
  }

  async open() {
    this.status = h("p", { class: "note", role: "status" });
    this.filters = new Filters(this.params, (changes) => this.#go({ ...changes, offset: "" }));
    this.table = new Table({
      columns: columns(),
      label: "Rollouts",
      limit: LIMIT,
      link: (row, place) => this.#link(row, place),
      onSort: (sort) => this.#go({ sort, offset: "" }),
      onPage: (offset) => this.#go({ offset }),
    });
    const [facets] = await Promise.all([this.#facets(), this.#load()]);
    this.filters.draw(facets);
    replace(
      this.root,
      h("div", { class: "page-head" }, h("h1", {}, "Rollouts"), this.status),
      h("div", { class: "stack" }, this.filters.element, this.table.element),
    );
  }

  /** Shows other parameters of the same run; the search field keeps the focus. */
  async navigate(params) {
    this.abort.abort();
    this.abort = new AbortController();
    this.#take(params);
    this.table.wait();
    await this.#refresh();
  }

  async #refresh() {
    try {
      const [facets] = await Promise.all([this.#facets(), this.#load()]);
      this.filters.draw(facets, this.params);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }

  close() {
    this.abort.abort();
    clearTimeout(this.timer);
  }

  async update({ changed, before, now }) {
    if (!changed.includes(this.run)) return;
    const [then, latest] = [before[this.run], now[this.run]];
    if (then?.rollouts_version === latest.rollouts_version && then?.indexed_files === latest.indexed_files) return;
    await this.#refresh();
  }

  #facets() {
    return get(
      runPath(this.run, "facets"),
      { kind: this.params.kind, step: this.params.step },
      { signal: this.abort.signal },
    );
  }

  async #load() {
    const query = { ...this.params, offset: this.offset, limit: LIMIT };
    const found = await get(runPath(this.run, "rollouts"), query, { signal: this.abort.signal });
    this.#say(found);
    this.table.show({
      rows: found.rows,
      total: found.total,
      offset: this.offset,
      sort: this.params.sort,
      empty: this.#empty(found),
    });
    sessionStorage.setItem("dojang-list", JSON.stringify({ run: this.run, params: this.params, total: found.total }));
    clearTimeout(this.timer);
    if (found.search && !found.search.done) this.timer = setTimeout(() => this.#load().catch(() => {}), SEARCH_MS);
  }

  #say({ total, indexed, search }) {
    const parts = [`${count(total)} samples`];
    if (indexed && indexed.files < indexed.of)
      parts.push(`indexing: ${count(indexed.files)} of ${count(indexed.of)} files`);
    if (search && !search.done)
      parts.push(`searching: ${count(search.files)} of ${count(search.of)} files, ${count(search.found)} found`);
    replace(this.status, parts.join("  ·  "));
  }

  #empty({ search, indexed }) {
    if (search && !search.done) return emptyState("Searching …", "Matches appear here as they are found.");
    if (indexed && indexed.files < indexed.of)
      return emptyState("Indexing …", "Samples appear here as their files are read.");
    const filtered = NAMES.some((name) => this.params[name] && name !== "kind" && name !== "sort");
    if (!filtered)
      return emptyState("No samples yet", "They appear with the first step, unless rollouts are switched off.");
    return emptyState(
      "No sample matches",
      h("a", { href: formatRoute("rollouts", { run: this.run, kind: this.params.kind }) }, "Clear all filters"),
    );
  }

  #go(changes) {
    this.table.wait();
    const kind = changes.kind ?? this.params.kind;
    go("rollouts", {
      run: this.run,
      ...this.params,
      offset: this.offset || "",
      ...changes,
      kind: kind === "train" ? "" : kind,
    });
  }

  #link(row, place) {
    return formatRoute("rollout", { ...sampleParams(this.run, row), at: this.offset + place });
  }
}

function columns() {
  return [
    { label: "Problem", sort: "problem", class: "id", cell: (row) => row.problem },
    { label: "Step", sort: "step", class: "num", cell: (row) => count(row.step) },
    { label: "#", class: "num", cell: (row) => [count(row.index), row.turn > 0 && ` · turn ${row.turn}`] },
    {
      label: "Outcome",
      sort: "outcome",
      cell: (row) => [outcomeBadge(row.outcome), row.role && row.role !== "policy" && ` ${row.role}`],
    },
    {
      label: "Tests",
      sort: "passed",
      class: "num",
      cell: (row) => (row.total > 0 ? `${row.passed}/${row.total}` : "–"),
    },
    { label: "Reward", sort: "reward", class: "num", cell: (row) => number(row.reward) },
    { label: "Advantage", sort: "advantage", class: "num", cell: (row) => signed(row.advantage) },
    {
      label: "Tokens",
      sort: "response_length",
      class: "num",
      cell: (row) => [
        count(row.response_length),
        row.finish === "length" && h("span", { title: "cut at the limit of tokens" }, " ✂"),
      ],
    },
    { label: "Version", sort: "version", class: "num", cell: (row) => count(row.version) },
    { label: "Response", class: "snippet", cell: (row) => (row.snippet ?? "").replace(/\n/g, " ⏎ ") },
  ];
}
