// Epochs and checkpoints as plots: of one query, or of all.

import { el, renew } from "./dom.js";
import { Plot, checkpoints, durations, lags, rates } from "./plots.js";

export const title = "Epochs";

const PERIODS = [["All", null], ["Last day", 86400000], ["Last hour", 3600000]];

export function create(session, store, [query = ""]) {
  const select = el("select", { "aria-label": "Query", onchange: () => (location.hash = select.value ? `#/epochs/${encodeURIComponent(select.value)}` : "#/epochs") });
  const duration = new Plot("Duration of epochs");
  const rate = new Plot("Rows per second");
  const lag = new Plot("Lag");
  const points = new Plot("Checkpoints");
  let period = null;
  let asked = 0;
  const buttons = PERIODS.map(([label, ms]) =>
    el("button", { type: "button", "aria-pressed": String(ms === null), onclick() {
      period = ms;
      for (const one of buttons) one.setAttribute("aria-pressed", one === this);
      update(store.document);
    } }, label),
  );

  function draw(series) {
    duration.show(durations(series));
    rate.show(rates(series));
    lag.node.hidden = !series.lag.length;
    lag.show(lags(series, null));
  }

  function update(page) {
    renew(select, Object.keys(page.series.queries), () => [
      el("option", { value: "" }, "all queries"),
      ...Object.keys(page.queries).map((uid) => el("option", { value: uid, selected: uid === query }, uid)),
    ]);
    const embedded = query ? page.series.queries[query] : page.series.job;
    const since = period === null ? null : page.timeline.until - period;
    points.show(checkpoints(since === null ? page.checkpoints : page.checkpoints.filter((one) => one.at >= since)));
    const fine = session.live && (query || since !== null);
    if (!fine) draw(since === null ? embedded || NONE : cut(embedded || NONE, since));
    // The document has few points of each query: more are asked for, at most every few seconds.
    else if (Date.now() - asked > 3000 || asked === 0 || drawn !== period) {
      asked = Date.now();
      drawn = period;
      session.series(query, since).then(draw, () => draw(embedded || NONE));
    }
  }
  let drawn = period;

  const node = el(
    "div",
    { class: "view" },
    el("div", { class: "bar" }, el("h1", { tabindex: -1 }, "Epochs and checkpoints"), select, el("div", { class: "buttons" }, ...buttons)),
    el("div", { class: "plots" }, duration.node, rate.node, lag.node, points.node),
  );
  return { node, update };
}

const NONE = { at: [], epochs: [], rows: [], least: [], greatest: [], mean: [], lag: [] };

function cut(series, since) {
  const first = series.at.findIndex((at) => at >= since);
  return Object.fromEntries(Object.entries(series).map(([name, values]) => [name, first < 0 ? [] : values.slice(first)]));
}
