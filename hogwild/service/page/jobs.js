// The list of jobs. Only the rows that are seen are drawn, so a thousand jobs are as quick as ten.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact/htm-preact.module.js";
import { useFetched, useKept, useKeys, useNow } from "./hooks.js";
import { ENDED, Empty, LIVE, Progress, Spark, State } from "./parts.js";
import { age, ago, best, cores, count, duration, inWords, number, rank } from "./words.js";

const SPARK_MS = 10_000;
const SPARK_POINTS = 40;
const BEYOND = 8; // rows drawn above and below what is seen
const STATES = ["running", "stopping", "starting", "queued", "paused", "succeeded", "failed", "cancelled"];
const KINDS = {
  all: ["all", () => true],
  running: ["running", (row) => LIVE.includes(row.state)],
  waiting: ["waiting", (row) => row.state === "queued" || row.state === "paused"],
  succeeded: ["succeeded", (row) => row.state === "succeeded"],
  failed: ["failed", (row) => row.state === "failed"],
  cancelled: ["cancelled", (row) => row.state === "cancelled"],
};
const COLUMNS = {
  number: ["job", (row) => row.number],
  name: ["name", (row) => row.name.toLowerCase()],
  state: ["state", (row) => STATES.indexOf(row.state)],
  progress: ["progress", (row) => row.progress],
  left: ["left", (row) => row.left_s],
  loss: ["loss", (row) => row.loss],
  best: ["best", rank],
  speed: ["samples/s", (row) => (LIVE.includes(row.state) ? row.samples_per_s : null)],
  cores: ["cores", (row) => row.cores.length || row.cpus],
};
const RISING = ["name", "best"]; // sorted upwards at first; other columns downwards

export function Jobs({ jobs, selected, select }) {
  const [{ words, kind, sort, isDown }, setView] = useKept("jobs", { words: "", kind: "all", sort: "number", isDown: true }, sessionStorage);
  const change = (changes) => setView({ words, kind, sort, isDown, ...changes });
  const sortBy = (column) => change({ sort: column, isDown: sort === column ? !isDown : !RISING.includes(column) });
  const filter = useRef(null);
  useKeys({ "/": () => filter.current?.focus() });
  const rows = [...jobs.values()];
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = rows.filter((row) => wanted.every((word) => textOf(row).includes(word)));
  const found = sorted(matching.filter(KINDS[kind][1]), sort, isDown);
  if (!rows.length)
    return html`
      <h1 class="unseen" tabindex="-1">Jobs</h1>
      <${Empty}>
        <h2>No jobs yet</h2>
        <p><a class="button primary" href="#/submit">Submit a job</a></p>
        <p>or in a terminal: <code>hogwild submit JOB.yaml</code></p>
      <//>
    `;
  return html`
    <div class="controls">
      <h1 tabindex="-1">Jobs</h1>
      <input type="search" ref=${filter} aria-label="filter the jobs" placeholder="Filter: name, number, setting …" value=${words} onInput=${(event) => change({ words: event.currentTarget.value })} />
      <span class="chips" role="group" aria-label="state">
        ${Object.entries(KINDS).map(([name, [text, is]]) => html`
          <button class="chip" aria-pressed=${kind === name} onClick=${() => change({ kind: name })}>${text} <small>${matching.filter(is).length}</small></button>
        `)}
      </span>
      <label class="narrow">sort by
        <select value=${sort} onChange=${(event) => sortBy(event.currentTarget.value)}>
          ${Object.entries(COLUMNS).map(([name, [text]]) => html`<option value=${name}>${text}</option>`)}
        </select>
      </label>
    </div>
    ${found.length
      ? html`<${List} rows=${found} sort=${sort} isDown=${isDown} sortBy=${sortBy} selected=${selected} select=${select} />`
      : html`<${Empty}><p>None of ${count(rows.length, "job")} matches. <button onClick=${() => change({ words: "", kind: "all" })}>Show all</button></p><//>`}
    ${selected.length > 0 && html`
      <div class="chosen" role="region" aria-label="selected jobs">
        ${count(selected.length, "job")} selected
        <a class="button primary" href="#/compare/${selected}">Compare</a>
        <button onClick=${() => select([])}>Clear</button>
      </div>
    `}
  `;
}

const textOf = (row) => [row.number, row.name, row.id, row.state, row.reason, row.job_file, ...row.tags, ...row.overrides].join(" ").toLowerCase();

function sorted(rows, column, isDown) {
  const value = COLUMNS[column][1];
  return rows.sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === b || (a === null && b === null)) return other.number - one.number;
    if (a === null || b === null) return a === null ? 1 : -1; // what is not known comes last, up or down
    return (a < b ? -1 : 1) * (isDown ? -1 : 1);
  });
}

function List({ rows, sort, isDown, sortBy, selected, select }) {
  const body = useRef(null);
  const [first, last] = useSeen(body, rows.length);
  const [at, setAt] = useState(-1); // the row that j and k have reached
  const now = useNow(5000);
  const [sparks] = useFetched(`sparklines?points=${SPARK_POINTS}`, SPARK_MS);
  const flip = (id) => select(selected.includes(id) ? selected.filter((one) => one !== id) : [...selected, id]);
  const move = (by) => {
    const next = Math.max(0, Math.min(rows.length - 1, at + by));
    const height = heightOf(body.current);
    const top = body.current.getBoundingClientRect().top + next * height;
    if (top < 2 * height || top > innerHeight - 2 * height) scrollBy(0, top - innerHeight / 2);
    setAt(next);
  };
  // Rows are drawn after the scroll; the one that is reached gets the focus. Who types faster than that opens it, too.
  useLayoutEffect(() => {
    const timer = requestAnimationFrame(() => body.current?.querySelector(`[aria-rowindex="${at + 2}"] a`)?.focus());
    return () => cancelAnimationFrame(timer);
  }, [at]);
  const open = ({ target }) => {
    if (target !== document.body || !rows[at]) return false;
    location.hash = `#/${rows[at].id}`;
    return true;
  };
  useKeys({ j: () => move(1), k: () => move(-1), x: () => rows[at] && flip(rows[at].id), Enter: open });
  return html`
    <div id="jobs" class="table jobs" role="table" aria-label="jobs" aria-rowcount=${rows.length + 1}>
      <div class="head" role="row" aria-rowindex="1">
        <span role="columnheader"><span class="unseen">selected</span></span>
        ${Object.entries(COLUMNS).map(([name, [text]]) => html`
          <span role="columnheader" class="col-${name}" aria-sort=${sort !== name ? undefined : isDown ? "descending" : "ascending"}>
            <button onClick=${() => sortBy(name)}>${text}<i aria-hidden="true">${sort !== name ? "" : isDown ? "▾" : "▴"}</i></button>
          </span>
        `)}
        <span role="columnheader" class="col-when">when</span>
      </div>
      <div ref=${body} class="body" role="rowgroup" style=${{ height: `calc(${rows.length} * var(--row))` }}>
        ${rows.slice(first, last).map((row, place) => html`
          <${Row} key=${row.id} row=${row} place=${first + place} now=${now} spark=${sparks?.[row.id]} isSelected=${selected.includes(row.id)} flip=${flip} />
        `)}
      </div>
    </div>
  `;
}

const top = (place) => ({ transform: `translateY(calc(${place} * var(--row)))` });

function Row({ row, place, now, spark, isSelected, flip }) {
  const open = (event) => {
    if (!event.target.closest("a, input, button") && !String(getSelection())) location.hash = `#/${row.id}`;
  };
  const isLive = LIVE.includes(row.state);
  const why = row.state === "succeeded" ? "" : row.reason;
  return html`
    <div class="row ${isSelected ? "is-selected" : ""} ${why ? "has-why" : ""}" role="row" aria-rowindex=${place + 2} style=${top(place)} onClick=${open}>
      <span role="cell" class="col-select"><input type="checkbox" aria-label="select job ${row.number}" checked=${isSelected} onChange=${() => flip(row.id)} /></span>
      <span role="cell" class="col-number"><a href="#/${row.id}" aria-label="job ${row.number}, ${row.name}">${row.number}</a></span>
      <span role="cell" class="col-name" title=${[row.name, row.job_file, ...row.overrides].join(" ")}><a href="#/${row.id}" tabindex="-1">${row.name}</a>${row.tags.map((tag) => html`<span class="tag">${tag}</span>`)}</span>
      <span role="cell" class="col-state"><${State} ...${row} />${why && html`<span class="unseen">: ${why}</span>`}</span>
      <span role="cell" class="col-progress"><${Progress} part=${row.progress} /></span>
      <span role="cell" class="col-left">${isLive ? duration(row.left_s) : ""}</span>
      <span role="cell" class="col-loss"><${Spark} values=${spark} label="loss" /><b>${number(row.loss)}</b></span>
      <span role="cell" class="col-best" title=${best(row)}>${row.best && html`<b>${number(row.best.value)}</b> <small>${inWords(row.best.metric)}</small>`}</span>
      <span role="cell" class="col-speed">${isLive ? number(row.samples_per_s) : ""}</span>
      <span role="cell" class="col-cores">${cores(row)}</span>
      <span role="cell" class="col-when">${when(row, now)}</span>
      ${why && html`<small class="why" title=${why} aria-hidden="true">${why}</small>`}
    </div>
  `;
}

const when = (row, now) =>
  ENDED.includes(row.state) || row.state === "paused"
    ? ago(row.ended ?? row.submitted, now)
    : `for ${age(now - ((LIVE.includes(row.state) && row.started) || row.submitted))}`;

const heightOf = (body) => parseFloat(getComputedStyle(body).getPropertyValue("--row"));

// Return [first, last) of the rows that are seen.
function useSeen(body, many) {
  const [[first, seen], setSeen] = useState([0, 40]);
  useEffect(() => {
    const look = () => {
      const height = heightOf(body.current);
      const above = Math.floor(-body.current.getBoundingClientRect().top / height) - BEYOND;
      const next = [Math.max(0, above), Math.ceil(innerHeight / height) + 2 * BEYOND];
      setSeen((before) => (String(before) === String(next) ? before : next));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, []);
  return [Math.min(first, Math.max(0, many - seen)), first + seen];
}
