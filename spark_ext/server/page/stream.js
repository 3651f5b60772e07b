// Server-sent events by fetch: an EventSource cannot send the header with the token, and a token is never in an address.

const SILENT_MS = 40000; // the server sends something every 15 s
const LONGEST_MS = 15000;

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || `the server answers ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

// Sends a request with the token. Throws Refused for an answer that is no success.
export async function ask(path, token, options = {}) {
  const headers = { ...options.headers, Authorization: `Bearer ${token}` };
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

// Follows a stream until the signal is aborted or the token is refused; connects again after any other end.
export async function follow(path, token, { signal, heard, state }) {
  let failures = 0;
  while (!signal.aborted) {
    state("connecting");
    const own = new AbortController();
    const stop = () => own.abort();
    signal.addEventListener("abort", stop);
    let watch = setTimeout(stop, SILENT_MS);
    try {
      const answer = await ask(path, token, { signal: own.signal });
      state("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parse = parser(heard);
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        failures = 0;
        clearTimeout(watch);
        watch = setTimeout(stop, SILENT_MS);
        parse(value);
      }
    } catch (problem) {
      if (problem instanceof Refused && problem.status >= 400 && problem.status < 429) throw problem;
    } finally {
      clearTimeout(watch);
      signal.removeEventListener("abort", stop);
    }
    if (signal.aborted) return;
    failures += 1;
    const wait = Math.min(LONGEST_MS, 500 * 2 ** failures) * (0.5 + Math.random() / 2);
    state("waiting", wait);
    await pause(wait, signal);
  }
}

// Feeds a parser of server-sent events, which hands on each event with its data.
export function parser(heard) {
  let rest = "";
  return (text) => {
    rest += text;
    for (;;) {
      const end = rest.indexOf("\n\n");
      if (end < 0) return;
      const message = rest.slice(0, end);
      rest = rest.slice(end + 2);
      let [event, data] = ["message", ""];
      for (const line of message.split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) heard(event, JSON.parse(data));
    }
  };
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
  });
}
