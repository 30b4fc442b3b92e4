// Curves of one job or of several over each other: which metrics, over what, how smooth. uPlot draws.
import { html, useEffect, useMemo, useRef } from "/page/vendor/preact/htm-preact.module.js";
import { useKept, useScheme } from "/page/hooks.js";
import { inWords, number } from "/page/words.js";

const HEIGHT = 210;
const { NAMED } = drawing; // further curves have the same colours, and dashes
const AXES = { time: "time", samples: "samples", updates: "updates" };
const OF_TRAINING = ["loss", "samples_per_s", "lr"];
const SMOOTH = [0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99];

export const colorOf = (place) => `c${place % NAMED}`;

// runs: [{id, label, curves: {train, evaluations}}]; only one: training and validation share a panel.
export function Curves({ runs }) {
  const [view, setView] = useKept("curves", { x: "updates", smooth: 3, isLog: false, hidden: ["lr"] });
  const isDark = useScheme();
  const panels = useMemo(() => panelsOf(runs, view), [...runs.map((run) => run.curves), runs.length, view]);
  const change = (changes) => setView({ ...view, ...changes });
  const flip = (name) =>
    change({ hidden: view.hidden.includes(name) ? view.hidden.filter((one) => one !== name) : [...view.hidden, name] });
  if (!panels.length) return html`<p class="quiet">No curves yet: the first point comes a moment after training has begun.</p>`;
  return html`
    <div class="controls" role="group" aria-label="how curves are drawn">
      <span class="choice" role="group" aria-label="horizontal axis">
        ${Object.entries(AXES).map(([x, words]) => html`<button aria-pressed=${view.x === x} onClick=${() => change({ x })}>${words}</button>`)}
      </span>
      <label>smooth
        <input type="range" min="0" max=${SMOOTH.length - 1} value=${view.smooth} aria-valuetext=${SMOOTH[view.smooth]}
          onInput=${(event) => change({ smooth: Number(event.currentTarget.value) })} />
      </label>
      <label><input type="checkbox" checked=${view.isLog} onChange=${() => change({ isLog: !view.isLog })} /> log axis</label>
      <span class="chips" role="group" aria-label="metrics">
        ${panels.map(({ name, title }) => html`<button class="chip" aria-pressed=${!view.hidden.includes(name)} onClick=${() => flip(name)}>${title}</button>`)}
      </span>
    </div>
    <div class="charts">
      ${panels
        .filter(({ name }) => !view.hidden.includes(name))
        .map((panel) => html`<${Chart} key=${panel.name} panel=${panel} x=${view.x} isLog=${view.isLog} isDark=${isDark} />`)}
    </div>
  `;
}

function panelsOf(runs, { x, smooth }) {
  const panels = new Map();
  const add = (name, title, series) => {
    if (!series.values.some((value) => value !== null)) return;
    if (!panels.has(name)) panels.set(name, { name, title, series: [] });
    panels.get(name).series.push(series);
  };
  const isOne = runs.length === 1;
  runs.forEach(({ label, curves }, place) => {
    if (!curves) return;
    const { train, evaluations } = curves;
    const began = Math.min(train.time[0] ?? Infinity, evaluations[0]?.time ?? Infinity);
    const at = (value) => (x === "time" ? value - began : value);
    const looks = { css: colorOf(place), isDashed: place >= NAMED };
    for (const name of OF_TRAINING) {
      const title = name === "loss" && !isOne ? "training loss" : inWords(name);
      const [xs, values] = rising(train[x].map(at), train[name]);
      const mean = name === "lr" ? values : smoothed(values, SMOOTH[smooth]);
      const words = isOne ? (name === "loss" ? "training" : inWords(name)) : label;
      if (mean !== values && smooth) add(name, title, { ...looks, label: `${words}, raw`, xs, values, isFaint: true });
      add(name, title, { ...looks, label: words, xs, values: mean });
    }
    for (const name of new Set(evaluations.flatMap(({ metrics }) => Object.keys(metrics)))) {
      const [xs, values] = rising(evaluations.map((one) => at(one[x])), evaluations.map(({ metrics }) => metrics[name] ?? null));
      const isShared = isOne && name === "loss";
      const series = { ...looks, label: isOne ? "validation" : label, xs, values, hasPoints: true };
      if (isShared) add("loss", "loss", { ...series, css: "c1" });
      else add(`validation ${name}`, `validation ${inWords(name)}`, isOne ? { ...series, css: "c1" } : series);
    }
  });
  return [...panels.values()].sort((one, other) => order(one) - order(other));
}

const order = ({ name }) => (name === "loss" ? 0 : name.startsWith("validation") ? 1 : 2);

// Leave out what a return to a checkpoint made undone: uPlot wants x to rise.
function rising(xs, values) {
  const found = [[], []];
  xs.forEach((x, place) => {
    if (x === null) return;
    while (found[0].length && found[0].at(-1) >= x) found.forEach((column) => column.pop());
    found[0].push(x);
    found[1].push(values[place] ?? null);
  });
  return found;
}

// Exponential mean, corrected for its start.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + 1 - weight;
    return sum / total;
  });
}

function Chart({ panel, x, isLog, isDark }) {
  const place = useRef(null);
  const chart = useRef(null);
  const { series, title } = panel;
  const data = useMemo(
    () => uPlot.join(series.map(({ xs, values }) => [xs, isLog ? values.map((value) => (value > 0 ? value : null)) : values])),
    [series, isLog],
  );
  const structure = [x, isLog, isDark, ...series.map((one) => one.label)].join("\n");
  useEffect(() => {
    chart.current = new uPlot(options(place.current, series, x, isLog), data, place.current);
    const resize = new ResizeObserver(() => chart.current.setSize(sizeOf(place.current)));
    resize.observe(place.current);
    return () => {
      resize.disconnect();
      chart.current.destroy();
      chart.current = null;
    };
  }, [structure]);
  useEffect(() => {
    const { min, max } = chart.current.scales.x;
    const before = chart.current.data[0];
    const isZoomed = before.length > 1 && (min > before[0] || max < before.at(-1));
    if (chart.current.data === data) return;
    chart.current.setData(data, !isZoomed);
    if (isZoomed) chart.current.redraw();
  }, [data]);
  const latest = series.filter((one) => !one.isFaint).map(({ label, values }) => `${label} ${number(values.findLast((value) => value !== null))}`);
  return html`
    <figure>
      <figcaption>${title}</figcaption>
      <div class="plot" role="img" aria-label="${title} by ${AXES[x]}; latest: ${latest.join(", ")}" ref=${place}></div>
    </figure>
  `;
}

const sizeOf = (place) => ({ width: Math.max(240, place.clientWidth), height: HEIGHT });

function options(place, series, x, isLog) {
  return {
    ...sizeOf(place),
    cursor: { y: false, sync: { key: "curves" }, points: { size: 6 }, dataIdx: nearest },
    scales: { x: { time: false }, y: { distr: isLog ? 3 : 1, range: drawing.range("number", isLog) } },
    axes: drawing.axes(x, "number"),
    series: [
      { label: AXES[x], value: (chart, value) => drawing.xInFull(x, value ?? chart.data[0].at(-1)) },
      ...series.map(({ label, css: name, isFaint, isDashed, hasPoints }) => ({
        label,
        class: isFaint ? "is-raw" : undefined,
        stroke: () => drawing.css(`--${name}`),
        alpha: isFaint ? 0.28 : 1,
        width: isFaint ? 1 : 1.75,
        dash: isDashed ? [6, 3] : undefined,
        spanGaps: true,
        points: { show: isFaint ? false : fewerThan(hasPoints ? 100 : 3), size: 5 },
        value: (chart, value, one) => number(value ?? chart.data[one].findLast((known) => known !== null && known !== undefined)),
      })),
    ],
  };
}

const fewerThan = (most) => (chart, one) => chart.data[one].filter((value) => value !== null && value !== undefined).length < most;

// The index of the last known value of a series at the pointer: evaluations are few.
function nearest(chart, one, index) {
  const values = chart.data[one];
  for (let place = index; place >= 0; place--) if (values[place] !== null && values[place] !== undefined) return place;
  return index;
}
