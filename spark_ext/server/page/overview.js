// The first view: the job's figures, its controls, and all of its queries.

import { controls } from "./control.js";
import { el, renew, say } from "./dom.js";
import { brief, compact, counted, duration, lagText, moment, number, percent } from "./format.js";
import { sparkline } from "./plots.js";
import { ENDED, badge, urgency } from "./states.js";
import { Table } from "./table.js";

export const title = "Overview";

function notices(job) {
  const found = [];
  if (job.lost) found.push(`The driver was lost when the job was ${job.recorded}: its end is not recorded. Start the job again, and it continues.`);
  else if (job.reason && (job.state === "FAILED" || job.state === "FAILING")) found.push(job.reason);
  if (job.silent) found.push(`No heartbeat since ${moment(job.heartbeat)}: the driver, process ${job.process} on ${job.host}, may be lost. What is shown is what it had written by then.`);
  return found;
}

export function create(session, store) {
  const figures = el("dl", { class: "figures" });
  const trouble = el("div", { class: "trouble" });
  const panel = controls(session, store.document);
  const filter = el("input", { type: "search", placeholder: "Filter by name, state or reason", "aria-label": "Filter the queries", autocomplete: "off", spellcheck: "false", oninput: () => update(store.document) });
  const found = el("span", { class: "found" });
  const table = new Table({
    label: "Queries",
    id: (query) => query.uid,
    href: (query) => `#/query/${encodeURIComponent(query.uid)}`,
    sort: "state",
    empty: "No query.",
    columns: [
      { key: "uid", label: "Query", width: "l", sort: (query) => query.uid, text: (query) => query.uid },
      {
        key: "state",
        label: "State",
        width: "s",
        sort: (query) => urgency(query.state),
        fill: (cell, query) => renew(cell, [query.state, query.reason, store.now() - query.since > 0], () => badge(query.state)),
      },
      { key: "rate", label: "Rows/s", number: true, sort: (query) => query.rate, text: (query) => compact(query.rate) },
      { key: "lag", label: "Lag", number: true, wide: true, width: "n", sort: (query) => query.lag.rows, text: (query) => lagText(query.lag.rows, ENDED.has(query.state) ? null : query.lag.at, store.now(), compact) },
      { key: "rows", label: "Rows", number: true, wide: true, sort: (query) => query.rows, text: (query) => compact(query.rows) },
      { key: "epochs", label: "Epochs", number: true, wide: true, sort: (query) => query.epochs, text: (query) => number(query.epochs) },
      { key: "last_ms", label: "Last epoch", number: true, sort: (query) => query.last_ms, text: (query) => duration(query.last_ms) },
      { key: "committed_at", label: "Committed", number: true, wide: true, sort: (query) => query.committed_at, text: (query) => brief(query.committed_at, store.now()) },
      { key: "series", label: "Durations", wide: true, width: "s", fill: (cell, query) => sparkline(cell, store.document.series.queries[query.uid]) },
      { key: "reason", label: "Reason", wide: true, width: "xl", sort: (query) => query.reason, text: (query) => query.reason.split("\n")[0] },
    ],
  });

  function update(page) {
    const { job, timeline } = page;
    const available = timeline.availability;
    renew(figures, [job, timeline.wall_s, timeline.availability, page.incidents.length], () =>
      [
        ["State since", `${brief(job.since, store.now())}`, moment(job.since)],
        ["Rows/s", compact(job.rate), "over the last minute"],
        ...(job.lag === null ? [] : [["Lag", compact(job.lag), `${counted(job.lag, "row")} still to be read, where known`]]),
        ["Rows", compact(job.rows), counted(job.rows, "row")],
        ...(job.bad_rows ? [["Bad rows", compact(job.bad_rows), `${counted(job.bad_rows, "row")} put aside, in the table of bad rows`]] : []),
        ...(job.late_rows ? [["Late rows", `≥ ${compact(job.late_rows)}`, `at least ${counted(job.late_rows, "row")} dropped: the watermark had passed them`]] : []),
        ...(job.state_rows ? [["In state", compact(job.state_rows), `${counted(job.state_rows, "row")} in the queries' states where known, such as open windows`]] : []),
        ["Epochs", compact(job.epochs), counted(job.epochs, "epoch")],
        ...(available === null
          ? []
          : [
              [
                store.now() - timeline.since < 86400000 ? "Availability" : "Availability, 1 d",
                percent(available["1d"]),
                `since the first start: ${percent(available.all)}`,
              ],
              ["Down", duration(timeline.down_s * 1000), "since the first start"],
            ]),
        ["Incidents", number(page.incidents.length), page.incidents.length ? `the newest at ${moment(page.incidents[0].at)}` : "none"],
        ["Incarnation", number(job.incarnation), `${timeline.spans.length} in the ledger`],
      ].map(([name, value, about]) => el("div", { title: about }, el("dt", {}, name), el("dd", {}, value))),
    );
    renew(trouble, [job.lost, job.silent, job.heartbeat, job.state, job.reason], () => notices(job).map((text) => el("pre", { class: "notice bad", tabindex: 0 }, text)));
    panel.update(page);
    const wanted = filter.value.trim().toLowerCase();
    const all = Object.values(page.queries);
    const rows = wanted ? all.filter((query) => [query.uid, query.state, query.reason].some((text) => text.toLowerCase().includes(wanted))) : all;
    say(found, wanted ? `${rows.length} of ${counted(all.length, "query").replace("querys", "queries")}` : Object.entries(job.states).map(([state, many]) => `${many} ${state}`).join(", "));
    table.set(rows);
  }

  const node = el(
    "div",
    { class: "view overview" },
    el("h1", { tabindex: -1 }, "Overview"),
    trouble,
    figures,
    panel.node,
    el("div", { class: "bar" }, el("h2", {}, "Queries"), filter, found),
    table.scroller,
  );
  return { node, update };
}
