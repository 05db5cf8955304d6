// The samples of a group side by side.

import { h, outcomeBadge, textBlock } from "./dom.js";
import { formatRoute, sampleParams } from "./router.js";
import { count, number, plural, signed } from "./text.js";

/** Returns the group of a sample, in the order of their indices; the sample itself is marked. */
export function groupView(run, sample) {
  const group = sample.group ?? [];
  if (group.length < 2) return null;
  const most = Math.max(1e-9, ...group.map((each) => Math.abs(each.advantage ?? 0)));
  const accepted = group.filter((each) => each.outcome === "accepted").length;
  const summary = h(
    "span",
    { class: "muted" },
    `${plural(group.length, "sample")} of the same prompt, ${count(accepted)} accepted`,
  );
  const members = [...group]
    .sort((a, b) => a.index - b.index || a.turn - b.turn)
    .map((each) => member(run, sample.row, each, most));
  return h(
    "section",
    { class: "card section" },
    h("div", { class: "row" }, h("h2", {}, "Group"), summary),
    h("div", { class: "group-strip", tabindex: "0", "aria-label": "Samples of the group" }, members),
  );
}

function member(run, row, each, most) {
  const here = each.index === row.index && each.turn === row.turn && each.role === row.role;
  const link = formatRoute(
    "rollout",
    sampleParams(run, { ...row, index: each.index, role: each.role, turn: each.turn }),
  );
  const name = `#${each.index}${each.turn > 0 ? ` turn ${each.turn}` : ""}`;
  const title = h(
    "div",
    { class: "row" },
    here ? h("b", {}, name) : h("a", { href: link }, name),
    outcomeBadge(each.outcome),
  );
  const facts = h(
    "div",
    { class: "note" },
    `reward ${number(each.reward)}, advantage ${signed(each.advantage)}, ${count(each.response_length)} tokens`,
  );
  return h(
    "article",
    { class: `member ${here ? "here" : ""}`, "aria-current": here && "true" },
    title,
    advantageBar(each.advantage ?? 0, most),
    facts,
    textBlock(each.response, { limit: 1200, lines: 40, label: `Response ${name}` }),
  );
}

function advantageBar(value, most) {
  const width = (share) => ({ style: { width: `${Math.min(100, 100 * Math.max(0, share))}%` } });
  return h(
    "div",
    { class: "advantage-bar", "aria-hidden": "true" },
    h("span", {}, h("i", width(-value / most))),
    h("span", {}, h("i", width(value / most))),
  );
}
