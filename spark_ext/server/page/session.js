// Where the page gets its data: from a server, with a token that the user enters; or, in a report, from the file.

import { ask } from "./stream.js";

const KEPT = "spark-ext-token";

export class Session {
  constructor(data) {
    this.data = data;
    this.live = data === null;
    this.token = this.live ? stored() : null;
    this.scopes = new Set();
    this.job = null;
  }

  // Keeps the token in memory, or until the tab is closed; never in an address.
  enter(token, keep) {
    this.token = token;
    try {
      if (keep) sessionStorage.setItem(KEPT, token);
      else sessionStorage.removeItem(KEPT);
    } catch {
      // A browser without storage: the token stays in memory.
    }
  }

  leave() {
    this.enter(null, false);
    this.scopes = new Set();
  }

  may(scope) {
    return this.live && this.scopes.has(scope);
  }

  path() {
    return `/v1/jobs/${encodeURIComponent(this.job)}`;
  }

  ask(path, options) {
    return ask(path, this.token, options);
  }

  async jobs() {
    return (await (await this.ask("/v1/jobs")).json()).jobs;
  }

  async series(query, since) {
    const wanted = new URLSearchParams();
    if (query) wanted.set("query", query);
    if (since !== null) wanted.set("since", String(Math.max(0, Math.round(since))));
    return (await this.ask(`${this.path()}/page/series?${wanted}`)).json();
  }

  async incident(id) {
    if (this.live) return (await this.ask(`${this.path()}/page/incidents/${encodeURIComponent(id)}`)).json();
    if (!Object.hasOwn(this.data.incidents, id)) throw new Error("The report has the evidence of the newest incidents only.");
    return this.data.incidents[id];
  }
}

function stored() {
  try {
    return sessionStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

// The data of a report; null in the page of a server.
export function embedded() {
  const found = document.getElementById("data");
  return found === null ? null : JSON.parse(found.textContent);
}
