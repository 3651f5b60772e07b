// The channels of each source: how many have finished, of how many that are known.

import { el, renew, say, svg } from "./dom.js";
import { counted, number } from "./format.js";

export const title = "Channels";

const MOST = 100; // sources that are shown at once
const SIDE = 11;

export function create(session, store) {
  const filter = el("input", { type: "search", placeholder: "Filter by query or source", "aria-label": "Filter the sources", autocomplete: "off", spellcheck: "false", oninput: () => update(store.document) });
  const found = el("span", { class: "found" });
  const cards = el("div", { class: "cards" });

  function update(page) {
    const wanted = filter.value.trim().toLowerCase();
    const chosen = page.channels.filter((one) => !wanted || one.query.toLowerCase().includes(wanted) || one.source.toLowerCase().includes(wanted));
    const done = chosen.reduce((total, one) => total + one.done, 0);
    say(found, `${counted(chosen.length, "source")}, ${counted(done, "finished channel")}${chosen.length > MOST ? `; the first ${MOST} are shown` : ""}`);
    renew(cards, chosen.slice(0, MOST), () => (chosen.length ? chosen.slice(0, MOST).map((one) => card(one)) : el("p", { class: "empty" }, "No channels: only sources of spark-ext have channels.")));
  }

  const node = el(
    "div",
    { class: "view" },
    el("div", { class: "bar" }, el("h1", { tabindex: -1 }, "Channels"), filter, found),
    el("p", { class: "key" }, swatch("map-done"), "finished ", swatch("map-drained"), "drained: ended on request ", swatch("map-running"), "being read"),
    cards,
  );
  return { node, update };
}

function swatch(kind) {
  return svg("svg", { class: "map", width: SIDE, height: SIDE, "aria-hidden": "true" }, svg("path", { class: kind, d: square(kind, 0.5, 0.5) }));
}

// A finished channel is a full square, a drained one has a notch, one that is being read is a frame.
function square(kind, x, y) {
  if (kind === "map-done") return `M${x} ${y}h9v9h-9z`;
  if (kind === "map-drained") return `M${x} ${y}h9l-9 9z`;
  return `M${x} ${y}h9v9h-9zM${x + 2} ${y + 2}v5h5v-5z`;
}

// A source. `lag`: how far it is behind, as a text; "" if that is unknown.
export function card(one, lag = "") {
  const total = one.done + one.running;
  const said = one.finished
    ? `finished: ${number(one.done)} of ${counted(total, "channel")}`
    : total
      ? `${number(one.done)} of ${number(total)} known channels finished`
      : "no channel is known yet";
  const name = `${one.source} of ${one.query}`;
  return el(
    "section",
    { class: "card", "aria-label": name },
    el("h2", {}, one.source),
    el("p", { class: "said" }, "of ", el("a", { href: `#/query/${encodeURIComponent(one.query)}` }, one.query), lag ? `, lag ${lag}` : null),
    el("div", { class: "meter" }, el("meter", { min: 0, max: Math.max(1, total), value: one.finished && !total ? 1 : one.done, "aria-label": `${name}: finished channels` }), el("span", {}, said)),
    one.channels.length ? map(one.channels, name) : null,
    one.channels.length ? el("details", {}, el("summary", {}, "Names"), el("ul", { class: "names", tabindex: 0 }, ...one.channels.map(([channel, state, epoch]) => el("li", {}, `${channel} – ${state === 0 ? "being read" : `${state === 2 ? "drained" : "finished"} by epoch ${epoch}`}`)))) : null,
  );
}

function map(channels, name) {
  const columns = Math.min(channels.length, 24);
  const rows = Math.ceil(channels.length / columns);
  const paths = { "map-done": "", "map-drained": "", "map-running": "" };
  channels.forEach(([, state], place) => {
    const kind = ["map-running", "map-done", "map-drained"][state];
    paths[kind] += square(kind, (place % columns) * SIDE + 0.5, Math.floor(place / columns) * SIDE + 0.5);
  });
  return svg(
    "svg",
    { class: "map", width: columns * SIDE, height: rows * SIDE, viewBox: `0 0 ${columns * SIDE} ${rows * SIDE}`, role: "img", "aria-label": `Map of the channels of ${name}` },
    ...Object.entries(paths).filter(([, path]) => path).map(([kind, path]) => svg("path", { class: kind, d: path, "fill-rule": "evenodd" })),
  );
}
