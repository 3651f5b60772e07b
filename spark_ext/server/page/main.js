// The page: asks for a token, follows a job, and shows one view at a time.

import { create as channels, title as channelsTitle } from "./channels.js";
import { announce, el, renew, say } from "./dom.js";
import { create as epochs, title as epochsTitle } from "./epochs.js";
import { duration, moment } from "./format.js";
import { create as graph, title as graphTitle } from "./graph.js";
import { create as incidents, title as incidentsTitle } from "./incidents.js";
import { create as overview, title as overviewTitle } from "./overview.js";
import { create as query, title as queryTitle } from "./query.js";
import { Session, embedded } from "./session.js";
import { badge } from "./states.js";
import { Store } from "./store.js";
import { follow } from "./stream.js";
import { create as timeline, title as timelineTitle } from "./timeline.js";

const VIEWS = {
  overview: [overviewTitle, overview],
  graph: [graphTitle, graph],
  timeline: [timelineTitle, timeline],
  epochs: [epochsTitle, epochs],
  channels: [channelsTitle, channels],
  incidents: [incidentsTitle, incidents],
  query: [queryTitle, query],
};

const session = new Session(embedded());
const store = new Store();
const content = document.getElementById("content");
const nav = document.getElementById("views");
const place = document.getElementById("job");
const connection = document.getElementById("connection");
let shown = null;
let following = null;
let known = null; // what a screen reader has announced: the state, and the newest incident

function main() {
  nav.append(
    ...Object.entries(VIEWS)
      .filter(([name]) => name !== "query")
      .map(([name, [title]]) => el("a", { href: `#/${name}`, "data-view": name }, title, name === "incidents" ? el("span", { class: "count" }) : null)),
  );
  window.addEventListener("hashchange", () => route(true));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address says which view is shown
    content.focus();
  });
  store.listen(update);
  if (!session.live) {
    store.set(session.data.page);
    connection.append(el("span", { class: "state" }, `Report of ${moment(session.data.page.at)}`));
  } else if (session.token) connect();
  else login("");
}

function route(moved) {
  if (!store.document) return;
  const [, name, ...rest] = location.hash.split("/");
  const view = Object.hasOwn(VIEWS, name || "") ? name : "overview";
  const [title, create] = VIEWS[view];
  shown = create(session, store, rest.map(unescaped));
  content.replaceChildren(shown.node);
  shown.update(store.document);
  for (const link of nav.children) {
    const here = link.dataset.view === (view === "query" ? "overview" : view);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} – ${store.document.job.name} – spark-ext`;
  if (moved) {
    window.scrollTo(0, 0);
    content.querySelector("h1").focus({ preventScroll: true });
  }
}

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function update(page) {
  const entered = session.live && nav.hidden;
  nav.hidden = false;
  say(nav.querySelector(".count"), page.incidents.length ? String(page.incidents.length) : "");
  heading(page);
  if (shown === null) route(entered);
  else shown.update(page);
  const now = { state: page.job.state, incident: page.incidents[0]?.id };
  if (known !== null && known.state !== now.state) announce(`The job is ${now.state}.`);
  else if (known !== null && known.incident !== now.incident && now.incident) announce(`New incident: ${page.incidents[0].what}`);
  known = now;
}

function heading(page) {
  const { job } = page;
  const others = session.names || [];
  renew(place, [job.name, job.state, job.directory, others], () => [
    others.length > 1
      ? el("select", { "aria-label": "Job", onchange: (event) => change(event.target.value) }, ...others.map((one) => el("option", { value: one.job_id, selected: one.job_id === session.job }, one.job)))
      : el("b", { title: job.directory }, job.name),
    badge(job.state),
  ]);
}

function change(job) {
  session.job = job;
  known = null;
  shown = null;
  store.document = null;
  location.hash = "#/overview";
  connect();
}

async function connect() {
  if (following) following.abort();
  const own = new AbortController();
  following = own;
  try {
    session.names = await session.jobs();
    if (!session.names.length) throw new Error("No job has been started in the state directories of this server.");
    if (!session.names.some((one) => one.job_id === session.job)) session.job = session.names[0].job_id;
    await follow(`${session.path()}/page/stream`, session.token, { signal: own.signal, heard, state: status });
  } catch (problem) {
    if (own.signal.aborted) return;
    if (problem.status === 401) {
      session.leave();
      login("This token is not valid.");
    } else if (problem.status === undefined && session.token && !store.document) {
      status("waiting", 3000);
      content.replaceChildren(el("p", { class: "notice" }, problem instanceof TypeError ? "The server cannot be reached." : problem.message));
      setTimeout(() => own === following && connect(), 3000);
    } else login(problem.message);
  }
}

function heard(event, data) {
  if (event === "caller") session.scopes = new Set(data.scopes);
  else if (event === "page") store.set(data);
  else if (event === "change" && store.document) store.change(data);
}

function status(name, wait) {
  const texts = { live: "Live", connecting: "Connecting", waiting: `Not connected; retrying in ${duration(wait)}` };
  connection.className = `connection ${name}`;
  renew(connection, [name, texts[name]], () => [
    el("span", { class: "state" }, texts[name]),
    el("button", { type: "button", onclick: leave }, "Leave"),
  ]);
  if (name === "waiting") announce("The connection to the server is lost.");
}

function leave() {
  following.abort();
  session.leave();
  login("");
}

function login(message) {
  if (following) following.abort();
  store.document = null;
  shown = null;
  known = null;
  nav.hidden = true;
  place.replaceChildren();
  place.madeFrom = null;
  connection.replaceChildren();
  connection.madeFrom = null;
  document.title = "spark-ext";
  const token = el("input", { id: "token", type: "password", required: true, autocomplete: "off", spellcheck: "false", "aria-describedby": "token-about" });
  const keep = el("input", { id: "keep", type: "checkbox" });
  const problem = el("p", { class: "notice bad", role: "alert", hidden: !message }, message);
  content.replaceChildren(
    el(
      "form",
      {
        class: "login",
        onsubmit(event) {
          event.preventDefault();
          session.enter(token.value.trim(), keep.checked);
          content.replaceChildren(el("p", { class: "empty" }, "Reading the ledger."));
          connect();
        },
      },
      el("h1", {}, "Open a job"),
      problem,
      el("label", { for: "token" }, "Token"),
      token,
      el("p", { id: "token-about", class: "said" }, "As ", el("code", {}, "spark-ext serve"), " or ", el("code", {}, "spark-ext token create"), " printed it. It stays in this tab, and is never part of an address."),
      el("label", { class: "check" }, keep, " Keep it until this tab is closed"),
      el("button", { type: "submit", class: "primary" }, "Open"),
    ),
  );
  token.focus();
}

main();
