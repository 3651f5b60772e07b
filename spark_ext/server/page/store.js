// What is known of the job, and who wants to hear of changes: once a frame, however many patches come.

export class Store {
  constructor() {
    this.document = null;
    this.receivedAt = 0;
    this.listeners = new Set();
    this.due = false;
  }

  set(page) {
    this.document = bare({ ...page, queries: Object.fromEntries(page.queries.map((query) => [query.uid, query])) });
    this.changed();
  }

  // A patch as spark_ext/views/page/patch.py makes it.
  change(patch) {
    for (const path of patch.gone) delete parent(this.document, path)[path[path.length - 1]];
    for (const [path, value] of patch.set) parent(this.document, path)[path[path.length - 1]] = bare(value);
    this.changed();
  }

  changed() {
    this.receivedAt = Date.now();
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      for (const listener of this.listeners) listener(this.document);
    });
  }

  // The server's time, as the document was made at a time of the server's clock.
  now() {
    const page = this.document;
    const ended = page.job.alive === false;
    return ended ? page.timeline.until : page.at + (Date.now() - this.receivedAt);
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

// Anybody may ask for a query named `constructor`: objects have no names but their own.
function bare(found) {
  if (found === null || typeof found !== "object") return found;
  for (const one of Object.values(found)) bare(one);
  return Array.isArray(found) ? found : Object.setPrototypeOf(found, null);
}

function parent(found, path) {
  for (const name of path.slice(0, -1)) found = found[name];
  return found;
}
