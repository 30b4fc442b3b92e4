// Numbers for people.

export const number = (value) =>
  value === null || value === undefined
    ? ""
    : Math.abs(value) >= 10000
      ? Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value)
      : String(Number(value.toPrecision(4)));

export const percent = (part) => `${Math.floor(100 * part)} %`;

export function left(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.round(seconds);
  const two = (part) => String(part).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

export function age(at) {
  const seconds = Math.max(0, Date.now() / 1000 - at);
  const [size, unit] = seconds < 60 ? [1, "s"] : seconds < 3600 ? [60, "min"] : seconds < 86400 ? [3600, "h"] : [86400, "days"];
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

export const cores = (row) =>
  row.cores.length ? row.cores.join(", ") : `${row.cpus}${row.state === "queued" ? " wanted" : ""}`;
