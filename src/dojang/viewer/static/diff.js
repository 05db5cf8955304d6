// Differences of two texts, line by line.

import { h } from "./dom.js";

const MOST_LINES = 400;
const MOST_SHOWN = 200;
const CONTEXT = 3;

/** Returns [{kind: "same" | "expected" | "got", text}] of two lists of lines: a shortest edit (longest common subsequence). */
export function diffLines(expected, got) {
  let first = 0;
  while (first < expected.length && first < got.length && expected[first] === got[first]) first++;
  let [endA, endB] = [expected.length, got.length];
  while (endA > first && endB > first && expected[endA - 1] === got[endB - 1]) [endA, endB] = [endA - 1, endB - 1];
  const line = (kind) => (text) => ({ kind, text });
  return [
    ...expected.slice(0, first).map(line("same")),
    ...middle(expected.slice(first, endA), got.slice(first, endB)),
    ...expected.slice(endA).map(line("same")),
  ];
}

function middle(a, b) {
  const line = (kind) => (text) => ({ kind, text });
  if (a.length > MOST_LINES || b.length > MOST_LINES) return [...a.map(line("expected")), ...b.map(line("got"))];
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width); // of the common subsequence of what follows
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const longer = Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
      lengths[i * width + j] = a[i] === b[j] ? lengths[(i + 1) * width + j + 1] + 1 : longer;
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) found.push({ kind: "same", text: a[i++], j: j++ });
    else if (j >= b.length || (i < a.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]))
      found.push({ kind: "expected", text: a[i++] });
    else found.push({ kind: "got", text: b[j++] });
  }
  return found;
}

/** Returns both texts as one list of lines with signs; long equal parts are left out. */
export function diffView(expected, got) {
  const split = (text) =>
    text
      .replace(/\s+$/, "")
      .split("\n")
      .map((line) => line.trimEnd());
  const lines = folded(diffLines(split(expected), split(got)));
  const signs = { same: " ", expected: "−", got: "+", left: "⋯" };
  const names = { same: "", expected: "expected: ", got: "got: ", left: "" };
  const row = ({ kind, text }) =>
    h(
      "div",
      { class: `diff-${kind}` },
      h("span", { class: "diff-sign", "aria-hidden": "true" }, signs[kind]),
      h("span", { class: "sr" }, names[kind]),
      h("span", { class: "diff-text" }, text.length > 2000 ? `${text.slice(0, 2000)} …` : text),
    );
  const key = h("p", { class: "note" }, "− expected   + got   (spaces at the end of lines are not compared here)");
  const more = lines.length > MOST_SHOWN && h("p", { class: "note" }, `${lines.length - MOST_SHOWN} further lines`);
  return h("div", {}, h("div", { class: "diff text", dir: "ltr" }, lines.slice(0, MOST_SHOWN).map(row)), more, key);
}

function folded(lines) {
  const near = lines.map((_, at) =>
    lines.slice(Math.max(0, at - CONTEXT), at + CONTEXT + 1).some((each) => each.kind !== "same"),
  );
  const found = [];
  let skipped = 0;
  lines.forEach((line, at) => {
    if (near[at]) {
      if (skipped) found.push({ kind: "left", text: `${skipped} equal lines` });
      skipped = 0;
      found.push(line);
    } else skipped++;
  });
  if (skipped) found.push({ kind: "left", text: `${skipped} equal lines` });
  return found;
}
