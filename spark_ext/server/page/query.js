// One query: its state, its controls, its sources and sinks, its plots and its incidents.

import { card } from "./channels.js";
import { controls } from "./control.js";
import { el, renew } from "./dom.js";
import { brief, compact, counted, duration, inboxText, lagText, moment, number, size } from "./format.js";
import { Plot, durations, facts, lags, rates } from "./plots.js";
import { ENDED, badge } from "./states.js";

export const title = "Query";

export function create(session, store, [uid]) {
  const head = el("div");
  const panel = controls(session, store.document, uid);
  const duration_ = new Plot("Duration of epochs");
  const rate = new Plot("Rows per second");
  const lag = new Plot("Lag");
  const sources = el("div", { class: "cards" });
  const rest = el("div");
  let asked = 0;

  function draw(series) {
    duration_.show(durations(series));
    rate.show(rates(series));
    const query = store.document.queries[uid];
    const now = query && !ENDED.has(query.state) ? query.lag : null;
    lag.node.hidden = !series.lag.length && (!now || now.rows === null);
    lag.show(lags(series, now));
  }

  function update(page) {
    const query = page.queries[uid];
    if (!query) {
      renew(head, null, () => el("p", { class: "notice" }, "The job has no such query."));
      return;
    }
    const own = page.graph.operators[uid] || { sources: [], sinks: [] };
    const named = (one) => `${one.uid || one.about || one.format} (${one.format})`;
    // What is behind the clock is written with its age, which grows while nothing else changes.
    const now = store.now();
    const ended = ENDED.has(query.state);
    const behind = (rows, at) => lagText(rows, ended ? null : at, now, (value) => counted(value, "row"));
    const late = (at) => (at === null ? null : ended ? moment(at) : `${moment(at)}, ${duration(Math.max(0, now - at))} behind`);
    const lagging = [
      query.lag.rows === null && !query.lag.sources.length ? null : ["Lag", behind(query.lag.rows, query.lag.at)],
      ...(query.lag.rows !== null && query.lag.sources.length < 2 ? [] : query.lag.sources.map(([source, rows, at]) => [`Lag of ${source}`, behind(rows, at)])),
      query.watermark === null ? null : ["Watermark", late(query.watermark)],
      query.newest_row === null ? null : ["Newest row", late(query.newest_row)],
    ].filter(Boolean);
    renew(head, [query, own, lagging], () => [
      el("p", {}, badge(query.state), query.reason ? el("span", { class: "why" }, query.reason.split("\n")[0]) : null),
      facts([
        ["Since", moment(query.since)],
        ["Rows/s", compact(query.rate)],
        ["Rows", number(query.rows)],
        ...(query.state_rows ? [["Rows in its state", number(query.state_rows)]] : []),
        ...Object.entries(query.rule_failures).map(([rule, rows]) => [`Fail rule ${rule}`, counted(rows, "row")]),
        ["Epochs", number(query.epochs)],
        ["Last epoch", query.last_epoch === null ? "–" : `${query.last_epoch}, ${duration(query.last_ms)}`],
        ["Committed", moment(query.committed_at)],
        ...lagging,
        ["Spent in", shares(query.parts)],
        ...query.latencies.map((one) => [["Latency from", one.source, ...one.way.map((reader) => `→ ${reader}`)].join(" "), one.p99_ms === null ? duration(one.ms) : `${duration(one.ms)}, p99 ${duration(one.p99_ms)}`]),
        ["Reads", own.sources.map(named).join(", ") || "–"],
        ["Writes", own.sinks.map(named).join(", ") || "–"],
        ...(query.exchange ? [["Exchange", `${counted(query.exchange.rows, "row")} not committed by the slowest reader, ${size(query.exchange.bytes)}; ${size(query.exchange.stored_bytes)} on disk`]] : []),
        ...query.inboxes.map((one) => [`Inbox ${one.name}`, inboxText(one)]),
      ]),
    ]);
    panel.update(page);
    const embedded = page.series.queries[uid] || { at: [], epochs: [], rows: [], least: [], greatest: [], mean: [], lag: [] };
    if (!session.live) draw(embedded);
    else if (Date.now() - asked > 3000) {
      asked = Date.now();
      session.series(uid, null).then(draw, () => draw(embedded));
    }
    const channels = page.channels.filter((one) => one.query === uid);
    const said = channels.map((one) => query.lag.sources.find(([source]) => source === one.source)).map((found) => (found ? behind(found[1], found[2]) : ""));
    renew(sources, [channels, said], () => channels.map((one, place) => card(one, said[place])));
    const intervals = (page.timeline.intervals[uid] || []).slice(-100).reverse();
    const incidents = page.incidents.filter((one) => one.query === uid).slice(0, 50);
    renew(rest, [intervals, incidents.map((one) => one.id)], () => [
      el("h2", {}, "States"),
      intervals.length ? table("States of the query, newest first", ["State", "Since", "For", "Incident", "Reason"], intervals.map(([state, since, until, reason, incident]) => [badge(state), moment(since), until === null ? "still" : duration(until - since), incident ? link(incident) : "–", reason.split("\n")[0] || "–"])) : el("p", { class: "empty" }, "None is recorded."),
      el("h2", {}, "Incidents"),
      incidents.length ? table("Incidents of the query, newest first", ["Incident", "At", "What"], incidents.map((one) => [link(one.id), brief(one.at, store.now()), one.what])) : el("p", { class: "empty" }, "No incident."),
    ]);
  }

  const node = el(
    "div",
    { class: "view" },
    el("p", { class: "back" }, el("a", { href: "#/overview" }, "All queries")),
    el("h1", { tabindex: -1 }, uid),
    head,
    panel.node,
    el("div", { class: "plots" }, duration_.node, rate.node, lag.node),
    sources,
    rest,
  );
  return { node, update };
}

// Where the time of an epoch went, the longest first.
function shares(parts) {
  const whole = Object.values(parts).reduce((sum, ms) => sum + ms, 0);
  if (!whole) return "–";
  const named = Object.entries(parts).filter(([, ms]) => ms > 0).sort((one, other) => other[1] - one[1]);
  return named.map(([part, ms]) => `${part.replace("_", " ")} ${Math.round((100 * ms) / whole)} %`).join(", ");
}

function link(id) {
  return el("a", { href: `#/incidents/${encodeURIComponent(id)}` }, id.slice(0, 8));
}

function table(caption, heads, rows) {
  return el(
    "table",
    { class: "plain" },
    el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, ...heads.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows.map(([first, ...others]) => el("tr", {}, el("th", { scope: "row" }, first), ...others.map((cell) => el("td", {}, cell))))),
  );
}
