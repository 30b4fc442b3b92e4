// The page of the service: a list of jobs and the job that is selected (#/ID). Rows come as events (/api/v1/stream),
// curves are asked for while a job is shown. No build step; everything is served from here.
import { html, render, useEffect, useRef, useState } from "/page/vendor/preact/htm-preact.module.js";
import { ask, follow, get } from "/page/api.js";
import { age, cores, left, number, percent } from "/page/words.js";
import { Chart } from "/page/chart.js";

const CURVES_MS = 1000;
const LIVE = ["starting", "running", "stopping"];
const ACTIONS = {
  queued: ["cancel", "pause"],
  starting: ["cancel", "pause"],
  running: ["pause", "cancel"],
  stopping: [],
  paused: ["resume", "cancel", "delete"],
  succeeded: ["delete"],
  failed: ["retry", "delete"],
  cancelled: ["retry", "delete"],
};

const chosen = () => location.hash.replace(/^#\//, "");

function App() {
  const [jobs, setJobs] = useState(null);
  const [isConnected, setConnected] = useState(true);
  const [name, setName] = useState(chosen());
  useEffect(() => follow(setJobs, setConnected), []);
  useEffect(() => {
    const change = () => setName(chosen());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  const rows = jobs === null ? [] : [...jobs.values()].sort((a, b) => b.number - a.number);
  const job = rows.find((row) => row.id === name || String(row.number) === name);
  useEffect(() => {
    document.title = job ? `${job.name} (${job.state}) · hogwild` : "hogwild";
  });
  return html`
    <header>
      <h1><a href="#/">hogwild</a></h1>
      ${!isConnected && html`<p role="alert">The service does not answer; trying again. Jobs go on without it.</p>`}
    </header>
    ${jobs === null ? html`<p>Connecting …</p>` : html`<${Jobs} rows=${rows} job=${job} />`}
    ${name && jobs !== null && !job && html`<p role="alert">There is no job ${name}.</p>`}
    ${job && html`<${Job} key=${job.id} job=${job} />`}
  `;
}

function Jobs({ rows, job }) {
  if (!rows.length)
    return html`<p class="empty">No jobs yet. In a terminal: <code>hogwild submit JOB.yaml</code></p>`;
  return html`
    <div class="scroll">
      <table id="jobs">
        <thead>
          <tr>
            <th>job</th><th>name</th><th>state</th><th>progress</th><th>left</th><th>cores</th><th>loss</th><th>best</th>
            <th>samples/s</th>
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            (row) => html`
              <tr key=${row.id} class=${row === job ? "chosen" : ""}>
                <td><a href="#/${row.id}">${row.number}</a></td>
                <td><a href="#/${row.id}">${row.name}</a></td>
                <td><span class="state ${row.state}">${row.state}</span> <small>${row.state === "succeeded" ? "" : row.reason}</small></td>
                <td>${row.progress !== null && html`<progress max="1" value=${row.progress} /> ${percent(row.progress)}`}</td>
                <td>${left(row.left_s)}</td>
                <td>${cores(row)}</td>
                <td>${number(row.loss)}</td>
                <td>${row.best && `${row.best.metric} ${number(row.best.value)}`}</td>
                <td>${LIVE.includes(row.state) ? number(row.samples_per_s) : ""}</td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

function Job({ job }) {
  const [error, setError] = useState("");
  const [curves, setCurves] = useState(null);
  const isLive = LIVE.includes(job.state);
  useEffect(() => {
    let timer, isOver = false;
    const look = async () => {
      try {
        setCurves(await get(`jobs/${job.id}/metrics`));
      } catch (problem) {
        setError(problem.message);
      }
      if (isLive && !isOver) timer = setTimeout(look, CURVES_MS);
    };
    look();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [job.id, isLive]);
  const act = async (action) => {
    if (action === "delete" && !confirm(`Delete job ${job.number} with its run directory and checkpoints?`)) return;
    try {
      await ask(job.id, action);
      setError("");
    } catch (problem) {
      setError(problem.message);
    }
  };
  return html`
    <section id="job" aria-label=${`job ${job.number}`}>
      <h2>${job.number} ${job.name} <span class="state ${job.state}">${job.state}</span></h2>
      <p class="actions">
        ${ACTIONS[job.state].map((action) => html`<button onClick=${() => act(action)}>${action}</button>`)}
      </p>
      ${error && html`<p role="alert">${error}</p>`}
      ${job.reason && html`<p>${job.reason}</p>`}
      ${job.error && job.error !== job.reason && html`<pre class="error">${job.error}</pre>`}
      ${job.error_code && html`<p><code>hogwild explain ${job.error_code}</code></p>`}
      <dl>
        <dt>job file</dt><dd>${[job.job_file, ...job.overrides].join(" ")}</dd>
        <dt>run</dt><dd>${job.run_dir}</dd>
        <dt>id</dt><dd>${job.id}, attempt ${job.attempt}${job.pid ? `, process ${job.pid}` : ""}</dd>
        <dt>cores</dt><dd>${cores(job)}</dd>
        <dt>submitted</dt><dd>${age(job.submitted)}</dd>
        ${job.updates !== null && html`<dt>updates</dt><dd>${number(job.updates)}, epoch ${job.epoch} of ${job.epochs}</dd>`}
      </dl>
      ${curves && html`<${Chart} curves=${curves} />`}
      <${Log} job=${job} isLive=${isLive} />
    </section>
  `;
}

function Log({ job, isLive }) {
  const [text, setText] = useState(null);
  const end = useRef(null);
  const look = async () => {
    try {
      setText(await get(`jobs/${job.id}/log`));
    } catch (problem) {
      setText(problem.message);
    }
  };
  useEffect(() => {
    if (text === null) return undefined;
    end.current.scrollTop = end.current.scrollHeight;
    const timer = isLive ? setTimeout(look, 2 * CURVES_MS) : undefined;
    return () => clearTimeout(timer);
  }, [text, isLive]);
  return html`
    <details onToggle=${(event) => (event.currentTarget.open ? look() : setText(null))}>
      <summary>log</summary>
      <pre class="log" ref=${end}>${text}</pre>
    </details>
  `;
}

render(html`<${App} />`, document.getElementById("app"));
