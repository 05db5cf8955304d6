// Builds elements. Strings only ever become text nodes, with invisible characters escaped, so no text of a run is HTML.

import { visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";

/** Returns an HTML element. `options`: attributes; `class`; `on`: listeners by event; `style`: properties by name. */
export function h(tag, options = {}, ...children) {
  return fill(document.createElement(tag), options, children);
}

/** Returns an SVG element. */
export function s(tag, options = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), options, children);
}

function fill(element, options, children) {
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  append(element, children);
  return element;
}

/** Appends nodes and strings; leaves out null, undefined and false. */
export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
}

/** Replaces the content of an element. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Returns a text block that is cut when long, with a button for the rest and a link to download a text that was cut by the server. */
export function textBlock(text, { limit = 4000, lines = 60, label = "", download = null, total = null } = {}) {
  const whole = text ?? "";
  const short = cut(whole, limit, lines);
  const body = h("pre", { class: "text", dir: "ltr", tabindex: "0", "aria-label": label || false }, short);
  const box = h("div", { class: "textbox" }, body);
  if (!whole) {
    body.classList.add("empty");
    replace(body, "(empty)");
  }
  const actions = h("div", { class: "actions" });
  if (short.length < whole.length) {
    const button = h(
      "button",
      { type: "button", class: "quiet" },
      `Show all ${whole.length.toLocaleString("en-US")} characters`,
    );
    button.addEventListener("click", () => {
      replace(body, whole);
      button.remove();
    });
    actions.append(button);
  }
  if (download && total) {
    const note = `Download the whole text (${total.toLocaleString("en-US")} characters)`;
    actions.append(h("a", { href: download, download: true, class: "quiet" }, note));
  }
  if (actions.childNodes.length) box.append(actions);
  return box;
}

function cut(text, limit, lines) {
  let end = Math.min(text.length, limit);
  let at = -1;
  for (let line = 0; line < lines; line++) {
    at = text.indexOf("\n", at + 1);
    if (at < 0 || at >= end) return text.slice(0, end);
  }
  return text.slice(0, Math.min(end, at));
}

/** Returns a message for a page or part without content. */
export function emptyState(title, ...explanation) {
  return h("div", { class: "empty-state" }, h("p", { class: "title" }, title), h("p", {}, ...explanation));
}

/** Returns a placeholder while something loads; it becomes visible only after a moment. */
export function loading(what) {
  return h("div", { class: "loading", role: "status" }, `Loading ${what} …`);
}

/** Returns a message for an error of the server. */
export function errorState(error) {
  return h("div", { class: "error-state", role: "alert" }, h("p", {}, error.message ?? String(error)));
}

/** Returns the badge of an outcome: a sign and a word, so that it can be told without colour. */
export function outcomeBadge(outcome) {
  const kind = outcome === "accepted" ? "good" : outcome === "judge_error" ? "odd" : "bad";
  const sign = { good: "✓", bad: "✕", odd: "!" }[kind];
  return h(
    "span",
    { class: `badge ${kind}` },
    h("span", { class: "sign", "aria-hidden": "true" }, sign),
    outcome ?? "none",
  );
}
