// One sample: conversation, tokens, verdict test by test, its group, and a second verdict on request.

import { get, runPath, url } from "../api.js";
import { emptyState, h, outcomeBadge, replace, textBlock } from "../dom.js";
import { groupView } from "../group.js";
import { JudgeAgain } from "../judge_again.js";
import { formatRoute, go, sampleParams } from "../router.js";
import { testsTable } from "../tests_table.js";
import { count, number, signed } from "../text.js";
import { TokenView } from "../tokens.js";

const PLACE = ["kind", "step", "prompt_index", "index", "role", "turn"];

/** Opens a sample. Parameters: run, kind, step, prompt_index, index, role, turn; at: its place in the list it was opened from. */
export async function rollout(root, params, app) {
  const place = Object.fromEntries(
    PLACE.map((name) => [name, params[name] ?? { kind: "train", turn: "0" }[name] ?? ""]),
  );
  const sample = await get(runPath(params.run, "rollout"), place);
  const list = new ListPosition(params, place);
  const tokens = sample.tokens?.length ? new TokenView(sample) : null;
  const judge = new JudgeAgain(params.run, place, sample);
  replace(
    root,
    header(params.run, sample, list, judge),
    h(
      "div",
      { class: "stack" },
      h(
        "div",
        { class: "sample-grid" },
        conversation(params.run, place, sample, tokens),
        verdict(params.run, sample, judge),
      ),
      groupView(params.run, sample),
    ),
  );
  const keys = {
    j: () => list.move(1),
    k: () => list.move(-1),
    Escape: () => location.assign(list.back()),
    t: () => tokens?.nextMode(),
  };
  return { title: `${sample.row.problem} #${sample.row.index}`, keys };
}

function header(run, { row }, list, judge) {
  const problem = h(
    "a",
    { href: formatRoute("problem", { run, id: row.problem, kind: row.kind === "train" ? "" : row.kind }) },
    row.problem,
  );
  const facts = [
    `step ${count(row.step)}`,
    `sample ${count(row.index)}`,
    row.role && row.role !== "policy" && row.role,
    row.turn > 0 && `turn ${row.turn}`,
  ]
    .filter(Boolean)
    .join("  ·  ");
  const move = (label, by, key) =>
    h("button", { type: "button", title: `${label} sample (${key})`, on: { click: () => list.move(by) } }, label);
  const moves = h(
    "div",
    { class: "segmented", role: "group", "aria-label": "Samples" },
    move("Previous", -1, "k"),
    move("Next", 1, "j"),
  );
  return h(
    "div",
    { class: "sample-head" },
    h("a", { href: list.back() }, "← Rollouts"),
    h("h1", {}, problem),
    h("span", { class: "muted" }, facts),
    outcomeBadge(row.outcome),
    h("span", { class: "grow" }),
    judge.button,
    moves,
  );
}

function conversation(run, place, sample, tokens) {
  const block = (column, options = {}) =>
    textBlock(sample[column], {
      label: column,
      total: sample.cut?.[column],
      download: url(runPath(run, "text"), { ...place, column }),
      ...options,
    });
  const question = h("section", { class: "card section" }, h("h2", {}, "Question"), block("question", { lines: 24 }));
  const prompt =
    sample.prompt &&
    h("details", { class: "card section" }, h("summary", {}, "Prompt as the model read it"), block("prompt"));
  return h("div", { class: "stack" }, question, prompt, response(sample, block, tokens), turns(run, sample));
}

function response(sample, block, tokens) {
  const { row, recorded = {} } = sample;
  const missing = [
    recorded.vocabulary === false && "the text of single tokens",
    recorded.token_values === false && "log-probs and entropies of the trainer",
  ].filter(Boolean);
  const note = missing.length > 0 && h("p", { class: "note" }, `Not recorded in this run: ${missing.join(", ")}.`);
  const named = tokens && recorded.vocabulary !== false;
  const length = `${count(row.response_length)} tokens${row.finish === "length" ? ", cut at the limit" : ""}`;
  const head = h("div", { class: "row" }, h("h2", {}, "Response"), h("span", { class: "muted" }, length));
  const whole = h("details", {}, h("summary", { class: "quiet" }, "As plain text"), block("response"));
  return h(
    "section",
    { class: "card section" },
    head,
    !named && block("response"),
    tokens?.element,
    named && whole,
    note,
  );
}

function turns(run, sample) {
  if (!sample.turns?.length) return null;
  const { row } = sample;
  const all = [...sample.turns, { ...row, response: null }].sort(
    (a, b) => a.turn - b.turn || String(a.role).localeCompare(b.role),
  );
  const parts = all.map((turn) => {
    const here = turn.response === null;
    const link = formatRoute("rollout", sampleParams(run, { ...row, role: turn.role, turn: turn.turn }));
    const title = h(
      "div",
      { class: "row" },
      h("b", {}, `${turn.role ?? "policy"}, turn ${turn.turn}`),
      outcomeBadge(turn.outcome),
      h("span", { class: "muted" }, `reward ${number(turn.reward)}`),
      here ? h("span", { class: "muted" }, "shown above") : h("a", { href: link }, "open"),
    );
    return h(
      "div",
      { class: `turn ${here ? "here" : ""}` },
      title,
      !here && textBlock(turn.response, { limit: 1500, lines: 20, label: `Turn ${turn.turn}` }),
    );
  });
  return h("section", { class: "card section" }, h("h2", {}, "Turns of this conversation"), parts);
}

function verdict(run, sample, judge) {
  const { row } = sample;
  const parts = Object.entries(sample.reward_parts ?? {});
  const pairs = [
    ["Outcome", outcomeBadge(row.outcome)],
    ["Reward", number(row.reward)],
    ...parts.map(([name, value]) => [`  ${name}`, number(value)]),
    ["Advantage", signed(row.advantage)],
    ["Weights", `version ${count(row.version)}`],
    ["Finish", row.finish],
    ["Source", row.data_source],
    sample.isolation && ["Isolation", sample.isolation],
  ].filter(Boolean);
  const list = h(
    "dl",
    { class: "pairs" },
    pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value ?? "–")]),
  );
  const detail = sample.detail && textBlock(sample.detail, { limit: 2000, lines: 20, label: "Detail of the verdict" });
  return h(
    "div",
    { class: "stack" },
    h("section", { class: "card section" }, h("h2", {}, "Verdict"), list, detail),
    judge.element,
    tests(run, sample),
  );
}

/** Returns a function that asks for the tests of the problem, once. */
function testLoader(run, { row }) {
  let asked = null;
  return () => {
    asked ??= get(runPath(run, "tests"), { kind: row.kind, problem: row.problem });
    asked.catch(() => (asked = null));
    return asked.then((found) => found.tests ?? []);
  };
}

function tests(run, sample) {
  const { row } = sample;
  if (sample.tests?.length) {
    const kept = row.total > sample.tests.length ? `, ${sample.tests.length} recorded` : "";
    const passed = h("span", { class: "muted" }, `${count(row.passed)} of ${count(row.total)} passed${kept}`);
    return h(
      "section",
      { class: "card section" },
      h("div", { class: "row" }, h("h2", {}, "Tests"), passed),
      testsTable(sample.tests, testLoader(run, sample)),
    );
  }
  if (!(row.total > 1)) return null;
  const empty = emptyState(
    `${row.passed} of ${row.total} tests passed`,
    "Results of single tests were not recorded (track.test_results).",
  );
  return h("section", { class: "card section" }, h("h2", {}, "Tests"), empty);
}

/** The place of a sample in the table it was opened from; without one, among the samples of its step. */
class ListPosition {
  constructor(params, place) {
    this.run = params.run;
    this.place = place;
    this.at = params.at === undefined ? null : Number(params.at);
    const list = JSON.parse(sessionStorage.getItem("dojang-list") ?? "null");
    this.params = this.at !== null && list?.run === this.run && list.params.kind === place.kind ? list.params : null;
  }

  back() {
    const offset = this.at === null ? 0 : Math.floor(this.at / 100) * 100;
    const params = this.params ?? { kind: this.place.kind, step: this.place.step };
    return formatRoute("rollouts", {
      run: this.run,
      ...params,
      offset: offset || "",
      kind: params.kind === "train" ? "" : params.kind,
    });
  }

  async move(by) {
    if (!this.params) await this.#find();
    const at = (this.at ?? 0) + by;
    if (at < 0) return;
    const before = this.at;
    this.at = at; // for a key that is pressed again before the next sample is there
    const { rows } = await get(runPath(this.run, "rollouts"), { ...this.params, offset: at, limit: 1 });
    if (!rows.length) this.at = before;
    else if (this.at === at) go("rollout", { ...sampleParams(this.run, rows[0]), at });
  }

  async #find() {
    const params = { kind: this.place.kind, step: this.place.step };
    const { rows } = await get(runPath(this.run, "rollouts"), { ...params, limit: 1000 });
    this.at = Math.max(
      0,
      rows.findIndex((row) => PLACE.every((name) => String(row[name]) === String(this.place[name]))),
    );
    this.params = params;
    sessionStorage.setItem("dojang-list", JSON.stringify({ run: this.run, params }));
  }
}
