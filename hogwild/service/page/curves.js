// Curves of one job or of several over each other, drawn by charts.js: which charts are shown, and how.
import { html, useEffect, useMemo, useRef } from "./vendor/preact/htm-preact.module.js";
import { useKept } from "./hooks.js";
import { inWords } from "./words.js";

// runs: [{id, label, curves: {train, evaluations}}], in the order of their colours; without `curves`: not shown
export function Curves({ runs }) {
  const [view, setView] = useKept("curves", { x: "updates", smooth: 0, log: {}, hidden: ["lr"] });
  const [controls, place, gallery] = [useRef(null), useRef(null), useRef(null)];
  const drawn = useMemo(() => runs.map(({ label, curves }) => ({ name: label, tables: curves ? tablesOf(curves) : {} })), [...runs.map((run) => run.curves), runs.length]);
  const panels = useMemo(() => charts.panelsOf(drawn, inWords), [drawn]);
  const kept = useRef(view);
  kept.current.hidden = view.hidden;
  useEffect(() => {
    const state = Object.assign(kept.current, { zoom: null });
    let refresh = () => {};
    gallery.current = charts.gallery({
      state, inWords,
      group: ({ name }) => (state.hidden.includes(name) ? null : place.current),
      changed: () => {
        refresh();
        setView({ ...state, zoom: null });
      },
    });
    refresh = gallery.current.controls(controls.current);
    return () => gallery.current.close();
  }, []);
  useEffect(() => gallery.current.show(drawn), [drawn, String(view.hidden)]);
  const flip = (name) =>
    setView({ ...view, hidden: view.hidden.includes(name) ? view.hidden.filter((one) => one !== name) : [...view.hidden, name] });
  return html`
    <div class="controls" role="group" aria-label="how curves are drawn">
      <span class="choices" ref=${controls} hidden=${!panels.length}></span>
      <span class="chips" role="group" aria-label="metrics">
        ${panels.map(({ name, title }) => html`<button class="chip" aria-pressed=${!view.hidden.includes(name)} onClick=${() => flip(name)}>${title}</button>`)}
      </span>
    </div>
    ${!panels.length && html`<p class="quiet">No curves yet: the first point comes a moment after training has begun.</p>`}
    <div class="charts" ref=${place}></div>
  `;
}

// Columns, with the time since the first record.
function tablesOf({ train, evaluations }) {
  const began = Math.min(train.time[0] ?? Infinity, evaluations[0]?.time ?? Infinity);
  const since = (times) => times.map((at) => (at === null ? null : at - began));
  const values = Object.fromEntries(
    [...new Set(evaluations.flatMap(({ metrics }) => Object.keys(metrics)))].map((name) => [name, evaluations.map(({ metrics }) => metrics[name] ?? null)]),
  );
  const axis = (name) => evaluations.map((one) => one[name]);
  return {
    train: { columns: { ...train, time: since(train.time) } },
    evaluations: { columns: { time: since(axis("time")), samples: axis("samples"), updates: axis("updates"), ...values } },
  };
}
