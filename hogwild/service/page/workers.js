// The workers of a running job: share, phases, restarts, staleness; and their stacks, on request.
import { html, useState } from "./vendor/preact/htm-preact.module.js";
import { post } from "./api.js";
import { Bar } from "./parts.js";
import { bytes, number, percent } from "./words.js";

const PHASES = ["working", "waiting", "evaluating", "parked", "leaving", "compiling", "booting"];

export function Workers({ job, status }) {
  const [stacks, setStacks] = useState(null); // text, or "" while it is asked for
  const [error, setError] = useState("");
  const ask = async () => {
    setStacks("");
    try {
      setStacks((await post(`jobs/${job.id}/requests`, { ask: "stacks" })).text || "No process wrote a stack.");
      setError("");
    } catch (problem) {
      setStacks(null);
      setError(problem.message);
    }
  };
  const { workers = [], server = null } = status ?? {};
  return html`
    ${workers.length === 0
      ? html`<p class="quiet">${job.state === "running" ? "This job trains in its own process, without workers (train.procs: 0), or they have not started yet." : "No workers: the job is not running. Their deaths and restarts are in the timeline."}</p>`
      : html`
          <div class="scroll">
            <table>
              <caption class="unseen">workers</caption>
              <thead><tr><th>worker</th><th>state</th><th>share of samples</th><th>phases</th><th class="n">samples/s</th><th class="n">updates</th><th class="n">restarts</th><th class="n">staleness</th><th class="n">core</th><th class="n">memory</th><th class="n">process</th></tr></thead>
              <tbody>
                ${workers.map((one) => html`
                  <tr key=${one.worker}>
                    <th scope="row">${one.worker}</th>
                    <td>${one.doing ?? one.state}${one.silence && html` <b class="warn">${one.silence}</b>`}</td>
                    <td class="share"><${Bar} label=${percent(one.share)} parts=${[{ size: one.share, name: "share", css: "p-share" }]} /> ${percent(one.share)}</td>
                    <td><${Bar} label=${phasesOf(one)} parts=${PHASES.map((name) => ({ name, size: one.phases[name] ?? 0, css: `p-${name}` }))} /></td>
                    <td class="n">${number(one.samples_per_s)}</td>
                    <td class="n">${number(one.updates)}</td>
                    <td class="n">${Math.max(0, one.incarnation - 1)}</td>
                    <td class="n">${one.stale_p50} / ${one.stale_p99}</td>
                    <td class="n">${one.cpu === null ? "" : percent(one.cpu)}</td>
                    <td class="n">${bytes(one.pss_bytes)}</td>
                    <td class="n">${one.pid ?? ""}</td>
                  </tr>
                `)}
                ${server && html`
                  <tr class="quiet">
                    <th scope="row">server</th><td class=${server.is_serving === false ? "warn" : ""}>${server.state}</td>
                    <td colspan="7">fork server: new processes of the job are forked from it</td>
                    <td class="n">${bytes(server.pss_bytes)}</td><td class="n">${server.pid}</td>
                  </tr>
                `}
              </tbody>
            </table>
          </div>
          <p class="legend">${PHASES.map((name) => html`<span><i class="p-${name}"></i>${name}</span>`)} <span class="quiet">staleness: median / 99 %, updates by others between reading and applying</span></p>
        `}
    ${job.state === "running" && html`<p><button onClick=${ask} disabled=${stacks === ""}>${stacks === "" ? "Asking …" : "Show the stacks"}</button> <span class="quiet">what each process is doing now; training goes on</span></p>`}
    ${error && html`<p class="alert" role="alert">${error}</p>`}
    ${stacks && html`<pre class="log" tabindex="0" aria-label="stacks">${stacks}</pre>`}
  `;
}

const phasesOf = ({ phases }) => PHASES.filter((name) => phases[name]).map((name) => `${name} ${percent(phases[name])}`).join(", ");
