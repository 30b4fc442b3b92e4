// The page of the service. The address says what is shown: #/ the jobs, #/ID/TAB a job, #/compare/ID,ID, #/submit, #/machine.
// No build step; everything is served from here.
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact/htm-preact.module.js";
import { useKeys } from "./hooks.js";
import { Jobs } from "./jobs.js";
import { Job, TABS } from "./job.js";
import { Compare } from "./compare.js";
import { Submit } from "./submit.js";
import { Cores, Machine } from "./machine.js";
import { Dialog, Empty, LIVE, Question } from "./parts.js";
import { follow } from "./stream.js";
import { percent } from "./words.js";

const SHORTCUTS = [
  ["j, k", "next, previous job of the list"],
  ["Enter", "open it"],
  ["x", "select it"],
  ["c", "compare the selected jobs"],
  ["/", "filter the jobs; in a job: search its log"],
  [`1 … ${TABS.length}`, "part of a job"],
  ["n", "submit a job"],
  ["m", "the machine"],
  ["Esc", "back to the jobs"],
  ["?", "this list"],
];

const route = () => {
  const [view = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { view, rest };
};
const go = (hash) => {
  location.hash = hash;
};

function App() {
  const [state, setState] = useState(null);
  const [{ view, rest }, setRoute] = useState(route);
  const [selected, setSelected] = useState([]);
  const [isHelpOpen, setHelpOpen] = useState(false);
  const [error, again] = useErrorBoundary();
  const look = useRef(null);
  useEffect(() => {
    look.current = follow(setState);
    const change = () => setRoute(route());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);

  const jobs = state?.jobs ?? null;
  const job = jobs === null ? undefined : (jobs.get(view) ?? [...jobs.values()].find((row) => String(row.number) === view));
  const compared = view === "compare" && jobs ? compareOf(rest[0] ?? "", jobs) : [];
  const runs = job ? [job.id] : compared.filter((row) => LIVE.includes(row.state)).map((row) => row.id);
  useEffect(() => look.current(runs), [String(runs)]);
  useEffect(() => {
    document.title = job ? `${job.progress !== null && LIVE.includes(job.state) ? `${percent(job.progress)} ` : ""}${job.name} (${job.state}) · hogwild` : "hogwild";
  });
  // Somebody who cannot see that the view has changed is led to its heading.
  const isFirst = useRef(true);
  useEffect(() => {
    if (!isFirst.current) document.querySelector("main h1")?.focus();
    isFirst.current = false;
    scrollTo(0, 0);
  }, [view]);
  useKeys({
    "?": () => setHelpOpen(true),
    n: () => go("#/submit"),
    m: () => go("#/machine"),
    c: () => selected.length && go(`#/compare/${selected}`),
    Escape: (event) => (event.target.matches("input, textarea, select") ? event.target.blur() : go("#/")),
  });

  const shown = () => {
    if (error) return html`<${Empty}><h1 tabindex="-1">This view cannot be drawn</h1><p>${error.message}</p><p><button onClick=${again}>Try again</button></p><//>`;
    if (jobs === null) return html`<p class="quiet">Connecting …</p>`;
    if (view === "") return html`<${Jobs} jobs=${jobs} selected=${selected} select=${setSelected} />`;
    if (view === "machine") return html`<${Machine} machine=${state.machine} jobs=${jobs} />`;
    if (view === "submit") return html`<${Submit} key=${rest[0]} from=${rest[0]} />`;
    if (view === "compare") return html`<${Compare} rows=${compared} runs=${state.runs} />`;
    if (job) return html`<${Job} key=${job.id} job=${job} tab=${rest[0]} run=${state.runs[job.id]} machine=${state.machine} />`;
    return html`<${Empty}><h1 tabindex="-1">There is no job ${view}</h1><p>It was deleted, or the link is of another service. <a href="#/">All jobs</a></p><//>`;
  };
  const link = (name, hash, words) =>
    html`<a href=${hash} aria-current=${view === name || (name === "" && (job || view === "compare")) ? "page" : undefined}>${words}</a>`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main h1")?.focus(); }}>Skip to the content</a>
    <header>
      <a class="brand" href="#/">hogwild</a>
      <nav aria-label="views">${link("", "#/", "Jobs")}${link("machine", "#/machine", "Machine")}${link("submit", "#/submit", "Submit")}</nav>
      <${Cores} machine=${state?.machine} jobs=${jobs} />
      <button class="help" aria-label="keyboard shortcuts" onClick=${() => setHelpOpen(true)}>?</button>
    </header>
    ${state && !state.isConnected && html`
      <p class="alert" role="alert">
        ${state.isRefused
          ? html`The service does not know this browser any more. Open the link that <code>hogwild serve</code> printed. Jobs go on.`
          : "The service does not answer; trying again each second. Jobs go on without it."}
      </p>
    `}
    <main id="main">${shown()}</main>
    <${Changes} jobs=${jobs} />
    <${Question} />
    ${isHelpOpen && html`
      <${Dialog} title="Keyboard" onClose=${() => setHelpOpen(false)}>
        <dl class="keys">${SHORTCUTS.map(([keys, words]) => html`<dt><kbd>${keys}</kbd></dt><dd>${words}</dd>`)}</dl>
      <//>
    `}
  `;
}

// "12,15"
function compareOf(names, jobs) {
  const rows = [...jobs.values()];
  return names.split(",").map((name) => jobs.get(name) ?? rows.find((row) => String(row.number) === name)).filter(Boolean);
}

// Say to a screen reader what has changed.
function Changes({ jobs }) {
  const before = useRef(null);
  const [words, setWords] = useState("");
  useEffect(() => {
    if (jobs === null) return;
    const changed = before.current ? [...jobs.values()].filter((row) => before.current.get(row.id) !== row.state) : [];
    before.current = new Map([...jobs.values()].map((row) => [row.id, row.state]));
    if (changed.length > 3) setWords(`${changed.length} jobs have changed`);
    else if (changed.length) setWords(changed.map((row) => `job ${row.number} ${row.name}: ${row.state}`).join("; "));
  }, [jobs]);
  return html`<p class="unseen" role="status" aria-live="polite">${words}</p>`;
}

render(html`<${App} />`, document.getElementById("app"));
