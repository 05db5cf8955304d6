// The diagnosis of `dojang explain` as elements.

import { append, h } from "./dom.js";

/** Returns the verdict, the facts and the findings of a run. */
export function diagnosisView(found, { open = false } = {}) {
  const box = h("div", { class: "stack diagnosis" });
  const { verdict, findings } = found;
  const facts = h(
    "ul",
    { class: "facts" },
    (verdict.facts ?? []).map((each) => h("li", {}, each)),
  );
  box.append(h("div", {}, h("p", { class: "verdict" }, headline(verdict)), facts));
  append(
    box,
    findings.map((each, place) => findingView(each, open && place === 0)),
  );
  return box;
}

/** Returns the headline; its first words, the verdict itself, are a badge. */
function headline({ learning, headline: text }) {
  const kind = { better: "good", "solved before training": "good", worse: "bad", "not better": "bad" }[learning] ?? "";
  const end = text.indexOf(": ");
  if (end < 0 || end > 60) return text;
  return [h("span", { class: `badge ${kind}` }, text.slice(0, end)), " ", text.slice(end + 2)];
}

function findingView(finding, open) {
  const list = (title, items) =>
    items?.length > 0 && [
      h("h4", {}, title),
      h(
        "ul",
        {},
        items.map((each) => h("li", {}, each)),
      ),
    ];
  return h(
    "details",
    { class: `finding ${finding.severity}`, open },
    h("summary", {}, h("span", { class: "kind" }, finding.severity), finding.title),
    list("evidence", finding.evidence),
    list("change", finding.advice),
    list(
      "samples",
      finding.examples?.map((each) => `${each.id} [${each.remark}]: ${each.text}`),
    ),
  );
}
