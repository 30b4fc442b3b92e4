// The machine: who has had which core in the last minutes, memory, GPUs, and the moves of cores between jobs.
import { html } from "./vendor/preact/htm-preact.module.js";
import { useKept, useNow } from "./hooks.js";
import { Bar } from "./parts.js";
import { bytes, clock, count, duration, ranges } from "./words.js";

const SPANS = { 120: "2 min", 600: "10 min", 3600: "1 h" };
const MOST_LISTED = 50;
const WHY = { starts: "starts", ends: "ended", grows: "takes free cores", shrinks: "gives cores back", lent: "lends" };

// A job keeps its colour wherever it is shown.
const paint = (job) => (job ? `c${(job.number - 1) % 7}` : "free"); // of charts.css

// In the header of all views: one square per core.
export function Cores({ machine, jobs }) {
  if (!machine || !jobs) return html`<span class="cores" />`;
  const used = machine.cores.filter(({ job }) => job).length;
  return html`
    <a class="cores" href="#/machine" aria-label="${used} of ${count(machine.cores.length, "core")} in use">
      ${machine.cores.slice(0, 32).map(({ job }) => html`<i class=${paint(jobs.get(job))}></i>`)} <span>${used} of ${count(machine.cores.length, "core")}</span>
    </a>
  `;
}

export function Machine({ machine, jobs }) {
  const [span, setSpan] = useKept("span", 600);
  const now = useNow(1000);
  if (!machine) return html`<h1 tabindex="-1">Machine</h1><p class="quiet">Loading …</p>`;
  const nameOf = (id) => (id === null ? "free" : jobs.has(id) ? `${jobs.get(id).number} ${jobs.get(id).name}` : "a deleted job");
  const linkOf = (id) => (jobs.has(id) ? html`<a href="#/${id}"><i class="key ${paint(jobs.get(id))}"></i>${nameOf(id)}</a>` : html`<span class="quiet">${nameOf(id)}</span>`);
  const { cores, gpus, memory, moves } = machine;
  const used = memory.total_bytes - memory.free_bytes;
  return html`
    <div class="controls">
      <h1 tabindex="-1">Machine</h1>
      <span class="axis" role="group" aria-label="time shown">
        ${Object.entries(SPANS).map(([seconds, words]) => html`<button aria-pressed=${span === Number(seconds)} onClick=${() => setSpan(Number(seconds))}>${words}</button>`)}
      </span>
    </div>
    <h2>Cores <small class="quiet">${cores.filter(({ job }) => job).length} of ${cores.length} in use</small></h2>
    <div class="lives" role="list" aria-label="cores by job">
      ${cores.map((core) => html`
        <span class="name">${core.cpus.length > 1 ? `CPUs ${ranges(core.cpus)}` : `CPU ${core.cpus[0]}`}</span>
        <div class="life" role="listitem" aria-label="${ranges(core.cpus)}: now ${nameOf(core.job)}">
          ${stretches(core, moves, now - span, now).map(({ job, start, end }) => html`
            <a key=${`${job} ${start}`} class=${paint(jobs.get(job))} href=${jobs.has(job) ? `#/${job}` : undefined} tabindex=${jobs.has(job) ? undefined : -1} title="${nameOf(job)}, ${duration(end - start)}"
              style=${{ left: `${(100 * (start - now + span)) / span}%`, width: `${(100 * (end - start)) / span}%` }}>${job && nameOf(job)}</a>
          `)}
        </div>
      `)}
      <span></span><span class="ends"><span>${SPANS[span]} ago</span><span>now</span></span>
    </div>
    <div class="columns">
      <div>
        <h2>Memory</h2>
        <p><${Bar} label="${bytes(used)} of ${bytes(memory.total_bytes)} used" parts=${[{ name: "used", size: used / memory.total_bytes, css: "p-share" }]} /></p>
        <p>${bytes(used)} of ${bytes(memory.total_bytes)} used, ${bytes(memory.free_bytes)} free${memory.reserved_bytes ? `; jobs have reserved ${bytes(memory.reserved_bytes)}` : ""}.</p>
        <h2>GPUs</h2>
        ${gpus.length ? html`<ul class="plain">${gpus.map(({ name, job }) => html`<li>${name}: ${linkOf(job)}</li>`)}</ul>` : html`<p class="quiet">This machine has none that jobs can use.</p>`}
      </div>
      <div>
        <h2>Moves of cores</h2>
        ${moves.length
          ? html`
              <table class="events">
                <caption class="unseen">moves of cores, the newest first</caption>
                <thead><tr><th>time</th><th>CPUs</th><th>from</th><th>to</th><th>why</th></tr></thead>
                <tbody>
                  ${moves.slice(-MOST_LISTED).reverse().map(({ at, cpus, from, to, why }) => html`
                    <tr><td class="time"><time>${clock(at)}</time></td><td>${ranges(cpus)}</td><td>${linkOf(from)}</td><td>${linkOf(to)}</td><td class="quiet">${WHY[why] ?? why}</td></tr>
                  `)}
                </tbody>
              </table>
            `
          : html`<p class="quiet">None yet. Cores move when a job starts or ends, and between jobs with <code>queue.elastic</code>.</p>`}
      </div>
    </div>
  `;
}

// Who had the core between two times: from now, back through the moves.
function stretches({ cpus, job }, moves, begin, now) {
  const found = [];
  let owner = job, end = now;
  for (const move of moves.toReversed().filter((one) => one.cpus.some((cpu) => cpus.includes(cpu)))) {
    if (move.at <= begin) break;
    if (end > move.at) found.push({ job: owner, start: move.at, end });
    [owner, end] = [move.from, Math.min(end, move.at)];
  }
  if (end > begin) found.push({ job: owner, start: begin, end });
  return found;
}
