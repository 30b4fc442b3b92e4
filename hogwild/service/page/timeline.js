// What has happened to a job: a row of marks per kind, and the list of events.
import { html } from "/page/vendor/preact/htm-preact.module.js";
import { useKept } from "/page/hooks.js";
import { clock, duration, number, ranges } from "/page/words.js";

const MOST_LISTED = 500;
// kind of row -> [colour, events in it]; "other" has the rest
const KINDS = {
  deaths: ["c1", "exit", "stall", "fence", "deadlock", "loader-exit", "loader-stall", "spare-exit", "quarantined", "rollback"],
  restarts: ["c4", "restart", "resume", "lane-restarts"],
  evaluations: ["c2", "evaluation"],
  checkpoints: ["c0", "checkpoint", "checkpoint-failed", "checkpoint-refused", "checkpoint-rejected"],
  resizes: ["c5", "resize", "retire", "request", "answer"],
  "moves of cores": ["c3", "move"],
  other: ["c6"],
};
const kindOf = (event) => Object.keys(KINDS).find((kind) => KINDS[kind].includes(event, 1)) ?? "other";
const WHY = { starts: "the job starts", ends: "the job ends", grows: "free cores", shrinks: "given back", lent: "lent" };

export function Timeline({ job, events, moves = [] }) {
  const [hidden, setHidden] = useKept("timeline", ["other"]);
  const ofJob = moves.filter((move) => move.from === job.id || move.to === job.id).map((move) => ({ time: move.at, event: "move", ...ofMove(move, job) }));
  const all = [...(events ?? []), ...ofJob].sort((one, other) => one.time - other.time).map((one) => ({ ...one, kind: kindOf(one.event) }));
  if (!all.length) return html`<p class="quiet">Nothing has happened yet.</p>`;
  const kinds = Object.keys(KINDS).filter((kind) => all.some((one) => one.kind === kind));
  const [first, last] = [all[0].time, all.at(-1).time];
  const x = (time) => (last > first ? 4 + (992 * (time - first)) / (last - first) : 500);
  const shown = all.filter((one) => !hidden.includes(one.kind));
  const flip = (kind) => setHidden(hidden.includes(kind) ? hidden.filter((one) => one !== kind) : [...hidden, kind]);
  return html`
    <div class="lanes" role="group" aria-label="kinds of events">
      ${kinds.map((kind) => {
        const marks = all.filter((one) => one.kind === kind);
        return html`
          <button class="chip" aria-pressed=${!hidden.includes(kind)} onClick=${() => flip(kind)}>${kind} <small>${marks.length}</small></button>
          <svg class="lane ${KINDS[kind][0]}" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="${marks.length} ${kind}">
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
          <tr><td class="time"><time>${clock(one.time)}</time></td><td>${one.title ?? one.event.replaceAll("-", " ")}</td><td class="quiet">${one.detail ?? ""}</td></tr>
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
