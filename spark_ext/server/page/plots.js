// Plots of series as SVG, each with a sentence that says the same and a table of its points.

import { el, renew, svg } from "./dom.js";
import { brief, compact, counted, duration, moment, ticks, timeTicks } from "./format.js";

const HEIGHT = 180;
const LEFT = 52;
const BOTTOM = 22;
const TOP = 8;
const ROWS = 300; // of the table beside a plot

// A frame that draws itself again when its width changes. `draw(width)` returns {plot, said, table}.
export class Plot {
  constructor(title) {
    this.drawing = null;
    this.picture = el("div", { class: "picture" });
    this.said = el("p", { class: "said" });
    this.numbers = el("div", { class: "scroll small", role: "region", "aria-label": `${title}: figures`, tabindex: 0 });
    this.details = el("details", { ontoggle: () => this.fillTable() }, el("summary", {}, "Figures"), this.numbers);
    this.node = el("section", { class: "plot", "aria-label": title }, el("h2", {}, title), this.said, this.picture, this.details);
    this.width = 0;
    new ResizeObserver(() => {
      const width = this.picture.clientWidth;
      if (width && width !== this.width) {
        this.width = width;
        this.redraw();
      }
    }).observe(this.picture);
  }

  show(drawing) {
    this.drawing = drawing;
    this.redraw();
  }

  redraw() {
    if (!this.drawing || !this.width) return;
    renew(this.picture, [this.width, this.drawing.key], () => this.drawing.plot(this.width));
    this.said.textContent = this.drawing.said;
    this.fillTable();
  }

  fillTable() {
    if (!this.details.open || !this.drawing) return;
    renew(this.numbers, this.drawing.key, () => table(this.drawing.columns, this.drawing.rows().slice(-ROWS).reverse()));
  }
}

function table(columns, rows) {
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...columns.map((column) => el("th", { scope: "col" }, column)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, cell))))),
  );
}

// The axes of a plot, and the functions that place a value in it.
function axes(width, [low, high], top, label) {
  const most = top > 0 ? top : 1;
  const x = (at) => LEFT + ((at - low) / Math.max(1, high - low)) * (width - LEFT - 8);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - BOTTOM - TOP);
  const lines = [];
  for (const value of ticks(0, most, 4)) {
    lines.push(svg("line", { class: "grid", x1: LEFT, x2: width - 8, y1: y(value), y2: y(value) }));
    lines.push(svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, label(value)));
  }
  for (const [at, text] of timeTicks(low, high, Math.max(2, Math.floor(width / 110)))) {
    if (x(at) > width - 24) continue;
    lines.push(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }));
    lines.push(svg("text", { class: "tick", x: x(at), y: HEIGHT - 5, "text-anchor": "middle" }, text));
  }
  return { x, y, lines };
}

function picture(width, children) {
  return svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" }, ...children);
}

// The duration of epochs: the mean, and the range from the shortest to the longest.
export function durations(series) {
  const known = series.at.map((_, place) => place).filter((place) => series.mean[place] >= 0);
  const range = extent(series);
  const greatest = known.reduce((most, place) => Math.max(most, series.greatest[place]), 0);
  const epochs = sum(series.epochs);
  const mean = epochs ? known.reduce((total, place) => total + series.mean[place] * series.epochs[place], 0) / Math.max(1, known.reduce((total, place) => total + series.epochs[place], 0)) : 0;
  return {
    key: [series.at.length, range, greatest, epochs, mean],
    said: known.length
      ? `${counted(epochs, "epoch")} from ${moment(range[0])} to ${moment(range[1])}: ${duration(mean)} on average, ${duration(greatest)} at most.`
      : "No epoch with a known duration.",
    columns: ["from", "epochs", "shortest", "mean", "longest"],
    rows: () => known.map((place) => [moment(series.at[place]), series.epochs[place], ...["least", "mean", "greatest"].map((name) => duration(series[name][place]))]),
    plot(width) {
      const { x, y, lines } = axes(width, range, greatest, duration);
      const point = (name) => (place) => `${x(series.at[place]).toFixed(1)},${y(series[name][place]).toFixed(1)}`;
      const band = [...known.map(point("greatest")), ...[...known].reverse().map(point("least"))];
      const shapes = known.length > 1
        ? [svg("polygon", { class: "band", points: band.join(" ") }), svg("polyline", { class: "line", points: known.map(point("mean")).join(" ") })]
        : known.map((place) => svg("circle", { class: "point", cx: x(series.at[place]), cy: y(series.mean[place]), r: 3 }));
      return picture(width, [...lines, ...shapes]);
    },
  };
}

// Rows that were read, per second of each period: the rows of an epoch are spread over the time that it took.
export function rates(series) {
  const begins = series.at.map((at, place) => at - series.before[place]);
  const ends = series.at.map((at, place) => at + series.after[place]);
  const range = begins.length ? [Math.min(...begins), Math.max(...ends)] : [0, 1];
  const length = Math.max(1, range[1] - range[0]);
  const bars = Math.min(80, Math.max(1, Math.floor(length / 1000)));
  const period = length / bars;
  const bar = (at) => Math.min(bars - 1, Math.floor((at - range[0]) / period));
  const rows = new Array(bars).fill(0);
  series.rows.forEach((read, place) => {
    const took = Math.max(1, ends[place] - begins[place]);
    for (let one = bar(begins[place]); one <= bar(ends[place]); one += 1) {
      const left = Math.max(begins[place], range[0] + one * period);
      const right = Math.min(begins[place] + took, range[0] + (one + 1) * period);
      rows[one] += read * (Math.max(0, right - left) / took);
    }
  });
  const values = rows.map((value) => value / (period / 1000));
  const most = Math.max(0, ...values);
  const total = sum(series.rows);
  return {
    key: [series.at.length, range, total],
    said: series.at.length
      ? `${counted(total, "row")} in ${duration(length)}: ${compact(total / (length / 1000))} rows/s on average${bars > 1 ? `, ${compact(most)} rows/s in the best of ${bars} periods` : ""}.`
      : "No epoch has been committed.",
    columns: ["from", "epochs", "rows"],
    rows: () => series.at.map((at, place) => [moment(at), series.epochs[place], series.rows[place].toLocaleString("en")]),
    plot(width) {
      const { x, y, lines } = axes(width, range, most, compact);
      const wide = Math.max(1, (width - LEFT - 8) / bars - 1);
      const shapes = values
        .map((value, place) => [value, x(range[0] + place * period)])
        .filter(([value]) => value > 0)
        .map(([value, left]) => svg("rect", { class: "bar", x: left, y: y(value), width: wide, height: HEIGHT - BOTTOM - y(value) }));
      return picture(width, [...lines, ...shapes]);
    },
  };
}

// How many rows were still to be read, at each epoch and, if `now` has it, since the newest one.
export function lags(series, now) {
  const known = series.lag.map((rows, place) => [series.at[place], rows]).filter(([, rows]) => rows >= 0);
  const last = now && now.rows !== null && now.at !== null && (!known.length || now.at > known[known.length - 1][0]) ? [[now.at, now.rows]] : [];
  const points = [...known, ...last];
  const range = points.length ? [points[0][0], points[points.length - 1][0]] : [0, 1];
  const most = points.reduce((greatest, [, rows]) => Math.max(greatest, rows), 0);
  const newest = points.length ? points[points.length - 1] : null;
  return {
    key: [points.length, range, most, newest],
    said: newest ? `${counted(newest[1], "row")} still to be read at ${moment(newest[0])}; ${counted(most, "row")} at most since ${moment(range[0])}.` : "It is not known how many rows are still to be read.",
    columns: ["at", "rows still to be read"],
    rows: () => points.map(([when, rows]) => [moment(when), rows.toLocaleString("en")]),
    plot(width) {
      const { x, y, lines } = axes(width, range, most, compact);
      const shapes = points.length > 1
        ? [svg("polyline", { class: "line", points: points.map(([when, rows]) => `${x(when).toFixed(1)},${y(rows).toFixed(1)}`).join(" ") })]
        : points.map(([when, rows]) => svg("circle", { class: "point", cx: x(when), cy: y(rows), r: 3 }));
      return picture(width, [...lines, ...shapes]);
    },
  };
}

// Checkpoints of the whole job: how long each took, and what has become of it.
export function checkpoints(found) {
  const drawn = found.filter((one) => one.ms !== null);
  const range = found.length ? [found[0].at, found[found.length - 1].at] : [0, 1];
  const most = drawn.reduce((greatest, one) => Math.max(greatest, one.ms), 0);
  const failed = found.filter((one) => one.status === "FAILED").length;
  return {
    key: [found.length, range, most, found.map((one) => one.status[0]).join("")],
    said: found.length
      ? `${counted(found.length, "checkpoint")} and savepoints, ${failed || "none"} of them failed; the longest took ${duration(most)}. A square is a savepoint, a cross has failed.`
      : "No checkpoint of the whole job has been taken.",
    columns: ["number", "kind", "status", "at", "took", "rows in flight", "folder or reason"],
    rows: () => found.map((one) => [one.id, `${one.kind} ${one.mode}`, one.status, moment(one.at), duration(one.ms), one.rows ?? "–", one.path || one.reason]),
    plot(width) {
      const { x, y, lines } = axes(width, range, most, duration);
      const shapes = drawn.map((one) => {
        const [left, top] = [x(one.at), y(one.ms)];
        if (one.status === "FAILED") return svg("path", { class: "failed", d: `M${left - 4} ${top - 4}l8 8m-8 0l8-8` });
        if (one.kind === "savepoint") return svg("rect", { class: "point", x: left - 3.5, y: top - 3.5, width: 7, height: 7 });
        return svg("circle", { class: "point", cx: left, cy: top, r: 3 });
      });
      return picture(width, [...lines, ...shapes]);
    },
  };
}

// A line the size of a word: durations of a query's epochs.
export function sparkline(target, series) {
  const known = series ? series.mean.filter((value) => value >= 0) : [];
  renew(target, known, () => {
    if (known.length < 2) return [];
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const y = (value) => 18 - ((value - low) / Math.max(1, high - low)) * 16;
    const points = known.map((value, place) => `${((place / (known.length - 1)) * 88 + 1).toFixed(1)},${y(value).toFixed(1)}`);
    return svg("svg", { class: "spark", width: 90, height: 20, viewBox: "0 0 90 20", "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
  });
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, ...pairs.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function extent(series) {
  return series.at.length ? [series.at[0], series.at[series.at.length - 1]] : [0, 1];
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

export function at(ms, now) {
  return el("time", { datetime: ms === null ? "" : new Date(ms).toISOString(), title: moment(ms) }, brief(ms, now));
}
