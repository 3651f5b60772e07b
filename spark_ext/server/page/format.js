// Numbers, durations and times as the command line shows them; times in UTC.

const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export function number(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(Math.round(value));
}

export function compact(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 10000 ? NUMBER.format(Math.round(value * 10) / 10) : COMPACT.format(value);
}

export function counted(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

// A duration from ms: `120 ms`, `3.5 s`, `1:02 min`, `1:00:05`, `3 d 4 h`.
export function duration(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const [minutes, hours] = [Math.floor(whole / 60), Math.floor(whole / 3600)];
  if (hours < 1) return `${minutes}:${two(whole % 60)} min`;
  if (hours < 24) return `${hours}:${two(minutes % 60)}:${two(whole % 60)}`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const STALE = 10000;

// How long ago a time was, without fractions of a second: `40 s`, `1:02 min`.
export function ago(ms) {
  return ms < 59500 ? `${Math.round(ms / 1000)} s` : duration(ms);
}

// How far something is behind: `1,200`, or `1,200, 40 s ago` where that is not known to be true any more.
export function lagText(rows, at, now, form = number) {
  if (rows === null || rows === undefined) return "–";
  const age = at === null || at === undefined ? 0 : now - at;
  return age > STALE ? `${form(rows)}, ${ago(age)} ago` : form(rows);
}

// A number of bytes: `812 B`, `1.5 MiB`.
export function size(bytes) {
  const power = Math.min(3, bytes < 1 ? 0 : Math.floor(Math.log2(bytes) / 10));
  return power ? `${(bytes / 1024 ** power).toFixed(1)} ${["B", "KiB", "MiB", "GiB"][power]}` : `${bytes} B`;
}

// An inbox: `2 accepting; 1.5 MiB of 1.0 GiB, oldest 40 s; 1,200 events, p99 4 ms; 2 rejected`.
export function inboxText(inbox) {
  const states = Object.entries(inbox.gateways).filter(([, many]) => many).map(([state, many]) => `${number(many)} ${state}`);
  const oldest = inbox.oldest_s === null ? "" : `, oldest ${ago(inbox.oldest_s * 1000)}`;
  const leftOut = ["repeat", "conflict"].filter((one) => inbox[`${one}s`]).map((one) => counted(inbox[`${one}s`], one));
  const parts = [states.join(", ") || "no gateway", `${size(inbox.bytes)} of ${size(inbox.max_bytes)}${oldest}`];
  const soon = inbox.ack_p99_ms === null ? [] : [`p99 ${number(inbox.ack_p99_ms)} ms`];
  parts.push([counted(inbox.acknowledged, "event"), ...leftOut, ...soon].join(", "));
  const rejected = Object.values(inbox.rejected).reduce((sum, many) => sum + many, 0);
  return [...parts, ...(rejected ? [`${number(rejected)} rejected`] : [])].join("; ");
}

export function two(value) {
  return String(value).padStart(2, "0");
}

// A time from ms since 1970: `2026-11-25 20:45:01 UTC`.
export function moment(ms) {
  return ms === null || ms === undefined ? "–" : `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

// The time alone if the day is that of `beside`, else with the day.
export function brief(ms, beside) {
  if (ms === null || ms === undefined) return "–";
  const [text, other] = [new Date(ms).toISOString(), new Date(beside).toISOString()];
  return text.slice(0, 10) === other.slice(0, 10) ? text.slice(11, 19) : text.slice(5, 16).replace("T", " ");
}

export function percent(share) {
  const text = (share * 100).toFixed(3);
  return `${text.replace(/\.?0+$/, "")} %`;
}

export function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

// Round values that divide a range, about so many.
export function ticks(low, high, about) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

const STEPS = [
  10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 15000, 30000, 60000, 120000, 300000, 600000, 900000, 1800000, 3600000, 7200000,
  14400000, 21600000, 43200000, 86400000, 172800000, 604800000, 1209600000, 2592000000, 7776000000, 31536000000,
];

// Round times that divide a period, about so many; each with its text.
export function timeTicks(low, high, about) {
  const raw = Math.max(1, (high - low) / Math.max(1, about));
  const step = STEPS.find((one) => one >= raw) || STEPS[STEPS.length - 1];
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
    const text = new Date(value).toISOString();
    const label = step < 1000 ? text.slice(14, 23) : step < 60000 ? text.slice(11, 19) : step < 86400000 ? text.slice(11, 16) : text.slice(5, 10);
    found.push([value, step < 86400000 && text.slice(11, 19) === "00:00:00" && step >= 60000 ? text.slice(5, 10) : label]);
  }
  return found;
}
