// What has happened to a job: a row of marks per kind, and the list of events.
import { html } from "./vendor/preact/htm-preact.module.js";
import { useKept } from "./hooks.js";
import { clock, duration, number, ranges } from "./words.js";

const MOST_LISTED = 500;
// row of the events (hogwild/monitoring/words.py) -> colour
const ROWS = { trouble: "c1", restarts: "c4", evaluations: "c2", checkpoints: "c0", pauses: "c6", resizes: "c5", "moves of cores": "c3", other: "c6" };
const WHY = { starts: "the job starts", ends: "the job ends", grows: "free cores", shrinks: "given back", lent: "lent" };

export function Timeline({ job, events, moves = [] }) {
  const [hidden, setHidden] = useKept("timeline", ["pauses", "other"]);
  const ofJob = moves.filter((move) => move.from === job.id || move.to === job.id).map((move) => ({ time: move.at, row: "moves of cores", ...ofMove(move, job) }));
  const all = [...(events ?? []), ...ofJob].sort((one, other) => one.time - other.time);
  if (!all.length) return html`<p class="quiet">Nothing has happened yet.</p>`;
  const kinds = Object.keys(ROWS).filter((kind) => all.some((one) => one.row === kind));
  const [first, last] = [all[0].time, all.at(-1).time];
  const x = (time) => (last > first ? 4 + (992 * (time - first)) / (last - first) : 500);
  const shown = all.filter((one) => !hidden.includes(one.row));
  const flip = (kind) => setHidden(hidden.includes(kind) ? hidden.filter((one) => one !== kind) : [...hidden, kind]);
  return html`
    <div class="lanes" role="group" aria-label="kinds of events">
      ${kinds.map((kind) => {
        const marks = all.filter((one) => one.row === kind);
        return html`
          <button class="chip" aria-pressed=${!hidden.includes(kind)} onClick=${() => flip(kind)}>${kind} <small>${marks.length}</small></button>
          <svg class="lane ${ROWS[kind]}" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="${marks.length} ${kind}">
            <path class="base" d="M0 10H1000" /><path d=${marks.map(({ time }) => `M${x(time).toFixed(1)} 3V17`).join("")} />
          </svg>
        `;
      })}
      <span></span><span class="ends"><span>${clock(first)}</span><span>${duration(last - first)} later</span></span>
    </div>
    <table class="events">
      <caption class="unseen">events, the newest first</caption>
      <tbody>
        ${shown.slice(-MOST_LISTED).reverse().map((one) => html`
          <tr><td class="time"><time>${clock(one.time)}</time></td><td>${one.title}</td><td class="quiet">${one.detail ?? ""}</td></tr>
        `)}
      </tbody>
    </table>
    ${shown.length > MOST_LISTED && html`<p class="quiet">The newest ${MOST_LISTED} of ${number(shown.length)}.</p>`}
  `;
}

const ofMove = ({ cpus, to, why }, job) => ({
  title: `${to === job.id ? "got" : "gave"} ${cpus.length === 1 ? "core" : "cores"} ${ranges(cpus)}`,
  detail: WHY[why] ?? why,
});
