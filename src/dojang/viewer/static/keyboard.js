// Keys of the pages, and the dialog that lists them.

import { h, replace } from "./dom.js";

const HELP = [
  [["j", "k"], "next, previous row; on a sample: next, previous sample"],
  [["Enter"], "open the chosen row"],
  [["/"], "search"],
  [["n", "p"], "next, previous page of the table"],
  [["Esc"], "leave the search field; on a sample: back to the table"],
  [["t"], "on a sample: colour tokens by the next value"],
  [["←", "→"], "in a chart or a token view: move to the next step or token"],
  [["?"], "this help"],
];

/** Calls the listener that the open page has for a key. `keys` returns {key: function}. */
export function listen(keys) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.closest("input, select, textarea");
    if (typing && event.key !== "Escape") return;
    if (typing && event.key === "Escape") return typing.blur();
    if (event.key === "?") return openHelp();
    if (event.key === "Enter" && event.target.closest("a, button, summary, [role=button]")) return;
    const act = keys()[event.key];
    if (typeof act !== "function") return;
    event.preventDefault();
    act(event);
  });
}

/** Opens the list of keys. */
export function openHelp() {
  const dialog = document.getElementById("help-dialog");
  if (dialog.open) return;
  const lines = HELP.flatMap(([keys, text]) => [
    h(
      "dt",
      {},
      keys.map((key, place) => [place > 0 && " ", h("kbd", {}, key)]),
    ),
    h("dd", {}, text),
  ]);
  const close = h("button", { type: "button", class: "button", on: { click: () => dialog.close() } }, "Close");
  replace(dialog, h("h2", {}, "Keyboard"), h("dl", { class: "keys" }, lines), close);
  dialog.showModal();
}
