// Incidents: the list, and one with its labels, evidence and stack.

import { el, renew, say } from "./dom.js";
import { brief, counted, duration, moment } from "./format.js";
import { facts } from "./plots.js";
import { Table } from "./table.js";

export const title = "Incidents";

export function create(session, store, [id]) {
  return id === undefined ? list(session, store) : one(session, store, id);
}

function list(session, store) {
  const filter = el("input", { type: "search", placeholder: "Filter by text, or type=NETWORK", "aria-label": "Filter the incidents", autocomplete: "off", spellcheck: "false", oninput: () => update(store.document) });
  const found = el("span", { class: "found" });
  const table = new Table({
    label: "Incidents",
    id: (incident) => incident.id,
    href: (incident) => `#/incidents/${encodeURIComponent(incident.id)}`,
    sort: "at",
    descending: true,
    empty: "No incident.",
    columns: [
      { key: "at", label: "At", width: "s", sort: (incident) => incident.at, text: (incident) => brief(incident.at, store.now()) },
      { key: "kind", label: "Kind", width: "s", sort: kind, fill: (cell, incident) => renew(cell, kind(incident), () => el("span", { class: `chip ${serious(incident)}` }, kind(incident))) },
      { key: "status", label: "State", width: "s", sort: (incident) => incident.status, text: (incident) => incident.status.toLowerCase() || "–" },
      { key: "query", label: "Query", wide: true, sort: (incident) => incident.query, text: (incident) => incident.query || "the job" },
      { key: "what", label: "What", width: "xl", sort: (incident) => incident.what, text: (incident) => incident.what },
      { key: "cost", label: "Cost", number: true, wide: true, sort: (incident) => cost(store.document, incident.id), text: (incident) => (cost(store.document, incident.id) ? duration(cost(store.document, incident.id) * 1000) : "–") },
      { key: "action", label: "Action", wide: true, width: "l", sort: (incident) => incident.action, text: (incident) => incident.action },
    ],
  });

  function update(page) {
    const words = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const rows = page.incidents.filter((incident) => words.every((word) => accepted(incident, word)));
    say(found, words.length ? `${rows.length} of ${counted(page.incidents.length, "incident")}` : counted(rows.length, "incident"));
    table.set(rows);
  }

  return { node: el("div", { class: "view" }, el("div", { class: "bar" }, el("h1", { tabindex: -1 }, "Incidents"), filter, found), table.scroller), update };
}

function accepted(incident, word) {
  const [name, value] = word.split("=");
  if (value !== undefined) return Object.entries(incident.labels).some(([label, is]) => label.toLowerCase() === name && is.toLowerCase() === value);
  return [incident.id, incident.type, incident.operator, incident.what, incident.action, incident.severity, ...Object.values(incident.labels)].some((text) => text.toLowerCase().includes(word));
}

function kind(incident) {
  return incident.labels.type || incident.type;
}

function serious(incident) {
  const severity = incident.severity.toLowerCase();
  if (severity) return severity === "critical" || severity === "error" ? "bad" : severity === "warning" ? "warn" : "idle";
  return incident.type === "failure" || incident.type === "driver_lost" ? "bad" : "idle";
}

function cost(page, id) {
  return Object.values(page.timeline.incidents_s[id] || {}).reduce((total, seconds) => total + seconds, 0);
}

function one(session, store, id) {
  const heading = el("h1", { tabindex: -1 }, `Incident ${id.slice(0, 8)}`);
  const head = el("div");
  const rest = el("div", { class: "view" }, el("p", { class: "empty" }, "Loading the evidence."));
  session.incident(id).then(
    (detail) => rest.replaceChildren(...evidence(detail)),
    (problem) => rest.replaceChildren(el("p", { class: "notice" }, problem.message)),
  );

  function update(page) {
    const incident = page.incidents.find((other) => other.id === id);
    const states = page.timeline.incidents_s[id] || {};
    const children = page.incidents.filter((other) => other.parent === id);
    renew(head, [incident, states, children.length], () =>
      incident
        ? [
            el("p", { class: "chips" }, ...[incident.type, incident.severity, incident.status].filter(Boolean).map((text) => el("span", { class: `chip ${serious(incident)}` }, text)), ...Object.entries(incident.labels).map(([name, value]) => el("span", { class: "chip" }, el("i", {}, `${name} `), value))),
            facts([
              ["At", moment(incident.at)],
              ["Where", incident.operator],
              ["Action", incident.action || "–"],
              ["Downtime", Object.values(states).some(Boolean) ? Object.entries(states).filter(([, seconds]) => seconds).map(([state, seconds]) => `${duration(seconds * 1000)} ${state}`).join(", ") : "none"],
              ["Incarnation", incident.incarnation],
              incident.query && ["Query", el("a", { href: `#/query/${encodeURIComponent(incident.query)}` }, incident.query)],
              incident.parent && ["Because of", link(incident.parent)],
              children.length && ["Led to", el("span", {}, ...children.flatMap((child) => [link(child.id), " "]))],
              ["Id", incident.id],
            ]),
          ]
        : el("p", { class: "notice" }, "It is older than the incidents in the list."),
    );
  }

  return { node: el("div", { class: "view" }, el("p", { class: "back" }, el("a", { href: "#/incidents" }, "All incidents")), heading, head, rest), update };
}

function link(id) {
  return el("a", { href: `#/incidents/${encodeURIComponent(id)}` }, id.slice(0, 8));
}

function evidence(detail) {
  const found = [el("h2", {}, "What happened"), el("pre", { class: "what", tabindex: 0 }, detail.first)];
  if (detail.what !== detail.first) found.push(el("h2", {}, "What happened last"), el("pre", { class: "what", tabindex: 0 }, detail.what));
  if (detail.stack) found.push(el("h2", {}, "Stack"), el("pre", { class: "stack", tabindex: 0, role: "region", "aria-label": "Stack" }, detail.stack));
  if (detail.changes.length) {
    found.push(el("h2", {}, "History"), el("ul", { class: "tree" }, ...detail.changes.map((change) => el("li", {}, tree(change)))));
  }
  if (detail.evidence !== null && detail.evidence !== undefined) found.push(el("h2", {}, "Evidence"), tree(detail.evidence));
  return found;
}

// A value of JSON: objects and lists can be opened.
function tree(value, depth = 0) {
  if (value === null || typeof value !== "object") return el("span", { class: "leaf" }, value === null ? "–" : String(value));
  const entries = Object.entries(value);
  if (!entries.length) return el("span", { class: "leaf" }, "–");
  return el(
    "ul",
    { class: "tree" },
    ...entries.map(([name, part]) => {
      const label = Array.isArray(value) ? `${Number(name) + 1}` : name;
      if (part === null || typeof part !== "object" || !Object.keys(part).length) return el("li", {}, el("b", {}, `${label} `), tree(part, depth + 1));
      return el("li", {}, el("details", { open: depth < 2 }, el("summary", {}, el("b", {}, label)), tree(part, depth + 1)));
    }),
  );
}
