// What the job and each query did when: a canvas for any number of intervals, and the same as tables.

import { el, renew, say } from "./dom.js";
import { duration, moment, shortened, timeTicks } from "./format.js";
import { at } from "./plots.js";
import { badge, tone } from "./states.js";

export const title = "Timeline";

const ROW = 24;
const AXIS = 44; // time above, incidents below it
const SHORTEST_MS = 100;

export function create(session, store) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const room = el("div", { class: "room" });
  const frame = el(
    "div",
    {
      class: "timeline scroll",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "timeline",
      "aria-label": "Timeline of the job and its queries. Plus and minus zoom, left and right move, 0 shows all, up and down scroll. The tables below show the same data.",
      onkeydown: pressed,
      onscroll: () => soon(),
      onpointermove: moved,
      onpointerdown: held,
      onpointerup: released,
      onpointerleave: () => point(null),
    },
    el("div", { class: "held" }, canvas),
    room,
  );
  frame.addEventListener("wheel", wheeled, { passive: false });
  const readout = el("p", { class: "readout" }, "");
  const legend = el("div", { class: "legend" });
  const tables = el("div", { class: "tables" });
  const buttons = el(
    "div",
    { class: "buttons" },
    el("button", { type: "button", "aria-label": "Zoom in", onclick: () => zoom(0.5) }, "+"),
    el("button", { type: "button", "aria-label": "Zoom out", onclick: () => zoom(2) }, "−"),
    el("button", { type: "button", onclick: fit }, "All"),
    ...[["1 h", 3600000], ["1 d", 86400000]].map(([label, ms]) => el("button", { type: "button", onclick: () => last(ms) }, `Last ${label}`)),
  );
  let domain = null; // null: all of it, as it grows
  let due = false;
  let drag = null;
  let hits = [];

  const whole = () => {
    const { since } = store.document.timeline;
    const until = Math.max(store.now(), store.document.timeline.until);
    return [since, until > since ? until : since + 1000];
  };
  const shown = () => domain || whole();
  const names = () => Math.min(150, Math.max(76, frame.clientWidth * 0.22));

  function set(low, high) {
    const [first, end] = whole();
    const wide = Math.max(SHORTEST_MS, Math.min(end - first, high - low));
    const begin = Math.max(first, Math.min(end - wide, low));
    domain = wide >= end - first ? null : [begin, begin + wide];
    soon();
  }
  function zoom(factor, share = 0.5) {
    const [low, high] = shown();
    const [middle, wide] = [low + (high - low) * share, (high - low) * factor];
    set(middle - wide * share, middle + wide * (1 - share));
  }
  function fit() {
    domain = null;
    soon();
  }
  function last(ms) {
    const [, end] = whole();
    set(end - ms, end);
  }
  function pressed(event) {
    const [low, high] = shown();
    const step = (high - low) / 5;
    const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: fit, ArrowLeft: () => set(low - step, high - step), ArrowRight: () => set(low + step, high + step) }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }
  function wheeled(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = frame.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, Math.min(1, (event.clientX - box.left - names()) / (box.width - names()))));
  }
  function held(event) {
    if (event.pointerType === "touch") return;
    drag = { x: event.clientX, domain: shown(), moved: false };
  }
  function moved(event) {
    if (drag) {
      const share = (event.clientX - drag.x) / Math.max(1, frame.clientWidth - names());
      const wide = drag.domain[1] - drag.domain[0];
      if (Math.abs(event.clientX - drag.x) > 3) drag.moved = true;
      if (drag.moved) set(drag.domain[0] - share * wide, drag.domain[1] - share * wide);
    }
    point(event);
  }
  function released(event) {
    const clicked = drag && !drag.moved;
    drag = null;
    const hit = clicked && found(event);
    if (hit && hit.incident) location.hash = `#/incidents/${encodeURIComponent(hit.incident)}`;
  }
  function found(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return hits.findLast((hit) => x >= hit.x - 2 && x <= hit.x + hit.w + 2 && y >= hit.y && y <= hit.y + hit.h);
  }
  function point(event) {
    if (event === null) drag = null;
    const hit = event && found(event);
    canvas.classList.toggle("link", Boolean(hit && hit.incident));
    say(readout, hit ? hit.said : "");
  }

  function soon() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      if (frame.isConnected) draw(store.document);
    });
  }

  function draw(page) {
    const operators = Object.keys(page.timeline.intervals);
    const [width, height] = [frame.clientWidth, frame.clientHeight];
    if (!width) return;
    room.style.height = `${AXIS + operators.length * ROW + 4}px`;
    frame.style.setProperty("--content", `${AXIS + operators.length * ROW + 8}px`);
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const style = getComputedStyle(frame);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const ink = canvas.getContext("2d");
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.clearRect(0, 0, width, height);
    ink.font = `12px ${style.fontFamily}`;
    ink.textBaseline = "middle";
    const left = names();
    const [low, high] = shown();
    const x = (ms) => left + ((ms - low) / (high - low)) * (width - left - 8);
    hits = [];
    const first = Math.max(0, Math.floor(frame.scrollTop / ROW));
    const end = Math.min(operators.length, Math.ceil((frame.scrollTop + height) / ROW));
    for (let row = first; row < end; row += 1) {
      const y = AXIS + row * ROW - frame.scrollTop;
      ink.fillStyle = row === 0 ? colour("text") : colour("soft");
      ink.fillText(shortened(operators[row] || "job", Math.floor(left / 7)), 6, y + ROW / 2);
      ink.save();
      ink.beginPath();
      ink.rect(left, Math.max(AXIS, y), width - left, ROW);
      ink.clip();
      bars(ink, colour, page.timeline.intervals[operators[row]], operators[row], { x, y, low, high, width });
      ink.restore();
    }
    axis(ink, colour, page, { x, left, low, high, width });
  }

  function bars(ink, colour, intervals, operator, { x, y, low, high, width }) {
    let [drawnTo, before] = [-1, ""];
    for (const [state, since, until, reason, incident] of intervals) {
      const end = until ?? Math.max(since, store.now());
      if (end < low || since > high) continue;
      const begin = Math.max(x(since), -10);
      const wide = Math.max(2, Math.min(x(end), width + 10) - begin);
      // Thousands in one pixel are drawn once.
      if (begin + wide <= drawnTo && state === before) continue;
      [drawnTo, before] = [begin + wide, state];
      const kind = tone(state);
      ink.fillStyle = colour(kind === "good" || kind === "done" ? `${kind}-fill` : kind);
      ink.globalAlpha = kind === "idle" ? 0.45 : 1;
      ink.fillRect(begin, y + 4, wide, ROW - 8);
      ink.globalAlpha = 1;
      if (kind === "bad" || kind === "warn") hatch(ink, colour("ground"), begin, y + 4, wide, ROW - 8, kind === "warn");
      if (wide > ink.measureText(state).width + 10) {
        ink.fillStyle = kind === "bad" || kind === "warn" ? colour("ground") : colour("on-fill");
        if (kind === "bad" || kind === "warn") {
          ink.fillStyle = colour(kind);
          ink.fillRect(begin + 3, y + 5, ink.measureText(state).width + 6, ROW - 10);
          ink.fillStyle = colour("ground");
        }
        ink.fillText(state, Math.max(begin, x(low)) + 6, y + ROW / 2 + 0.5);
      }
      const name = operator || "job";
      hits.push({ x: begin, y: y + 4, w: wide, h: ROW - 8, incident, said: `${name}: ${state} since ${moment(since)}, ${duration(end - since)}${reason ? `. ${shortened(reason.split("\n")[0], 160)}` : ""}${incident ? `. Incident ${incident.slice(0, 8)}` : ""}` });
    }
  }

  function axis(ink, colour, page, { x, left, low, high, width }) {
    ink.fillStyle = colour("ground");
    ink.fillRect(0, 0, width, AXIS);
    ink.fillStyle = colour("soft");
    ink.strokeStyle = colour("line");
    ink.textAlign = "center";
    for (const [ms, text] of timeTicks(low, high, Math.max(2, Math.floor((width - left) / 90)))) {
      if (x(ms) > width - 20) continue;
      ink.fillText(text, x(ms), 11);
      ink.beginPath();
      ink.moveTo(x(ms), 20);
      ink.lineTo(x(ms), AXIS);
      ink.stroke();
    }
    ink.textAlign = "left";
    ink.fillText("incidents", 6, 32);
    let drawn = -100;
    for (const one of [...page.incidents].reverse()) {
      const place = x(one.at);
      if (one.at < low || one.at > high || place - drawn < 3) continue;
      drawn = place;
      ink.fillStyle = colour(one.type === "failure" || one.type === "driver_lost" ? "bad" : "warn");
      ink.beginPath();
      ink.moveTo(place, 26);
      ink.lineTo(place + 6, 38);
      ink.lineTo(place - 6, 38);
      ink.fill();
      hits.push({ x: place - 6, y: 24, w: 12, h: 16, incident: one.id, said: `${moment(one.at)}: ${one.operator}: ${one.what}` });
    }
    ink.beginPath();
    ink.moveTo(0, AXIS - 0.5);
    ink.lineTo(width, AXIS - 0.5);
    ink.stroke();
  }

  function update(page) {
    renew(legend, Object.keys(page.timeline.states_s), () => Object.keys(page.timeline.states_s).map((state) => badge(state)));
    renew(tables, [page.timeline.intervals[""], page.timeline.incidents_s, page.timeline.spans], () => [costs(page), intervals(page, store.now())]);
    soon();
  }

  new ResizeObserver(soon).observe(frame);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
  const node = el("div", { class: "view" }, el("div", { class: "bar" }, el("h1", { tabindex: -1 }, "Timeline"), buttons), legend, frame, readout, tables);
  return { node, update };
}

function hatch(ink, colour, x, y, w, h, wide) {
  ink.save();
  ink.beginPath();
  ink.rect(x, y, w, h);
  ink.clip();
  ink.strokeStyle = colour;
  ink.globalAlpha = 0.45;
  ink.lineWidth = 1.5;
  ink.beginPath();
  const step = wide ? 8 : 5;
  for (let at = Math.floor((x - h) / step) * step; at < Math.min(x + w, 4000); at += step) {
    ink.moveTo(at, y + h);
    ink.lineTo(at + h, y);
  }
  ink.stroke();
  ink.restore();
}

function costs(page) {
  const known = new Map(page.incidents.map((one) => [one.id, one]));
  const entries = Object.entries(page.timeline.incidents_s);
  const sums = Object.entries(page.timeline.states_s).map(([state, seconds]) => el("li", {}, badge(state), ` ${duration(seconds * 1000)}`));
  return el(
    "section",
    {},
    el("h2", {}, "Where the time went"),
    el("ul", { class: "sums" }, ...sums),
    entries.length
      ? el(
          "table",
          { class: "plain" },
          el("caption", {}, "Downtime by incident"),
          el("thead", {}, el("tr", {}, ...["Incident", "Time", "What"].map((name) => el("th", { scope: "col" }, name)))),
          el(
            "tbody",
            {},
            ...entries.reverse().slice(0, 200).map(([id, states]) =>
              el("tr", {}, el("th", { scope: "row" }, el("a", { href: `#/incidents/${encodeURIComponent(id)}` }, id.slice(0, 8))), el("td", {}, Object.entries(states).filter(([, seconds]) => seconds).map(([state, seconds]) => `${duration(seconds * 1000)} ${state}`).join(", ")), el("td", {}, known.get(id)?.what || "")),
            ),
          ),
        )
      : el("p", { class: "empty" }, "No downtime is due to an incident."),
  );
}

function intervals(page, now) {
  const rows = (page.timeline.intervals[""] || []).slice(-200).reverse();
  return el(
    "section",
    {},
    el("h2", {}, "States of the job"),
    el(
      "table",
      { class: "plain" },
      el("caption", { class: "hidden" }, "States of the job, newest first"),
      el("thead", {}, el("tr", {}, ...["State", "Since", "For", "Incident", "Reason"].map((name) => el("th", { scope: "col" }, name)))),
      el(
        "tbody",
        {},
        ...rows.map(([state, since, until, reason, incident]) =>
          el("tr", {}, el("th", { scope: "row" }, badge(state)), el("td", {}, at(since, now)), el("td", {}, until === null ? "still" : duration(until - since)), el("td", {}, incident ? el("a", { href: `#/incidents/${encodeURIComponent(incident)}` }, incident.slice(0, 8)) : "–"), el("td", {}, reason.split("\n")[0] || "–")),
        ),
      ),
    ),
  );
}
