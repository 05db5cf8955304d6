// Results of a program's tests: outcome, time and memory of each; input, expected and got with their differences.

import { diffView } from "./diff.js";
import { errorState, h, outcomeBadge, replace, textBlock } from "./dom.js";
import { number, plural, seconds } from "./text.js";

const MOST = 100;

/** Returns the table of the tests of a sample. `load` fetches inputs and expected outputs by test; null without them. */
export function testsTable(tests, load = null) {
  const body = h("tbody", {});
  const head = h(
    "tr",
    {},
    ["Test", "Outcome"].map(heading),
    ["CPU", "Wall", "Memory"].map((label) => heading(label, "num")),
  );
  const add = (part) =>
    part.forEach((test, place) => body.append(...testRows(test, place === 0 && test.outcome !== "accepted", load)));
  const failed = tests.filter((test) => test.outcome !== "accepted");
  const ordered = [...failed, ...tests.filter((test) => test.outcome === "accepted")];
  add(ordered.slice(0, MOST));
  const box = h(
    "div",
    { class: "scroll-x" },
    h("table", { class: "tests", "aria-label": "Tests" }, h("thead", {}, head), body),
  );
  if (ordered.length > MOST) {
    const more = h(
      "button",
      { type: "button", class: "quiet" },
      `Show ${plural(ordered.length - MOST, "further test")}`,
    );
    more.addEventListener("click", () => {
      add(ordered.slice(MOST));
      more.remove();
    });
    box.append(more);
  }
  return box;
}

function heading(label, kind) {
  return h("th", { scope: "col", class: kind === "num" && "num" }, label);
}

function testRows(test, open, load) {
  const detail = h("tr", { class: "test-detail", hidden: true }, h("td", { colspan: "5" }));
  const button = h("button", { type: "button", class: "expand", "aria-expanded": "false" }, `${test.test}`);
  const toggle = () => {
    detail.hidden = !detail.hidden;
    button.setAttribute("aria-expanded", String(!detail.hidden));
    if (!detail.hidden && !detail.firstChild.childNodes.length) replace(detail.firstChild, testDetail(test, load));
  };
  button.addEventListener("click", toggle);
  const row = h(
    "tr",
    {},
    h("td", {}, button),
    h("td", {}, outcomeBadge(test.outcome), exit(test)),
    h("td", { class: "num" }, seconds(test.cpu_s)),
    h("td", { class: "num" }, seconds(test.wall_s)),
    h(
      "td",
      { class: "num" },
      typeof test.memory_mb === "number" ? `${number(Math.round(test.memory_mb * 10) / 10)} MB` : "–",
    ),
  );
  if (open) toggle();
  return [row, detail];
}

function exit(test) {
  if (test.signal) return h("span", { class: "note exit" }, ` ${test.signal}`);
  return test.exit_code ? h("span", { class: "note exit" }, ` exit ${test.exit_code}`) : null;
}

function testDetail(test, load) {
  const there = (value) => typeof value === "string" && value !== "";
  const block = (label, value) =>
    there(value) && h("div", {}, h("h3", {}, label), textBlock(value, { limit: 3000, lines: 30, label }));
  const both = there(test.expected) && there(test.output);
  const parts = [
    there(test.detail) && h("p", {}, test.detail),
    block("Input", test.input),
    both
      ? h("div", {}, h("h3", {}, "Expected and got"), diffView(test.expected, test.output))
      : [
          block("Expected", test.expected),
          block("Got", test.output),
          test.output === "" && h("p", { class: "note" }, "The program printed nothing."),
        ],
    block("Errors", test.errors),
    load && test.input === undefined && test.expected === undefined && loadButton(test, load),
  ];
  const found = parts.flat().filter(Boolean);
  const nothing =
    test.outcome === "accepted"
      ? "Output of accepted tests is not recorded."
      : "Output was not recorded: only the first failed tests keep theirs.";
  return h("div", { class: "test-parts" }, found.length ? found : h("p", { class: "note" }, nothing));
}

/** Returns a button that shows what the test was: the run's data are read only when someone asks. */
function loadButton(test, load) {
  const button = h("button", { type: "button", class: "quiet" }, "Show input and expected output");
  button.addEventListener("click", async () => {
    button.disabled = true;
    replace(button, "Reading the run's data …");
    try {
      const found = (await load()).find((each) => each.test === test.test) ?? {};
      const whole = { ...test, input: found.input ?? "", expected: found.expected ?? "" };
      button.closest(".test-parts").replaceWith(testDetail(whole, load));
    } catch (error) {
      button.replaceWith(errorState(error));
    }
  });
  return button;
}
