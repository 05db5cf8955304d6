// Grades a recorded response again, and shows the verdict beside the recorded one.

import { post, runPath } from "./api.js";
import { errorState, h, outcomeBadge, replace } from "./dom.js";
import { testsTable } from "./tests_table.js";
import { number, seconds } from "./text.js";

/** The button and the place of its result. */
export class JudgeAgain {
  constructor(run, place, sample) {
    Object.assign(this, { run, place, sample });
    this.button = h("button", { type: "button", class: "button", on: { click: () => this.ask() } }, "Judge again");
    this.element = h("div", { "aria-live": "polite" });
  }

  async ask() {
    this.button.disabled = true;
    replace(this.button, "Judging …");
    try {
      const numbers = {
        step: Number(this.place.step),
        prompt_index: Number(this.place.prompt_index),
        index: Number(this.place.index),
        turn: Number(this.place.turn),
      };
      replace(this.element, this.#result(await post(runPath(this.run, "judge"), { ...this.place, ...numbers })));
    } catch (error) {
      replace(this.element, errorState(error));
    }
    this.button.disabled = false;
    replace(this.button, "Judge again");
  }

  #result(now) {
    const { row, reward_parts: parts = {} } = this.sample;
    const names = [...new Set([...Object.keys(parts), ...Object.keys(now.reward_parts ?? {})])];
    const line = (label, then, later) =>
      h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, then), h("td", {}, later));
    const passed = (tests) =>
      tests?.length ? `${tests.filter((each) => each.outcome === "accepted").length} of ${tests.length}` : "–";
    const table = h(
      "table",
      { "aria-label": "Recorded verdict and verdict now" },
      h("thead", {}, h("tr", {}, h("th", {}), h("th", { scope: "col" }, "Recorded"), h("th", { scope: "col" }, "Now"))),
      h(
        "tbody",
        {},
        line("Outcome", outcomeBadge(row.outcome), outcomeBadge(now.outcome)),
        line("Reward", number(row.reward), number(now.reward)),
        names.map((name) => line(name, number(parts[name]), number(now.reward_parts?.[name]))),
        (now.tests?.length > 0 || row.total > 0) &&
          line("Tests passed", row.total > 0 ? `${row.passed} of ${row.total}` : "–", passed(now.tests)),
        line("Detail", this.sample.detail ?? "–", now.detail ?? "–"),
      ),
    );
    const same = h(
      "span",
      { class: `badge ${now.same ? "good" : "bad"}` },
      now.same ? "same verdict" : "another verdict",
    );
    const head = h(
      "div",
      { class: "row" },
      h("h2", {}, "Judged again"),
      same,
      h("span", { class: "muted" }, seconds(now.seconds)),
    );
    return h(
      "section",
      { class: "card section judged" },
      head,
      h("div", { class: "scroll-x" }, table),
      now.tests?.length > 0 && testsTable(now.tests),
    );
  }
}
