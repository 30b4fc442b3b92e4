// The charts of the report and of the service's page have this in common: colours, numbers as text, axes. uPlot draws.
"use strict";
const drawing = (() => {
  const NAMED = 7; // so many curves have colours of their own; more form a gradient

  // ---- colours ----

  const probe = document.createElement("span"); // a canvas does not know variables; light-dark() is resolved only in a colour
  probe.hidden = true;
  let resolved = new Map();
  const css = (name) => {
    if (!resolved.has(name)) {
      document.body.append(probe);
      probe.style.color = name.startsWith("--") ? `var(${name})` : name;
      resolved.set(name, getComputedStyle(probe).color);
    }
    return resolved.get(name);
  };
  const colour = (place, count) =>
    css(count <= NAMED ? `--c${place}` : `hsl(${Math.round(265 - (215 * place) / (count - 1))} 65% 52%)`);
  const forget = () => (resolved = new Map());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
  const phase = (word) => css(PHASES[word] || "--p-other");
  const PHASES = {};
  for (const name of ["starting", "working", "waiting", "evaluating", "parked", "leaving", "compiling"])
    PHASES[name] = `--p-${name}`;
  PHASES["alive, phase not recorded"] = "--p-alive";

  // ---- numbers as text ----

  const significant = (value, digits) =>
    Math.abs(value) >= 1e4
      ? Math.round(value).toLocaleString("en")
      : String(Number(value.toPrecision(digits)));
  const short = (value) => {
    for (const [size, word] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= size) return Number((value / size).toPrecision(4)) + word;
    return String(Number(value.toPrecision(4)));
  };
  const bytes = (value) => {
    for (const [power, word] of [[40, "TiB"], [30, "GiB"], [20, "MiB"], [10, "KiB"]])
      if (Math.abs(value) >= 2 ** power) return Number((value / 2 ** power).toPrecision(3)) + " " + word;
    return value + " B";
  };
  const clock = (value, step = 1) => {
    const two = (number) => String(Math.floor(number)).padStart(2, "0");
    if (step < 1) return Number(value.toFixed(3)) + " s";
    const [hours, minutes, seconds] = [Math.floor(value / 3600), (value / 60) % 60, value % 60];
    if (hours >= 72) return Number((hours / 24 + (minutes % 60) / 1440).toFixed(1)) + " d";
    return hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${Math.floor(minutes)}:${two(seconds)}`;
  };
  const tick = (value, step) =>
    step >= 86400 ? value / 86400 + " d" : step >= 3600 ? value / 3600 + " h"
      : step < 60 ? clock(value, step) : value < 3600 ? value / 60 + " min"
      : `${Math.floor(value / 3600)} h ${(value / 60) % 60 || ""}`;
  const onAxis = (form) => (form === "bytes" ? bytes : short);
  const inFull = (form, value) =>
    form === "bytes" ? bytes(value) : form === "cores" ? value.toFixed(2) + " cores" : significant(value, 5);
  const xInFull = (axis, value) =>
    axis === "time" ? clock(value, value < 180 ? 0.1 : 1) : Math.round(value).toLocaleString("en") + " " + axis;
  const STEPS = {
    staleness: [1, 2, 5, 10, 20, 50],
    time: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600]
      .concat([43200, 86400, 172800, 432000, 864000, 1728000]),
    bytes: Array.from({ length: 45 }, (_, power) => 2 ** power),
  };

  // ---- axes ----

  const axes = (axis, form, width = 58) => [
    {
      stroke: () => css("--quiet"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false },
      space: 70, size: 32, incrs: STEPS[axis],
      values: (_, splits, _axis, _space, step) =>
        splits.map((value) => (value === null ? "" : axis === "time" ? tick(value, step) : short(value))),
    },
    {
      stroke: () => css("--quiet"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false },
      size: width, incrs: STEPS[form],
      values: (u, splits) => {
        const isNice = (value) => u.scales.y.distr !== 3 || [1, 2, 5].includes(Number(value.toExponential(3).split("e")[0]));
        const all = splits.filter((value) => value !== null && isNice(value)).length < 2;
        return splits.map((value) => (value !== null && (all || isNice(value)) ? onAxis(form)(value) : ""));
      },
    },
  ];

  const range = (form, isLog) => (_, low, high) => {
    if (low === null || high === null) return isLog ? [0.1, 1] : [0, 1];
    if (isLog) return [low / (high / low) ** 0.06 / 1.02, high * (high / low) ** 0.06 * 1.02];
    if (form !== "number") return [0, high > 0 ? high * 1.08 : 1];
    const margin = 0.07 * (high - low || Math.abs(high) || 1);
    return [low >= 0 && low < margin ? 0 : low - margin, high + margin];
  };

  return { NAMED, axes, bytes, clock, colour, css, forget, inFull, phase, range, xInFull };
})();
