// The loss of a job, by updates: training, and validation where it was evaluated.
import { html, useEffect, useRef } from "/page/vendor/preact/htm-preact.module.js";

const HEIGHT = 260;
const COLORS = ["#3b7dd8", "#d8733b"];

export function Chart({ curves }) {
  const place = useRef(null);
  const chart = useRef(null);
  const data = aligned(curves);
  useEffect(() => {
    const size = () => ({ width: Math.max(280, place.current.clientWidth), height: HEIGHT });
    const ink = () => getComputedStyle(place.current).color; // asked at each drawing: dark mode may be switched
    const axis = { stroke: ink, grid: { stroke: "#8883", width: 1 }, ticks: { stroke: "#8883" } };
    chart.current = new uPlot(
      {
        ...size(),
        scales: { x: { time: false } },
        axes: [{ ...axis, label: "updates" }, { ...axis, label: "loss" }],
        series: [
          { label: "updates" },
          { label: "training loss", stroke: COLORS[0], width: 1.5, spanGaps: true },
          { label: "validation loss", stroke: COLORS[1], width: 1.5, spanGaps: true, points: { show: true, size: 5 } },
        ],
      },
      data,
      place.current,
    );
    const resize = new ResizeObserver(() => chart.current.setSize(size()));
    resize.observe(place.current);
    return () => {
      resize.disconnect();
      chart.current.destroy();
    };
  }, []);
  useEffect(() => chart.current.setData(data), [curves]);
  return html`<div class="chart" ref=${place}></div>`;
}

function aligned({ train, evaluations }) {
  const at = new Map();
  train.updates.forEach((updates, index) => at.set(updates, [train.loss[index], null]));
  for (const { updates, metrics } of evaluations) at.set(updates, [at.get(updates)?.[0] ?? null, metrics.loss ?? null]);
  const updates = [...at.keys()].sort((a, b) => a - b);
  return [updates, updates.map((one) => at.get(one)[0]), updates.map((one) => at.get(one)[1])];
}
