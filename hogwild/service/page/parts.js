// Small parts of all views: a state with its sign, a sparkline, the question before something is lost.
import { html, useEffect, useRef, useState } from "./vendor/preact/htm-preact.module.js";
import { number, percent } from "./words.js";

export const LIVE = ["starting", "running", "stopping"];
export const ENDED = ["succeeded", "failed", "cancelled"];

// Shapes, not only colours: they are told apart in any kind of sight.
const SIGNS = {
  queued: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 0 0 0-9M6 3.5V6l2 1.2",
  starting: "M6 1.5a4.5 4.5 0 0 1 4.5 4.5",
  running: "M3.5 2v8l6.5-4z",
  stopping: "M2.5 2.5h7v7h-7z",
  paused: "M4 2v8M8 2v8",
  succeeded: "M2 6.5l3 3l5-7",
  failed: "M2.5 2.5l7 7M9.5 2.5l-7 7",
  cancelled: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 0 0 0-9M3 9l6-6",
};

export const State = ({ state, doing }) => html`
  <span class="state ${state}">
    <svg class="sign" viewBox="0 0 12 12" aria-hidden="true"><path d=${SIGNS[state]} /></svg>${state === "running" && doing && doing !== "running" ? doing : state}
  </span>
`;

export const Progress = ({ part }) =>
  part === null || part === undefined
    ? ""
    : html`<span class="progress"><progress max="1" value=${part} aria-label="progress" /><span>${percent(part)}</span></span>`;

// values: numbers, null where there was none. The last fifth of the height is kept free for the end's dot.
export function Spark({ values, label }) {
  const known = (values ?? []).map((value, place) => [place, value]).filter(([, value]) => value !== null);
  if (known.length < 2) return html`<span class="spark" />`;
  const heights = known.map(([, value]) => value);
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  const points = known.map(([place, value]) => [
    (96 * place) / (values.length - 1) + 1,
    high > low ? 20 - (17 * (value - low)) / (high - low) : 12,
  ]);
  const [x, y] = points.at(-1);
  return html`
    <svg class="spark" viewBox="0 0 100 23" role="img" aria-label="${label} from ${number(heights[0])} to ${number(heights.at(-1))}">
      <polyline points=${points.map((point) => point.map((one) => one.toFixed(1)).join(",")).join(" ")} /><circle cx=${x} cy=${y} r="2" />
    </svg>
  `;
}

export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;

// Parts of a whole as one bar. parts: [{size, name, css}]
export const Bar = ({ parts, label }) => html`
  <span class="bar" role="img" aria-label=${label}>
    ${parts.filter(({ size }) => size > 0).map(({ size, name, css }) => html`<i key=${name} class=${css} title=${`${name} ${percent(size)}`} style=${{ width: `${100 * size}%` }} />`)}
  </span>
`;

let open = null;

// Ask before something is lost; return a promise of true or false. Not confirm(): that would hold up the stream of all tabs.
export const confirmed = (question) => new Promise((answer) => open({ ...question, answer }));

export function Question() {
  const [question, setQuestion] = useState(null);
  open = setQuestion;
  if (!question) return null;
  const close = (event) => {
    question.answer(event.currentTarget.returnValue === "yes");
    setQuestion(null);
  };
  return html`
    <${Dialog} title=${question.title} onClose=${close}>
      <p>${question.text}</p>
      <p class="actions">
        <button class="danger" onClick=${(event) => event.currentTarget.closest("dialog").close("yes")}>${question.yes}</button>
        <button onClick=${(event) => event.currentTarget.closest("dialog").close("")}>${question.no}</button>
      </p>
    <//>
  `;
}

export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  const leave = (event) => event.target === event.currentTarget && event.currentTarget.close("");
  return html`
    <dialog ref=${dialog} aria-label=${title} onClose=${onClose} onClick=${leave}>
      <div class="dialog"><h2>${title}</h2>${children}</div>
    </dialog>
  `;
}
