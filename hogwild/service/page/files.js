// What a run leaves: logs, settings, checkpoints.
import { html, useEffect, useRef, useState } from "./vendor/preact/htm-preact.module.js";
import { post } from "./api.js";
import { useFetched, useKeys, useNow } from "./hooks.js";
import { Empty, LIVE } from "./parts.js";
import { ago, bytes, count, inWords, number, shown } from "./words.js";

const LOG_MS = 2000;
const WRITTEN_MS = 300; // after the last letter of a search

// A value that follows another one, a moment after it has stopped changing.
function useSettled(value, ms) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

export function Log({ job, isLive }) {
  const [name, setName] = useState("supervisor");
  const [words, setWords] = useState("");
  const wanted = useSettled(words.trim(), WRITTEN_MS);
  const [logs] = useFetched(`jobs/${job.id}/logs`, isLive ? 5 * LOG_MS : 0);
  const query = new URLSearchParams({ of: name, ...(wanted && { search: wanted }) });
  const [text, error] = useFetched(`jobs/${job.id}/log?${query}`, isLive ? LOG_MS : 0);
  const search = useRef(null);
  const pre = useRef(null);
  const isAtEnd = useRef(true);
  useKeys({ "/": () => search.current.focus() });
  useEffect(() => {
    if (isAtEnd.current && pre.current) pre.current.scrollTop = pre.current.scrollHeight;
  }, [text]);
  const note = ({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => (isAtEnd.current = scrollTop + clientHeight > scrollHeight - 20);
  return html`
    <div class="controls">
      <label>log of
        <select value=${name} onChange=${(event) => setName(event.currentTarget.value)}>
          ${(logs?.length ? logs : [{ name }]).map((one) => html`<option value=${one.name}>${one.name.replace("-", " ")}${one.bytes === undefined ? "" : `, ${bytes(one.bytes)}`}</option>`)}
        </select>
      </label>
      <input type="search" ref=${search} aria-label="search the log" placeholder="Search: only lines with …" value=${words} onInput=${(event) => setWords(event.currentTarget.value)} />
      ${isLive && html`<span class="quiet">follows the job while you are at its end</span>`}
    </div>
    ${error ? html`<p class="quiet">${error}</p>` : html`<pre class="log" ref=${pre} tabindex="0" aria-label="log" onScroll=${note}>${text === null ? "…" : marked(text || (wanted ? "No line has that." : "The log is empty."), wanted)}</pre>`}
  `;
}

function marked(text, wanted) {
  if (!wanted) return text;
  const low = text.toLowerCase();
  const found = [];
  let end = 0;
  for (let place = low.indexOf(wanted.toLowerCase()); place >= 0; place = low.indexOf(wanted.toLowerCase(), end)) {
    found.push(text.slice(end, place), html`<mark>${text.slice(place, place + wanted.length)}</mark>`);
    end = place + wanted.length;
  }
  return [...found, text.slice(end)];
}

export function Settings({ job }) {
  const [config, error] = useFetched(`jobs/${job.id}/config`);
  const [isAll, setAll] = useState(false);
  if (error) return html`<p class="quiet">${error}</p>`;
  if (!config) return html`<p class="quiet">Loading …</p>`;
  const fields = config.fields.filter((field) => isAll || field.from !== "default");
  return html`
    <div class="columns">
      <div>
        <div class="controls"><h2>Settings</h2><label><input type="checkbox" checked=${isAll} onChange=${() => setAll(!isAll)} /> with ${count(config.fields.filter((field) => field.from === "default").length, "default")}</label></div>
        <table class="settings">
          <caption class="unseen">settings and where they come from</caption>
          <thead><tr><th>setting</th><th>value</th><th>from</th></tr></thead>
          <tbody>
            ${fields.map(({ path, value, from }) => html`<tr class=${from === "command line" ? "is-changed" : ""}><th scope="row">${path}</th><td>${shown(value)}</td><td class="quiet">${from}</td></tr>`)}
          </tbody>
        </table>
      </div>
      <div>
        <div class="controls"><h2>Job file</h2><span class="quiet">as it was submitted</span></div>
        <pre class="file">${config.text}</pre>
        ${config.overridden.length > 0 && html`<p>Overridden: ${config.overridden.map(({ path, value }) => html`<code>${path}=${shown(value)}</code> `)}</p>`}
      </div>
    </div>
  `;
}

export function Checkpoints({ job }) {
  const [found, error, again] = useFetched(`jobs/${job.id}/checkpoints`, LIVE.includes(job.state) ? 3 * LOG_MS : 0);
  const [words, setWords] = useState(null); // of the last request: {text, isBad}
  const now = useNow(5000);
  const ask = async (request, text) => {
    try {
      setWords({ text: text(await request) });
      again();
    } catch (problem) {
      setWords({ text: problem.message, isBad: true });
    }
  };
  const write = () => ask(post(`jobs/${job.id}/requests`, { ask: "checkpoint" }), () => "A checkpoint is written.");
  const [changes, setChanges] = useState("");
  const overrides = changes.split("\n").map((line) => line.trim()).filter(Boolean);
  const resume = (name) =>
    ask(post(`jobs/${job.id}/checkpoints/${name}/resume`, { overrides }), (row) => html`Submitted: <a href="#/${row.id}">job ${row.number}</a> goes on from ${name}.`);
  return html`
    ${job.state === "running" && html`<p><button onClick=${write}>Write a checkpoint now</button></p>`}
    ${words && html`<p class=${words.isBad ? "alert" : "notice"} role=${words.isBad ? "alert" : "status"}>${words.text}</p>`}
    ${error && html`<p class="quiet">${error}</p>`}
    ${found?.length === 0 && html`<${Empty}><p>No checkpoints yet. One is written at each evaluation, at each pause, and at the end.</p><//>`}
    ${found?.length > 0 && html`
      <label class="over">to change when resuming, one <code>key=value</code> per line<textarea rows="2" placeholder="train.epochs=20" value=${changes} onInput=${(event) => setChanges(event.currentTarget.value)}></textarea></label>
      <div class="scroll">
        <table>
          <caption class="unseen">checkpoints, the newest first</caption>
          <thead><tr><th>checkpoint</th><th></th><th class="n">updates</th><th>metrics</th><th class="n">size</th><th>written</th><th></th></tr></thead>
          <tbody>
            ${found.map((one) => html`
              <tr key=${one.name}>
                <th scope="row">${one.name}</th>
                <td>${one.is_best && html`<b class="badge good">best</b>`} ${one.is_latest && html`<b class="badge">newest</b>`}</td>
                <td class="n">${one.updates.toLocaleString("en")}</td>
                <td>${Object.entries(one.metrics ?? {}).map(([name, value]) => `${inWords(name)} ${number(value)}`).join(", ")}</td>
                <td class="n">${bytes(one.bytes)}</td>
                <td>${ago(one.at, now)}</td>
                <td><span class="actions">
                  <button onClick=${() => resume(one.name)} title="a new job that goes on from a copy of it">resume from</button>
                  <a class="button" href="api/v1/jobs/${job.id}/checkpoints/${one.name}/export" download>export the model</a>
                </span></td>
              </tr>
            `)}
          </tbody>
        </table>
      </div>
    `}
  `;
}
