// One job: its state and figures, what can be done with it, and its parts (curves, workers, timeline, log, settings, checkpoints).
import { html, useState } from "./vendor/preact/htm-preact.module.js";
import { post, remove } from "./api.js";
import { Curves } from "./curves.js";
import { useKeys, useNow } from "./hooks.js";
import { ENDED, LIVE, State, confirmed } from "./parts.js";
import { Checkpoints, Log, Settings } from "./files.js";
import { Timeline } from "./timeline.js";
import { age, ago, clock, cores, count, duration, inWords, number, percent } from "./words.js";
import { Workers } from "./workers.js";

export const TABS = ["curves", "workers", "timeline", "log", "settings", "checkpoints"];

// What can be done in each state; the words are those of the command line.
const ACTIONS = {
  queued: ["pause", "cancel"],
  starting: ["pause", "cancel"],
  running: ["pause", "cancel"],
  stopping: ["cancel now"],
  paused: ["resume", "cancel", "delete"],
  succeeded: ["delete"],
  failed: ["retry", "retry with new code", "delete"],
  cancelled: ["retry", "retry with new code", "delete"],
};
const PATHS = { "cancel now": "cancel?now=true", "retry with new code": "retry?new_code=true" };
const TITLES = { retry: "with the code that it has", "retry with new code": "with the modules and small files that are in its folder now" };
const QUESTIONS = {
  cancel: { text: "It writes a checkpoint and stops. You can retry it later: it goes on from there.", yes: "Cancel the job", no: "Let it run" },
  "cancel now": { text: "It stops at once, without a checkpoint. What it learned since the newest one is lost.", yes: "Cancel now", no: "Let it finish" },
  delete: { text: "Its run directory, with logs and checkpoints, is removed for good.", yes: "Delete", no: "Keep it" },
};

export function Job({ job, tab = TABS[0], run = {}, machine }) {
  const [error, setError] = useState("");
  const isLive = LIVE.includes(job.state);
  const act = async (action) => {
    const isAsked = QUESTIONS[action] && (action !== "cancel" || isLive);
    if (isAsked && !(await confirmed({ title: `${action[0].toUpperCase()}${action.slice(1)} job ${job.number}, ${job.name}?`, ...QUESTIONS[action] }))) return;
    try {
      if (action === "delete") await remove(`jobs/${job.id}`).then(() => (location.hash = "#/"));
      else await post(`jobs/${job.id}/${PATHS[action] ?? action}`);
      setError("");
    } catch (problem) {
      setError(problem.message);
    }
  };
  useKeys(Object.fromEntries(TABS.map((name, place) => [place + 1, () => (location.hash = `#/${job.id}/${name}`)])));
  const choose = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = TABS[(TABS.indexOf(tab) + by + TABS.length) % TABS.length];
    location.hash = `#/${job.id}/${next}`;
    document.getElementById(`tab-${next}`).focus();
  };
  return html`
    <article id="job" aria-label="job ${job.number}">
      <div class="title">
        <h1 tabindex="-1"><a href="#/" aria-label="all jobs">‹</a> ${job.number} ${job.name}</h1>
        ${job.tags.map((tag) => html`<span class="tag">${tag}</span>`)}
        <${State} ...${job} />
        <span class="actions">
          ${ACTIONS[job.state].filter((action) => job.folder || action !== "retry with new code").map((action) => html`<button key=${action} title=${TITLES[action]} class=${QUESTIONS[action] ? "danger" : action === "pause" ? "" : "primary"} onClick=${() => act(action)}>${action}</button>`)}
          ${job.is_search && job.trials && html`<a class="button" href="api/v1/jobs/${job.id}/search" target="_blank">trials</a>`}
          <a class="button" href="#/submit/${job.id}">submit a changed copy</a>
        </span>
      </div>
      ${error && html`<p class="alert" role="alert">${error}</p>`}
      <${End} job=${job} />
      <${Figures} job=${job} status=${run.status} />
      <div class="tabs" role="tablist" aria-label="parts of the job" onKeyDown=${choose}>
        ${TABS.map((name) => html`
          <a role="tab" id="tab-${name}" href="#/${job.id}/${name}" aria-selected=${name === tab} aria-controls="panel" tabindex=${name === tab ? 0 : -1}>${name}</a>
        `)}
      </div>
      <section id="panel" role="tabpanel" aria-labelledby="tab-${tab}">
        ${tab === "curves" && (run.curves ? html`<${Curves} runs=${[{ id: job.id, label: job.name, curves: run.curves }]} />` : html`<p class="quiet">${job.updates ? "Loading …" : job.is_search ? "A search: its curves are on the page of its trials." : ENDED.includes(job.state) ? "No curves: training did not begin." : "No curves yet: training has not begun."}</p>`)}
        ${tab === "workers" && html`<${Workers} job=${job} status=${run.status} />`}
        ${tab === "timeline" && html`<${Timeline} job=${job} events=${run.events} moves=${machine?.moves} />`}
        ${tab === "log" && html`<${Log} job=${job} isLive=${isLive} />`}
        ${tab === "settings" && html`<${Settings} job=${job} />`}
        ${tab === "checkpoints" && html`<${Checkpoints} job=${job} updates=${run.events} />`}
      </section>
    </article>
  `;
}

// Why it waits, or how it ended.
function End({ job }) {
  const [explained, setExplained] = useState(null);
  const explain = () => chapterOf(job.error_code).then(setExplained, (problem) => setExplained([["", problem.message]]));
  const [head, ...trace] = (job.error ?? "").split("\n\n"); // the last line of a traceback says most
  const more = head.split("\n").slice(head.split("\n")[0] === job.reason ? 1 : 0).join("\n");
  const isBad = job.state === "failed";
  if (job.state === "succeeded" || (!job.reason && !job.error)) return null;
  return html`
    <div class="end ${isBad ? "bad" : ""}">
      ${job.reason && html`<p>${job.state === "queued" ? "It waits: " : ""}${job.reason}</p>`}
      ${more && html`<p>${more}</p>`}
      ${trace.length > 0 && html`<pre ref=${(pre) => pre && (pre.scrollTop = pre.scrollHeight)} tabindex="0" aria-label="traceback">${trace.join("\n\n")}</pre>`}
      ${job.error_code && html`
        <p>
          <code>${job.error_code}</code> ${explained === null
            ? html`<button onClick=${explain}>Explain this error</button>`
            : html`<button onClick=${() => setExplained(null)}>Hide</button>`}
        </p>
      `}
      ${explained !== null && html`<dl class="explained">${explained.map(([heading, text]) => html`<dt>${heading}</dt><dd>${withCode(text)}</dd>`)}</dl>`}
    </div>
  `;
}

// The same as `hogwild explain CODE`: [heading, text] of its chapter of docs/errors.md.
async function chapterOf(code) {
  const text = await (await fetch("page/errors.md")).text();
  const [body = ""] = text.split(`\n### \`${code}\`\n`)[1]?.split(/^##/m) ?? [];
  return [...body.matchAll(/^- \*(.+?)\*: (.+(?:\n(?!- ).+)*)/gm)].map(([, heading, words]) => [heading, words.replace(/\[([^\]]+)\]\([^)]*\)/g, "$1")]);
}

const withCode = (text) => text.split("`").map((part, place) => (place % 2 ? html`<code>${part}</code>` : part));

function Figures({ job, status }) {
  const now = useNow(1000);
  const isLive = LIVE.includes(job.state);
  const ran = job.started === null || (!isLive && job.ended === null) ? null : (isLive ? now : job.ended) - job.started;
  const figures = [
    ["progress", job.progress === null ? "–" : percent(job.progress), job.is_search ? `${count(job.trials ?? 0, "trial")} begun` : job.epochs && `epoch ${number(Math.min(job.epoch + (isLive ? 1 : 0), job.epochs))} of ${number(job.epochs)}`],
    isLive ? ["time left", duration(job.left_s) || "–", ran === null ? "" : `for ${age(ran)}`] : ["duration", duration(ran) || "–", ENDED.includes(job.state) ? `ended ${ago(job.ended, now)}` : `submitted ${ago(job.submitted, now)}`],
    ["loss", number(job.loss) || "–", "training"],
    ["best", job.best ? number(job.best.value) : "–", job.best ? `${inWords(job.best.metric)}${job.is_search ? "" : ` at ${number(job.best.updates)}`}` : "no evaluation yet"],
    ["speed", number(job.samples_per_s) || "–", "samples/s"],
    ["updates", number(job.updates) || "–", `${number(job.samples) || 0} samples`],
    ["cores", job.cores.length ? cores(job) : job.cpus, job.cores.length ? [job.is_search ? "" : count(job.workers ?? 0, "worker"), job.elastic ? "elastic" : ""].filter(Boolean).join(", ") : job.state === "queued" ? "wanted" : ""],
    ["staleness", status?.stale_p50 === undefined ? "–" : `${status.stale_p50} / ${status.stale_p99}`, "median / 99 %"],
  ];
  return html`
    <dl class="figures">
      ${figures.map(([name, value, more]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd><dd class="more">${more}</dd></div>`)}
    </dl>
    <p class="quiet facts" title=${clock(job.submitted)}>${[job.job_file, ...job.overrides].join(" ")} · <span class="path">${job.run_dir}</span> · code ${job.code_at ? `copied again ${clock(job.code_at)}` : "as submitted"} · ${job.attempt ? `attempt ${job.attempt}` : "not started"}${job.pid ? `, process ${job.pid}` : ""}${job.restarts ? `, ${count(job.restarts, "restart")} of workers` : ""}${job.elastic ? `, elastic: ${job.elastic.min} to ${job.elastic.max} cores, ${count(job.moves ?? 0, "move")}` : ""}</p>
  `;
}
