// The switch between the system's theme, light and dark.

import { h, replace, s } from "./dom.js";

const THEMES = ["auto", "light", "dark"];

/** Makes a button switch the theme; the choice is kept in the browser. */
export function setUpTheme(button) {
  const now = () => document.documentElement.dataset.theme ?? "auto";
  const draw = () => {
    const name = { auto: "system", light: "light", dark: "dark" }[now()];
    button.title = `Theme: ${name}`;
    button.setAttribute("aria-label", `Theme: ${name}. Switch`);
    replace(button, icon(now()), h("span", { class: "sr" }, name));
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(now()) + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("dojang-theme", next);
    } catch {
      // storage is switched off: the choice lasts as long as the page
    }
    draw();
  });
  draw();
}

function icon(theme) {
  const box = {
    width: 16,
    height: 16,
    viewBox: "0 0 16 16",
    "aria-hidden": "true",
    fill: "none",
    stroke: "currentColor",
    "stroke-width": 1.5,
  };
  if (theme === "light")
    return s(
      "svg",
      box,
      s("circle", { cx: 8, cy: 8, r: 3 }),
      s("path", { d: "M8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.4 1.4M11.6 11.6 13 13M3 13l1.4-1.4M11.6 4.4 13 3" }),
    );
  if (theme === "dark") return s("svg", box, s("path", { d: "M13 9.6A5.6 5.6 0 0 1 6.4 3a5.6 5.6 0 1 0 6.6 6.6z" }));
  return s(
    "svg",
    box,
    s("circle", { cx: 8, cy: 8, r: 6 }),
    s("path", { d: "M8 2a6 6 0 0 1 0 12z", fill: "currentColor" }),
  );
}
