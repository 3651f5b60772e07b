// A table of any number of rows: only those that can be seen are in the document. One stop of the Tab key, then arrows.

import { el, say } from "./dom.js";

const BEYOND = 8; // rows above and below those that can be seen

// Columns: {key, label, sort(row), fill(cell, row), number, wide, width}. The first one has the link of the row.
export class Table {
  constructor({ label, columns, id, href, sort, descending = false, empty }) {
    Object.assign(this, { columns, id, href, empty, rows: [], shown: new Map(), active: null, version: 0 });
    this.order = { key: sort, descending };
    this.heads = new Map();
    this.body = el("tbody");
    this.above = el("tr", { class: "spacer", "aria-hidden": "true" });
    this.below = el("tr", { class: "spacer", "aria-hidden": "true" });
    this.body.append(this.above, this.below);
    const head = el("tr", { "aria-rowindex": 1 }, ...columns.map((column) => this.head(column)));
    this.table = el(
      "table",
      { class: "virtual" },
      el("caption", { class: "hidden" }, `${label}. Arrow keys move between rows, Enter opens one.`),
      el("colgroup", {}, ...columns.map((column) => el("col", { class: classes(column, `w-${column.width || "m"}`) }))),
      el("thead", {}, head),
      this.body,
    );
    this.note = el("p", { class: "empty", hidden: true }, empty);
    this.scroller = el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: -1 }, this.table, this.note);
    this.scroller.addEventListener("scroll", () => this.soon(), { passive: true });
    this.body.addEventListener("keydown", (event) => this.pressed(event));
    this.body.addEventListener("focusin", (event) => this.focused(event));
    new ResizeObserver(() => this.soon()).observe(this.scroller);
  }

  head(column) {
    const cell = el("th", { scope: "col", class: classes(column) });
    if (column.sort) cell.append(el("button", { type: "button", onclick: () => this.sortBy(column.key) }, column.label));
    else cell.append(column.label);
    this.heads.set(column.key, cell);
    return cell;
  }

  sortBy(key) {
    const same = this.order.key === key;
    const column = this.columns.find((one) => one.key === key);
    this.order = { key, descending: same ? !this.order.descending : Boolean(column.number) };
    this.set(this.rows);
    this.scroller.scrollTop = 0;
  }

  set(rows) {
    const column = this.columns.find((one) => one.key === this.order.key);
    const sign = this.order.descending ? -1 : 1;
    this.rows = [...rows].sort((a, b) => sign * compared(column.sort(a), column.sort(b)) || compared(this.id(a), this.id(b)));
    for (const [key, cell] of this.heads) {
      if (key === this.order.key) cell.setAttribute("aria-sort", this.order.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    this.table.setAttribute("aria-rowcount", rows.length + 1);
    this.note.hidden = rows.length > 0;
    this.version += 1;
    this.draw();
  }

  soon() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  // The height of a row, as the style sheet has it.
  get height() {
    return Number.parseFloat(getComputedStyle(this.table).getPropertyValue("--row")) || 36;
  }

  draw() {
    const height = this.height;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / height) - BEYOND);
    const last = Math.min(this.rows.length, Math.ceil((this.scroller.scrollTop + (this.scroller.clientHeight || 600)) / height) + BEYOND);
    if (this.active === null || !this.places().has(this.active)) this.active = this.rows.length ? this.id(this.rows[0]) : null;
    const wanted = new Map();
    for (let place = first; place < last; place += 1) wanted.set(this.id(this.rows[place]), place);
    const focus = document.activeElement;
    for (const [id, row] of this.shown) {
      if (!wanted.has(id)) {
        if (row.contains(focus)) this.scroller.focus({ preventScroll: true });
        row.remove();
        this.shown.delete(id);
      }
    }
    let before = this.above;
    for (const [id, place] of wanted) {
      const row = this.shown.get(id) || this.row(id);
      if (row.drawn !== this.version) this.fill(row, this.rows[place], place);
      if (before.nextSibling !== row) before.after(row);
      before = row;
    }
    this.above.style.height = `${first * height}px`;
    this.below.style.height = `${Math.max(0, this.rows.length - last) * height}px`;
    this.stops();
  }

  places() {
    if (this.placed !== this.version) {
      this.placed = this.version;
      this.index = new Map(this.rows.map((row, place) => [this.id(row), place]));
    }
    return this.index;
  }

  row(id) {
    const row = el("tr", { "data-id": id });
    row.link = el("a", { class: "open", tabindex: -1 });
    for (const [place, column] of this.columns.entries()) {
      const cell = el(place ? "td" : "th", { class: classes(column) });
      if (!place) cell.setAttribute("scope", "row");
      if (!place) cell.append(row.link);
      row.append(cell);
    }
    this.shown.set(id, row);
    return row;
  }

  fill(row, data, place) {
    row.drawn = this.version;
    row.setAttribute("aria-rowindex", place + 2);
    row.link.setAttribute("href", this.href(data));
    for (const [number, column] of this.columns.entries()) {
      const target = number ? row.children[number] : row.link;
      if (column.fill) column.fill(target, data);
      else say(target, column.text(data));
    }
  }

  stops() {
    for (const [id, row] of this.shown) row.link.tabIndex = id === this.active ? 0 : -1;
    // The active row may be far away: then Tab reaches the rows that can be seen.
    if (this.active !== null && !this.shown.has(this.active)) {
      const [row] = this.shown.values();
      if (row) row.link.tabIndex = 0;
    }
  }

  focused(event) {
    const row = event.target.closest("tr");
    if (row && row.dataset.id !== undefined) this.active = row.dataset.id;
    this.stops();
  }

  pressed(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.height) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const place = this.places().get(this.active) || 0;
    const target = Math.max(0, Math.min(this.rows.length - 1, place + step));
    this.active = this.id(this.rows[target]);
    const [top, height] = [target * this.height, this.height];
    const head = this.table.tHead.offsetHeight;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + height > scrollTop + clientHeight - head) this.scroller.scrollTop = top + height - clientHeight + head;
    this.draw();
    this.shown.get(this.active).link.focus({ preventScroll: true });
  }
}

function classes(column, ...more) {
  return [...more, column.number ? "number" : "", column.wide ? "wide" : ""].filter(Boolean).join(" ") || null;
}

function compared(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : a > b ? 1 : 0;
}
