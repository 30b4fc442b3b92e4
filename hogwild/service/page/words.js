// Numbers, times and sizes for people.

const isMissing = (value) => value === null || value === undefined;

export const number = (value) =>
  isMissing(value)
    ? ""
    : value !== 0 && Math.abs(value) < 0.001
      ? value.toExponential(2).replace(/\.?0+e/, "e")
      : Math.abs(value) >= 10000
        ? Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value).replace("K", "k")
        : String(Number(value.toPrecision(4)));

export const count = (value, one, many = `${one}s`) => `${value.toLocaleString("en")} ${value === 1 ? one : many}`;

export const percent = (part) => (isMissing(part) ? "" : `${Math.floor(100 * part)} %`);

// 4 min 47 s
export function duration(seconds) {
  if (isMissing(seconds)) return "";
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  if (minutes) return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  return `${whole} s`;
}

// 4 min: a text that does not change all the time
export function age(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${5 * Math.floor(Math.max(0, seconds) / 5)} s`;
}

export const ago = (at, now) => (isMissing(at) ? "" : now - at < 5 ? "just now" : `${age(now - at)} ago`);

// 18:15:42, with the day if that is not today
export function clock(at) {
  const when = new Date(1000 * at);
  const time = when.toLocaleTimeString("en-GB");
  return when.toDateString() === new Date().toDateString() ? time : `${when.toLocaleDateString("en-CA")} ${time}`;
}

export const bytes = (value) => (isMissing(value) ? "" : charts.bytes(value));

// [0, 1, 2, 5] is 0–2, 5
export function ranges(numbers) {
  const found = [];
  for (const one of [...numbers].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[1] === one - 1) last[1] = one;
    else found.push([one, one]);
  }
  return found.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ");
}

export const cores = (row) =>
  row.cores.length ? `CPU ${ranges(row.cores)}` : row.state === "queued" ? `${row.cpus} wanted` : "";

// The name of a metric: samples_per_s is "samples per second". The words are those of the terminal and the report.
const NAMES = await (await fetch("page/words.json")).json();
export const inWords = (name) => (Object.hasOwn(NAMES, name) ? NAMES[name] : name.replaceAll("_", " "));

export const best = (row) => (row.best ? `${inWords(row.best.metric)} ${number(row.best.value)}` : "");

// For sorting: the smaller, the better is the job's best value; null without one.
export const rank = ({ best: found }) => (isMissing(found?.value) ? null : found.higher_is_better ? -found.value : found.value);

export const shown = (value) =>
  isMissing(value) ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value);
