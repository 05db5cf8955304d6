// Filters of the table of samples. Every choice is a change of the URL.

import { h, replace } from "./dom.js";
import { count, visible } from "./text.js";

const WAIT_MS = 450;
const CHOICES = ["role", "turn", "finish", "data_source"];
const RARE = ["from_step", "to_step", "min_reward", "max_reward", "problem", ...CHOICES];

/** The filters. `change` is called with the parameters that changed. */
export class Filters {
  constructor(params, change) {
    this.params = params;
    this.change = change;
    this.search = this.#text("q", "Search responses, questions, problems");
    [this.kinds, this.step, this.clear, this.outcomes, this.rest] = Array.from({ length: 5 }, () =>
      h("div", { class: "filters" }),
    );
    this.summary = h("summary", {}, "More filters");
    this.more = h("details", { class: "more" }, this.summary, this.rest);
    this.element = h(
      "div",
      { class: "filters-box" },
      h("div", { class: "filters" }, this.kinds, this.search, this.step, this.clear),
      this.outcomes,
      this.more,
    );
  }

  /** Draws the filters with the values there are; the one with the focus keeps it. */
  draw(facets, params = this.params) {
    const active = this.element.contains(document.activeElement) ? document.activeElement : null;
    const typing =
      active?.matches("input[type=number], input[type=text]") && active.value !== params[active.dataset.key];
    if (typing && params === this.params) return; // new counts can wait
    this.params = params;
    if (active !== this.search) this.search.value = params.q;
    const kinds = Object.keys(facets.kinds ?? {});
    const last = facets.kinds?.[params.kind]?.[1];
    replace(this.kinds, kinds.length > 1 && this.#kinds(kinds));
    replace(this.step, this.#number("step", "Step", last));
    replace(this.clear, this.#clear());
    replace(this.outcomes, this.#outcomes(facets.outcome ?? {}));
    const used = RARE.filter((name) => params[name] !== "").length;
    replace(this.summary, used ? `More filters (${used})` : "More filters");
    if (used) this.more.open = true;
    replace(
      this.rest,
      this.#number("from_step", "Steps from"),
      this.#number("to_step", "to", last),
      this.#number("min_reward", "Reward from"),
      this.#number("max_reward", "to"),
      this.#problem(),
      CHOICES.map((name) => this.#choice(name, facets[name])),
    );
    if (active && active !== this.search)
      [...this.element.querySelectorAll("[data-key]")].find((each) => each.dataset.key === active.dataset.key)?.focus();
  }

  #kinds(kinds) {
    const name = (kind) =>
      kind === "train" ? "Training" : kind === "test" ? "Evaluation" : kind.replace(/^test-/, "");
    const sorted = kinds.sort((a, b) => (b === "train") - (a === "train") || a.localeCompare(b));
    const buttons = sorted.map((kind) =>
      h(
        "button",
        {
          type: "button",
          "data-key": `kind ${kind}`,
          "aria-pressed": String(kind === this.params.kind),
          on: { click: () => this.change({ kind, step: "", from_step: "", to_step: "", outcome: "" }) },
        },
        name(kind),
      ),
    );
    return h("div", { class: "segmented", role: "group", "aria-label": "Kind" }, buttons);
  }

  #outcomes(outcomes) {
    const chosen = new Set(this.params.outcome.split(",").filter(Boolean));
    const names = Object.keys(outcomes).sort((a, b) => outcomes[b] - outcomes[a]);
    for (const name of chosen) if (!names.includes(name)) names.push(name);
    const chips = names.map((name) => {
      const press = () => {
        if (!chosen.delete(name)) chosen.add(name);
        this.change({ outcome: [...chosen].join(",") });
      };
      return h(
        "button",
        {
          type: "button",
          class: "chip",
          "data-key": `outcome ${name}`,
          "aria-pressed": String(chosen.has(name)),
          on: { click: press },
        },
        name,
        h("span", { class: "muted" }, ` ${count(outcomes[name] ?? 0)}`),
      );
    });
    return h("div", { class: "chips", role: "group", "aria-label": "Outcomes" }, chips);
  }

  #choice(name, values) {
    const found = Object.keys(values ?? {});
    if (found.length < 2 && !this.params[name]) return null;
    if (this.params[name] && !found.includes(this.params[name])) found.push(this.params[name]);
    const label = { role: "Role", turn: "Turn", finish: "Finish", data_source: "Source" }[name];
    const select = h(
      "select",
      { "data-key": name },
      h("option", { value: "" }, "all"),
      found.map((value) =>
        h("option", { value, selected: value === this.params[name] }, `${value} (${count(values?.[value] ?? 0)})`),
      ),
    );
    select.addEventListener("change", () => this.change({ [name]: select.value }));
    return h("label", { class: "field" }, label, select);
  }

  #number(name, label, hint) {
    const input = h("input", {
      type: "number",
      "data-key": name,
      step: "any",
      value: this.params[name],
      placeholder: hint === undefined ? "" : String(hint),
    });
    input.addEventListener("change", () => this.change({ [name]: input.value }));
    return h("label", { class: "field" }, label, input);
  }

  #problem() {
    const input = h("input", {
      type: "text",
      "data-key": "problem",
      value: this.params.problem,
      placeholder: "exact id",
    });
    input.addEventListener("change", () => this.change({ problem: input.value }));
    return h("label", { class: "field" }, "Problem", input);
  }

  #text(name, label) {
    const input = h("input", {
      type: "search",
      class: "search",
      value: this.params[name],
      placeholder: label,
      "aria-label": label,
    });
    let timer = 0;
    const send = () => {
      clearTimeout(timer);
      if (input.value !== this.params[name]) this.change({ [name]: input.value });
    };
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(send, WAIT_MS);
    });
    input.addEventListener("change", send);
    return input;
  }

  #clear() {
    const names = Object.keys(this.params).filter(
      (name) => name !== "kind" && name !== "sort" && this.params[name] !== "",
    );
    if (!names.length) return null;
    const clear = () => this.change(Object.fromEntries(names.map((name) => [name, ""])));
    return h(
      "button",
      { type: "button", class: "quiet", title: visible(names.join(", ")), on: { click: clear } },
      "Clear filters",
    );
  }
}
