// Tables with sorting by their head, a chosen row for the keyboard, and pages.

import { append, h, replace } from "./dom.js";
import { count } from "./text.js";

/** A table of rows from the server. `columns`: {name, label, sort?, class?, cell(row)}; `link(row)` is the row's address. */
export class Table {
  constructor({ columns, label, link, onSort, onPage, limit }) {
    Object.assign(this, { columns, link, onSort, onPage, limit });
    this.rows = [];
    this.chosen = -1;
    this.head = h("tr", {});
    this.body = h("tbody", {});
    this.body.addEventListener("click", (event) => this.#click(event));
    this.pager = h("div", { class: "pager" });
    const table = h("table", { "aria-label": label }, h("thead", {}, this.head), this.body);
    this.element = h("div", { class: "card table-card" }, h("div", { class: "table-scroll" }, table), this.pager);
  }

  /** Shows rows. Keeps the chosen row's place. */
  show({ rows, total, offset, sort, empty }) {
    Object.assign(this, { rows, total, offset });
    this.element.classList.remove("stale");
    replace(
      this.head,
      this.columns.map((column) => this.#heading(column, sort)),
    );
    replace(
      this.body,
      rows.map((row, place) => this.#row(row, place)),
    );
    if (!rows.length) this.body.append(h("tr", {}, h("td", { colspan: this.columns.length }, empty)));
    this.choose(Math.min(this.chosen, rows.length - 1), { scroll: false });
    this.#drawPager();
  }

  /** Marks the rows as old while others load. */
  wait() {
    this.element.classList.add("stale");
  }

  choose(place, { scroll = true } = {}) {
    this.body.children[this.chosen]?.classList.remove("chosen");
    this.chosen = Math.max(-1, Math.min(this.rows.length - 1, place));
    const row = this.body.children[this.chosen];
    if (!row || !this.rows.length) return;
    row.classList.add("chosen");
    if (scroll) row.scrollIntoView({ block: "nearest" });
  }

  openChosen() {
    if (this.rows[this.chosen]) location.hash = this.link(this.rows[this.chosen], this.chosen);
  }

  keys() {
    return {
      j: () => this.choose(this.chosen + 1),
      k: () => this.choose(Math.max(0, this.chosen - 1)),
      Enter: () => this.openChosen(),
      n: () => this.#turn(1),
      p: () => this.#turn(-1),
    };
  }

  #turn(pages) {
    const offset = this.offset + pages * this.limit;
    if (offset >= 0 && offset < this.total) this.onPage(offset);
  }

  #click(event) {
    const row = event.target.closest("tr[data-row]");
    if (!row || event.target.closest("a")) return;
    if (String(getSelection())) return; // text was selected, not a row
    this.choose(Number(row.dataset.row));
    this.openChosen();
  }

  #heading(column, sort) {
    const options = { class: column.class, scope: "col" };
    if (!column.sort) return h("th", options, column.label);
    const [up, down] = [sort === column.sort, sort === `-${column.sort}`];
    const press = () => this.onSort(down ? column.sort : up ? "" : `-${column.sort}`);
    const sign = up ? "↑" : down ? "↓" : "";
    const order = up ? "ascending" : down ? "descending" : false;
    return h(
      "th",
      { ...options, "aria-sort": order },
      h("button", { type: "button", on: { click: press } }, column.label, h("span", { "aria-hidden": "true" }, sign)),
    );
  }

  #row(row, place) {
    const cells = this.columns.map((column, at) => {
      const cell = h("td", { class: column.class });
      const content = [column.cell(row)].flat();
      if (at === 0) cell.append(h("a", { href: this.link(row, place) }, content));
      else append(cell, content);
      return cell;
    });
    return h("tr", { "data-row": String(place) }, cells);
  }

  #drawPager() {
    const { offset, rows, total, limit } = this;
    const last = Math.max(0, Math.floor((total - 1) / limit) * limit);
    const button = (label, to, off) =>
      h("button", { type: "button", disabled: off, on: { click: () => this.onPage(to) } }, label);
    const where = rows.length
      ? `${count(offset + 1)}–${count(offset + rows.length)} of ${count(total)}`
      : `0 of ${count(total)}`;
    const buttons = h(
      "div",
      { class: "segmented", role: "group", "aria-label": "Pages" },
      button("First", 0, offset === 0),
      button("Previous", Math.max(0, offset - limit), offset === 0),
      button("Next", offset + limit, offset + limit >= total),
      button("Last", last, offset >= last),
    );
    replace(this.pager, h("span", { class: "muted", role: "status" }, where), total > limit && buttons);
  }
}
