// Buttons that send control events. They are there for a token that may change a job, while the job can obey: an Observer never does.

import { announce, el, renew } from "./dom.js";
import { duration } from "./format.js";

// What a button does, and what has to be confirmed before.
const JOB = [
  ["pause", "Pause", null],
  ["resume", "Resume", null],
  ["checkpoint", "Checkpoint", null],
  ["drain", "Drain …", "Sources stop, windows are emitted and the job finishes. A drain cannot be undone."],
  ["stop", "Stop …", "The job stops where it is. It continues there when it is started again."],
];

const QUERY = [
  ["pause", "Pause", null],
  ["resume", "Resume", null],
  ["restart", "Restart …", "The query stops at an epoch boundary and starts again."],
];

// The panel for the whole job, or for one query; empty if nothing can be sent.
export function controls(session, page, query = null) {
  const node = el("section", { class: "controls", "aria-label": query === null ? "Control of the job" : `Control of ${query}` });
  const answer = el("p", { class: "answer" });
  const update = (now) => {
    const able = session.may("control") && now.job.alive !== false && now.job.ended === null && !now.job.observed;
    const finished = query !== null && now.queries[query]?.finished;
    const sources = query === null ? [] : (now.graph.operators[query]?.sources || []).filter((one) => one.uid && one.format !== "exchange").map((one) => one.uid);
    node.hidden = !able || finished;
    if (node.hidden) return;
    renew(node, sources, () => [
      el(
        "div",
        { class: "buttons" },
        ...(query === null ? JOB : QUERY).map(([kind, label, warning]) =>
          el("button", { type: "button", onclick: () => pressed(session, answer, { kind, target: query === null ? "job" : `query:${query}`, warning }) }, label),
        ),
      ),
      ...sources.map((uid) => rate(session, answer, uid)),
      answer,
    ]);
  };
  update(page);
  return { node, update };
}

function rate(session, answer, uid) {
  const field = el("input", { type: "number", min: 1, step: "any", inputmode: "decimal", required: true, "aria-label": `Rows per second of source ${uid}`, placeholder: "rows/s" });
  const target = `source:${uid}`;
  return el(
    "form",
    {
      class: "rate",
      onsubmit(event) {
        event.preventDefault();
        send(session, answer, { kind: "rate_limit", target, value: { rows_per_second: Number(field.value) } });
      },
    },
    el("span", {}, "Rate of ", el("b", {}, uid)),
    field,
    el("button", { type: "submit" }, "Limit"),
    el("button", { type: "button", onclick: () => send(session, answer, { kind: "rate_limit", target, value: null }) }, "Lift"),
  );
}

function pressed(session, answer, { kind, target, warning }) {
  if (warning === null) {
    send(session, answer, { kind, target });
    return;
  }
  const confirm = el("button", { type: "button", class: "primary", onclick: () => closed(true) }, kind === "drain" ? "Drain the job" : `${kind[0].toUpperCase()}${kind.slice(1)}`);
  const dialog = el(
    "dialog",
    { "aria-labelledby": "confirm-title", oncancel: () => closed(false) },
    el("h2", { id: "confirm-title" }, `${kind} ${target}?`),
    el("p", {}, warning),
    el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => closed(false) }, "Cancel"), confirm),
  );
  const focus = document.activeElement;
  const closed = (sure) => {
    dialog.close();
    dialog.remove();
    if (focus) focus.focus();
    if (sure) send(session, answer, { kind, target });
  };
  document.body.append(dialog);
  dialog.showModal();
}

async function send(session, answer, { kind, target, value = null }) {
  const report = (text) => {
    answer.textContent = text;
    announce(text);
  };
  const begun = Date.now();
  report(`${kind} ${target}: sent`);
  try {
    const path = `${session.path()}/control`;
    const body = JSON.stringify({ kind, target, value });
    const headers = { "Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID() };
    const accepted = await (await session.ask(path, { method: "POST", headers, body })).json();
    report(`${kind} ${target}: accepted as event ${accepted.sequence}`);
    const over = await (await session.ask(`${path}/${encodeURIComponent(accepted.id)}?wait=60`)).json();
    report(`${kind} ${target}: ${over.status}${over.final ? ` after ${duration(Date.now() - begun)}` : ", still in progress"}${over.reason ? `. ${over.reason}` : ""}`);
  } catch (problem) {
    const advice = problem.problem && problem.problem.do ? `; ${problem.problem.do}` : "";
    report(`${kind} ${target}: refused. ${problem.message}${advice}`);
  }
}
