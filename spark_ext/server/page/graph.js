// The graph of queries and exchanges: in layers, from the sources to the sinks.

import { el, renew, svg } from "./dom.js";
import { compact, shortened } from "./format.js";
import { shape, tone } from "./states.js";

export const title = "Graph";

const SIZE = { query: [204, 52], exchange: [132, 26], bend: [1, 1] };
const GAP = [40, 16]; // between layers, and within one

export function create(session, store) {
  const picture = el("div", { class: "graph scroll", role: "region", "aria-label": "Graph of queries and exchanges", tabindex: 0 });
  const words = el("div");
  const summary = el("p", { class: "said" });
  const zooms = el(
    "div",
    { class: "buttons" },
    el("button", { type: "button", onclick: () => zoom(1.25) }, "Larger"),
    el("button", { type: "button", onclick: () => zoom(0.8) }, "Smaller"),
    el("button", { type: "button", onclick: () => zoom(0) }, "Fit"),
  );
  let scale = 0;
  let width = 0;

  function zoom(factor) {
    const drawn = picture.querySelector("svg");
    scale = factor === 0 || !drawn ? 0 : Math.min(3, Math.max(0.1, (scale || Number(drawn.dataset.scale)) * factor));
    update(store.document);
  }

  function update(page) {
    if (!width) return;
    const { edges, exchanges, operators } = page.graph;
    const vertical = width < 640;
    // Drawn again when the graph has changed; states and figures are put into what is there.
    renew(picture, [edges, exchanges, Object.keys(page.queries), width, scale], () => draw(page, vertical, width, scale));
    for (const node of picture.querySelectorAll("a[data-query]")) live(node, page.queries[node.dataset.query]);
    renew(words, [edges, exchanges, operators], () => described(page));
    summary.textContent = `${Object.keys(page.queries).length} queries, ${exchanges.length} exchanges. The ledger does not record gates: a query that waits for the end of another one stands by itself.`;
  }

  new ResizeObserver(() => {
    if (picture.clientWidth !== width) {
      width = picture.clientWidth;
      update(store.document);
    }
  }).observe(picture);
  const node = el("div", { class: "view" }, el("div", { class: "bar" }, el("h1", { tabindex: -1 }, "Graph"), zooms), summary, picture, el("details", {}, el("summary", {}, "The graph in words"), words));
  return { node, update };
}

function live(node, query) {
  if (!query) return;
  const said = `${query.uid}: ${query.state}${query.rate !== null ? `, ${compact(query.rate)} rows/s` : ""}`;
  if (node.getAttribute("aria-label") === said) return;
  node.setAttribute("aria-label", said);
  node.setAttribute("class", `node ${tone(query.state)}`);
  node.querySelector("path.glyph").setAttribute("d", shape(query.state));
  node.querySelector("text.state").textContent = `${query.state}${query.rate ? ` · ${compact(query.rate)} rows/s` : ""}`;
}

function draw(page, vertical, width, wanted) {
  const nodes = [
    ...Object.keys(page.queries).map((uid) => ({ id: `q:${uid}`, kind: "query", uid })),
    ...page.graph.exchanges.map((one) => ({ id: `x:${one.name}`, kind: "exchange", name: one.name, sealed: one.sealed })),
  ];
  const known = new Set(nodes.map((one) => one.id));
  const edges = page.graph.exchanges
    .flatMap((one) => [...one.writers.map((uid) => [`q:${uid}`, `x:${one.name}`]), ...one.readers.map((uid) => [`x:${one.name}`, `q:${uid}`])])
    .filter(([from, to]) => known.has(from) && known.has(to));
  const placed = layout(nodes, edges, vertical, width);
  const scale = wanted || Math.max(vertical ? 0.6 : 0.45, Math.min(1, (width - 20) / placed.width));
  const marker = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, svg("path", { class: "head", d: "M0 0l8 4-8 4z" }));
  return svg(
    "svg",
    { width: placed.width * scale, height: placed.height * scale, viewBox: `0 0 ${placed.width} ${placed.height}`, "data-scale": scale, role: "group", "aria-label": "Queries and exchanges" },
    svg("defs", {}, marker),
    ...placed.paths.map((points) => svg("path", { class: "edge", d: curve(points, vertical), "marker-end": "url(#arrow)" })),
    ...nodes.map((one) => (one.kind === "query" ? queryNode(one, placed.at.get(one.id)) : exchangeNode(one, placed.at.get(one.id)))),
  );
}

function queryNode(one, [x, y]) {
  const [wide, high] = SIZE.query;
  return svg(
    "a",
    { class: "node", href: `#/query/${encodeURIComponent(one.uid)}`, "data-query": one.uid, transform: `translate(${x} ${y})` },
    svg("title", {}, one.uid),
    svg("rect", { class: "box", width: wide, height: high, rx: 6 }),
    svg("rect", { class: "stripe", width: 4, height: high - 12, x: 6, y: 6, rx: 2 }),
    svg("text", { class: "name", x: 18, y: 21 }, shortened(one.uid, 23)),
    svg("path", { class: "glyph", transform: "translate(18 30)", "fill-rule": "evenodd", d: shape("") }),
    svg("text", { class: "state", x: 35, y: 40 }, ""),
  );
}

function exchangeNode(one, [x, y]) {
  const [wide, high] = SIZE.exchange;
  return svg(
    "g",
    { class: `exchange${one.sealed ? " sealed" : ""}`, transform: `translate(${x} ${y})`, role: "img", "aria-label": `exchange ${one.name}${one.sealed ? ", sealed" : ""}` },
    svg("title", {}, `exchange ${one.name}${one.sealed ? ", sealed" : ""}`),
    svg("rect", { class: "box", width: wide, height: high, rx: high / 2 }),
    svg("text", { x: wide / 2, y: 17, "text-anchor": "middle" }, shortened(one.name, one.sealed ? 11 : 18) + (one.sealed ? " · sealed" : "")),
  );
}

function curve(points, vertical) {
  let path = `M${points[0][0]} ${points[0][1]}`;
  for (let place = 1; place < points.length; place += 1) {
    const [[x1, y1], [x2, y2]] = [points[place - 1], points[place]];
    path += vertical ? `C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}` : `C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`;
  }
  return path;
}

// Places nodes: each part of the graph that hangs together for itself, one below the other; single nodes in rows at the end.
export function layout(nodes, edges, vertical, width) {
  const linked = new Set(edges.flat());
  const at = new Map();
  const paths = [];
  let [wide, high] = [0, 4];
  for (const [own, between] of components(nodes.filter((one) => linked.has(one.id)), edges)) {
    const part = positions(...layers(own, between), vertical);
    for (const [id, [x, y]] of part.at) at.set(id, [x + 4, y + high]);
    paths.push(...part.paths.map((points) => points.map(([x, y]) => [x + 4, y + high])));
    wide = Math.max(wide, part.width + 8);
    high += part.height + GAP[1];
  }
  const alone = nodes.filter((one) => !linked.has(one.id));
  const [pitch, row] = [SIZE.query[0] + GAP[1], SIZE.query[1] + GAP[1]];
  const columns = Math.max(1, Math.floor((Math.max(wide, width) + GAP[1]) / pitch));
  alone.forEach((one, number) => at.set(one.id, [4 + (number % columns) * pitch, high + Math.floor(number / columns) * row]));
  if (alone.length) {
    wide = Math.max(wide, Math.min(columns, alone.length) * pitch);
    high += Math.ceil(alone.length / columns) * row;
  }
  return { at, paths, width: wide, height: high };
}

// The parts of the graph that hang together, each with its edges, in the order of their first nodes.
function components(nodes, edges) {
  const parent = new Map(nodes.map((one) => [one.id, one.id]));
  const root = (id) => {
    while (parent.get(id) !== id) {
      parent.set(id, parent.get(parent.get(id)));
      id = parent.get(id);
    }
    return id;
  };
  for (const [from, to] of edges) parent.set(root(from), root(to));
  const found = new Map();
  for (const one of nodes) {
    if (!found.has(root(one.id))) found.set(root(one.id), [[], []]);
    found.get(root(one.id))[0].push(one);
  }
  for (const edge of edges) found.get(root(edge[0]))[1].push(edge);
  return found.values();
}

// Layers by the longest way from a root, each ordered by the middle of its neighbours; and edges as chains through them.
function layers(nodes, edges) {
  const found = [];
  const layerOf = depths(nodes, edges);
  const kinds = new Map(nodes.map((one) => [one.id, one.kind]));
  for (const one of nodes) (found[layerOf.get(one.id)] ||= []).push(one.id);
  // An edge over several layers bends in each, so that it does not pass through a node.
  const chains = edges.map(([from, to], number) => {
    const chain = [from];
    for (let layer = layerOf.get(from) + 1; layer < layerOf.get(to); layer += 1) {
      const bend = `b:${number}:${layer}`;
      kinds.set(bend, "bend");
      found[layer].push(bend);
      chain.push(bend);
    }
    return [...chain, to];
  });
  const near = new Map([...kinds.keys()].map((id) => [id, []]));
  for (const chain of chains) {
    for (let place = 1; place < chain.length; place += 1) {
      near.get(chain[place - 1]).push(chain[place]);
      near.get(chain[place]).push(chain[place - 1]);
    }
  }
  const place = new Map();
  const number = (layer) => layer.forEach((id, row) => place.set(id, row - (layer.length - 1) / 2));
  found.forEach(number);
  for (let sweep = 0; sweep < 6; sweep += 1) {
    for (const layer of sweep % 2 ? [...found].reverse() : found) {
      const weights = new Map(layer.map((id) => [id, near.get(id).reduce((total, other) => total + place.get(other), 0) / near.get(id).length]));
      layer.sort((a, b) => weights.get(a) - weights.get(b));
      number(layer);
    }
  }
  return [found, chains, kinds];
}

function depths(nodes, edges) {
  const depth = new Map(nodes.map((one) => [one.id, 0]));
  // As many rounds as the longest way has edges; a circle, which no job has, ends with their number.
  for (let round = 0, changed = true; changed && round <= nodes.length; round += 1) {
    changed = false;
    for (const [from, to] of edges) {
      if (depth.get(to) < depth.get(from) + 1 && round < nodes.length) {
        depth.set(to, depth.get(from) + 1);
        changed = true;
      }
    }
  }
  return depth;
}

function positions(layers, chains, kinds, vertical) {
  const along = vertical ? 1 : 0; // the axis from the sources to the sinks
  const size = (id) => SIZE[kinds.get(id)];
  // Queries and exchanges have the same room, so that a chain of them is a straight line.
  const room = (id) => (kinds.get(id) === "bend" ? 8 : SIZE.query[1 - along]) + GAP[1];
  const length = (layer) => layer.reduce((total, id) => total + room(id), -GAP[1]);
  const longest = Math.max(...layers.map(length));
  const at = new Map();
  const across = new Map(); // where an edge that passes a layer enters and leaves it
  let front = 0;
  for (const layer of layers) {
    const deep = Math.max(...layer.map((id) => size(id)[along]));
    let side = (longest - length(layer)) / 2;
    for (const id of layer) {
      const middle = side + (room(id) - GAP[1]) / 2;
      if (kinds.get(id) === "bend") across.set(id, [middle, front, front + deep]);
      const [ahead, beside] = [front + (deep - size(id)[along]) / 2, middle - size(id)[1 - along] / 2];
      at.set(id, vertical ? [beside, ahead] : [ahead, beside]);
      side += room(id);
    }
    front += deep + GAP[0];
  }
  front -= GAP[0];
  const paths = chains.map((chain) =>
    chain.flatMap((id, place) => {
      if (across.has(id)) {
        const [middle, begin, end] = across.get(id);
        return [begin, end].map((one) => (vertical ? [middle, one] : [one, middle]));
      }
      const [[x, y], [w, h], out] = [at.get(id), size(id), place === 0 ? 1 : 0];
      return [vertical ? [x + w / 2, y + h * out] : [x + w * out, y + h / 2]];
    }),
  );
  return { at, paths, width: vertical ? longest : front, height: vertical ? front : longest };
}

function described(page) {
  const { operators, exchanges } = page.graph;
  const items = Object.entries(operators).map(([uid, own]) => {
    const named = (one) => `${one.uid || one.about || one.format} (${one.format})`;
    return el("li", {}, el("a", { href: `#/query/${encodeURIComponent(uid)}` }, uid), ` reads ${own.sources.map(named).join(", ") || "nothing known"}; writes ${own.sinks.map(named).join(", ") || "nothing known"}`);
  });
  const between = exchanges.map((one) => el("li", {}, `exchange ${one.name}${one.sealed ? ", sealed" : ""}: from ${one.writers.join(", ") || "nobody"} to ${one.readers.join(", ") || "nobody"}`));
  return el("ul", {}, ...items, ...between);
}
