// Settings of a run, what was overridden, its environment, and what differs from another run.

import { get, runPath } from "../api.js";
import { emptyState, errorState, h, replace } from "../dom.js";
import { go } from "../router.js";
import { plural } from "../text.js";

/** Opens the configuration. Parameters: run, with: another run to compare with. */
export async function config(root, params, app) {
  const found = await get(runPath(params.run, "config"));
  const search = h("input", {
    type: "search",
    class: "search",
    placeholder: "Find a setting",
    "aria-label": "Find a setting",
  });
  const settings = h("div", {});
  const draw = () => replace(settings, settingsTable(flatten(found.config), overridden(found.run), search.value));
  search.addEventListener("input", draw);
  draw();
  const difference = h("div", {});
  const others = app.runs.filter((run) => run.id !== params.run);
  replace(
    root,
    h("div", { class: "page-head" }, h("h1", {}, "Configuration")),
    h(
      "div",
      { class: "stack" },
      others.length > 0 && compareCard(params, others, difference),
      runCard(found.run),
      h("section", { class: "card section" }, h("div", { class: "row" }, h("h2", {}, "Settings"), search), settings),
      environmentCard(found.environment),
    ),
  );
  if (params.with) await compare(difference, params.run, params.with, app);
  return { title: "Configuration", keys: { "/": () => search.focus() } };
}

function compareCard(params, others, difference) {
  const select = h(
    "select",
    {},
    h("option", { value: "" }, "choose a run"),
    others.map((run) => h("option", { value: run.id, selected: run.id === params.with }, run.name ?? run.id)),
  );
  select.addEventListener("change", () => go("config", { run: params.run, with: select.value }));
  return h(
    "section",
    { class: "card section" },
    h("div", { class: "row" }, h("h2", {}, "Differences"), h("label", { class: "field" }, "from", select)),
    difference,
  );
}

async function compare(host, a, b, app) {
  try {
    const { differences, same } = await get("compare", { a, b });
    const name = (id) => app.runs.find((run) => run.id === id)?.name ?? id;
    const row = (each) => h("tr", {}, h("td", {}, each.key), h("td", {}, text(each.a)), h("td", {}, text(each.b)));
    const head = h("tr", {}, h("th", {}, "Setting"), h("th", {}, name(a)), h("th", {}, name(b)));
    const table = differences.length
      ? h(
          "div",
          { class: "scroll-x" },
          h(
            "table",
            { class: "settings", "aria-label": "Differences" },
            h("thead", {}, head),
            h("tbody", {}, differences.map(row)),
          ),
        )
      : emptyState("No differences", "Both runs have the same settings.");
    replace(host, table, h("p", { class: "note" }, `${plural(same, "setting")} the same`));
  } catch (error) {
    replace(host, errorState(error));
  }
}

function runCard(run) {
  const rows = Object.entries(run ?? {}).map(([name, value]) =>
    h(
      "tr",
      {},
      h("td", {}, name),
      h("td", {}, Array.isArray(value) ? value.map(text).join("  ") || "none" : text(value)),
    ),
  );
  return (
    rows.length > 0 &&
    h(
      "section",
      { class: "card section" },
      h("h2", {}, "Start"),
      h("table", { class: "settings" }, h("tbody", {}, rows)),
    )
  );
}

function settingsTable(pairs, changed, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = pairs.filter(([key, value]) =>
    words.every((word) => `${key} ${text(value)}`.toLowerCase().includes(word)),
  );
  if (!shown.length) return emptyState("No setting matches", "Search looks at names and values.");
  const row = ([key, value]) =>
    h(
      "tr",
      {},
      h("td", {}, key),
      h(
        "td",
        { class: changed.has(key) && "changed", title: changed.has(key) && "given on the command line" },
        text(value),
      ),
    );
  return h("table", { class: "settings", "aria-label": "Settings" }, h("tbody", {}, shown.map(row)));
}

function environmentCard(environment) {
  if (!environment)
    return h(
      "section",
      { class: "card section" },
      h("h2", {}, "Environment"),
      h("p", { class: "note" }, "Not recorded in this run."),
    );
  const rows = flatten(environment).map(([key, value]) => h("tr", {}, h("td", {}, key), h("td", {}, text(value))));
  return h(
    "section",
    { class: "card section" },
    h("h2", {}, "Environment"),
    h("table", { class: "settings", "aria-label": "Environment" }, h("tbody", {}, rows)),
  );
}

/** Returns [["train.lr", 0.001], ...] of nested settings; lists of objects are nested, too. */
export function flatten(value, prefix = "") {
  const nested = Array.isArray(value) ? value.some((each) => each !== null && typeof each === "object") : true;
  if (value === null || typeof value !== "object" || !nested || !Object.keys(value).length) return [[prefix, value]];
  return Object.entries(value).flatMap(([key, each]) => flatten(each, prefix ? `${prefix}.${key}` : key));
}

function overridden(run) {
  const given = Object.values(run ?? {})
    .flat(2)
    .filter((each) => typeof each === "string" && each.includes("="));
  return new Set(given.map((each) => each.split("=")[0].replace(/^\+/, "")));
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
