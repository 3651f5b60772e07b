// States: a colour, a shape and a text for each, so that none is known by its colour alone.

import { el, svg } from "./dom.js";

const SHAPES = {
  disc: "M6 2a4 4 0 1 0 0 8a4 4 0 1 0 0-8z",
  ring: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9zM6 3.3a2.7 2.7 0 1 1 0 5.4a2.7 2.7 0 1 1 0-5.4z",
  half: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9zM6 3.2v5.6a2.8 2.8 0 0 1 0-5.6z",
  check: "M1.6 6.4 3 5l2 2 4-4.4 1.5 1.3L5.1 9.9z",
  cross: "M2.6 1.4 6 4.8l3.4-3.4 1.2 1.2L7.2 6l3.4 3.4-1.2 1.2L6 7.2l-3.4 3.4-1.2-1.2L4.8 6 1.4 2.6z",
  turn: "M6 1.5a4.5 4.5 0 0 1 3.4 1.6L10.7 2v3.6H7.1l1.2-1.3A2.9 2.9 0 1 0 8.8 7l1.6.5A4.5 4.5 0 1 1 6 1.5z",
  bars: "M2.6 2h2.4v8H2.6zM7 2h2.4v8H7z",
  square: "M2.4 2.4h7.2v7.2H2.4z",
  warning: "M6 1l5.2 9.4H.8zM5.3 4.3v2.9h1.4V4.3zM5.3 8v1.3h1.4V8z",
  diamond: "M6 1l5 5-5 5-5-5zM6 3.4 3.4 6 6 8.6 8.6 6z",
};

// Tone (a class of the style sheet) and shape by state.
const STATES = {
  CREATED: ["idle", "ring"],
  SCHEDULING: ["idle", "ring"],
  DEPLOYING: ["busy", "half"],
  RESTORING: ["busy", "turn"],
  RUNNING: ["good", "disc"],
  PAUSED: ["idle", "bars"],
  FINISHING: ["busy", "half"],
  FINISHED: ["done", "check"],
  RESTARTING: ["warn", "turn"],
  FAILING: ["bad", "warning"],
  FAILED: ["bad", "cross"],
  CANCELED: ["idle", "square"],
  SUSPENDED: ["done", "bars"],
  DOWN: ["bad", "cross"],
  STOPPED: ["idle", "square"],
};

// From which a query does not come back by itself: nothing of it changes any more.
export const ENDED = new Set(["FINISHED", "SUSPENDED", "FAILED", "CANCELED"]);

const NEUTRAL = ["idle", "diamond"];

export function tone(state) {
  return (Object.hasOwn(STATES, state) ? STATES[state] : NEUTRAL)[0];
}

export function shape(state) {
  return SHAPES[(Object.hasOwn(STATES, state) ? STATES[state] : NEUTRAL)[1]];
}

export function glyph(state) {
  return svg(
    "svg",
    { class: `glyph ${tone(state)}`, viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" },
    svg("path", { d: shape(state), "fill-rule": "evenodd" }),
  );
}

export function badge(state) {
  return el("span", { class: `badge ${tone(state)}` }, glyph(state), state);
}

// Worst first, as somebody who is called at night wants to see them.
const ORDER = ["FAILED", "DOWN", "FAILING", "RESTARTING", "RESTORING", "DEPLOYING", "SCHEDULING", "CREATED", "PAUSED", "FINISHING", "RUNNING", "CANCELED", "STOPPED", "SUSPENDED", "FINISHED"];

export function urgency(state) {
  const place = ORDER.indexOf(state);
  return place < 0 ? ORDER.length : place;
}
