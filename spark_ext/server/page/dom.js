// Elements, made without any HTML: what is shown is text that anybody may have written.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes, listeners (`onclick`), and children: elements, or what is shown as text.
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// Sets the text of an element, if it is another one: a screen reader and the layout notice each assignment.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Replaces the children of a node only if what they are made from has changed.
export function renew(node, key, make) {
  const text = JSON.stringify(key);
  if (node.madeFrom === text) return;
  node.madeFrom = text;
  node.replaceChildren(...[make()].flat());
}

let announcer = null;

// Says something to a screen reader, once: changes of state and answers, no figures.
export function announce(text) {
  announcer = announcer || document.getElementById("announcer");
  announcer.textContent = text;
}
