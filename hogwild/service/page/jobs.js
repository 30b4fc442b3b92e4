// The list of jobs. Only the rows that are seen are drawn, so a thousand jobs are as quick as ten.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact/htm-preact.module.js";
import { post } from "./api.js";
import { useFetched, useKept, useKeys, useNow } from "./hooks.js";
import { ENDED, Empty, LIVE, Progress, Spark, State, confirmed } from "./parts.js";
import { age, ago, best, cores, count, duration, inWords, number, rank, sweepValues } from "./words.js";

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
  const [{ words, kind, sort, isDown, closed }, setView] = useKept("jobs", { words: "", kind: "all", sort: "number", isDown: true, closed: [] }, sessionStorage);
  const change = (changes) => setView({ words, kind, sort, isDown, closed, ...changes });
  const sortBy = (column) => change({ sort: column, isDown: sort === column ? !isDown : !RISING.includes(column) });
  const filter = useRef(null);
  useKeys({ "/": () => filter.current?.focus() });
  const rows = [...jobs.values()];
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = rows.filter((row) => wanted.every((word) => textOf(row).includes(word)));
  const items = itemsOf(sorted(matching.filter(KINDS[kind][1]), sort, isDown), closed, sort);
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
    ${items.length
      ? html`<${List} items=${items} sort=${sort} isDown=${isDown} sortBy=${sortBy} change=${change} closed=${closed} selected=${selected} select=${select} />`
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

const textOf = (row) => [row.number, row.name, row.id, row.state, row.reason, row.job_file, row.sweep, ...row.tags, ...row.overrides].join(" ").toLowerCase();

function sorted(rows, column, isDown) {
  const value = COLUMNS[column][1];
  return rows.sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === b || (a === null && b === null)) return other.number - one.number;
    if (a === null || b === null) return a === null ? 1 : -1; // what is not known comes last, up or down
    return (a < b ? -1 : 1) * (isDown ? -1 : 1);
  });
}

// A sweep stands where its first row does, and its rows below it: the best first, unless another column than the number
// was chosen.
function itemsOf(rows, closed, sort) {
  const sweeps = new Map();
  for (const row of rows) if (row.sweep) sweeps.set(row.sweep, [...(sweeps.get(row.sweep) ?? []), row]);
  const items = [];
  for (const row of rows) {
    if (!row.sweep) items.push({ row });
    else if (sweeps.get(row.sweep)[0] === row) {
      const inside = sort === "number" ? sorted([...sweeps.get(row.sweep)], "best", false) : sweeps.get(row.sweep);
      items.push({ sweep: row.sweep, rows: inside });
      if (!closed.includes(row.sweep)) items.push(...inside.map((one) => ({ row: one, isInside: true })));
    }
  }
  return items;
}

function List({ items, sort, isDown, sortBy, change, closed, selected, select }) {
  const body = useRef(null);
  const [first, last] = useSeen(body, items.length);
  const [at, setAt] = useState(-1); // the row that j and k have reached
  const now = useNow(5000);
  const [sparks] = useFetched(`sparklines?points=${SPARK_POINTS}`, SPARK_MS);
  const flip = (...ids) => select(ids.every((id) => selected.includes(id)) ? selected.filter((one) => !ids.includes(one)) : [...new Set([...selected, ...ids])]);
  const move = (by) => {
    const next = Math.max(0, Math.min(items.length - 1, at + by));
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
    if (target !== document.body || !items[at]?.row) return false;
    location.hash = `#/${items[at].row.id}`;
    return true;
  };
  useKeys({ j: () => move(1), k: () => move(-1), x: () => items[at] && flip(...(items[at].rows ?? [items[at].row]).map((row) => row.id)), Enter: open });
  return html`
    <div id="jobs" class="table jobs" role="table" aria-label="jobs" aria-rowcount=${items.length + 1}>
      <div class="head" role="row" aria-rowindex="1">
        <span role="columnheader"><span class="unseen">selected</span></span>
        ${Object.entries(COLUMNS).map(([name, [text]]) => html`
          <span role="columnheader" class="col-${name}" aria-sort=${sort !== name ? undefined : isDown ? "descending" : "ascending"}>
            <button onClick=${() => sortBy(name)}>${text}<i aria-hidden="true">${sort !== name ? "" : isDown ? "▾" : "▴"}</i></button>
          </span>
        `)}
        <span role="columnheader" class="col-when">when</span>
      </div>
      <div ref=${body} class="body" role="rowgroup" style=${{ height: `calc(${items.length} * var(--row))` }}>
        ${items.slice(first, last).map((item, place) => html`
          <${item.row ? Row : Sweep} key=${item.row?.id ?? item.sweep} item=${item} place=${first + place} now=${now}
            isOpen=${!closed.includes(item.sweep)} spark=${sparks?.[item.row?.id]} isSelected=${selected.includes(item.row?.id)} flip=${flip}
            toggle=${() => change({ closed: closed.includes(item.sweep) ? closed.filter((one) => one !== item.sweep) : [...closed, item.sweep] })} />
        `)}
      </div>
    </div>
  `;
}

const top = (place) => ({ transform: `translateY(calc(${place} * var(--row)))` });

function Row({ item: { row, isInside }, place, now, spark, isSelected, flip }) {
  const open = (event) => {
    if (!event.target.closest("a, input, button") && !String(getSelection())) location.hash = `#/${row.id}`;
  };
  const isLive = LIVE.includes(row.state);
  const why = row.state === "succeeded" ? "" : row.reason;
  return html`
    <div class="row ${isSelected ? "is-selected" : ""} ${isInside ? "is-inside" : ""} ${why ? "has-why" : ""}" role="row" aria-rowindex=${place + 2} style=${top(place)} onClick=${open}>
      <span role="cell" class="col-select"><input type="checkbox" aria-label="select job ${row.number}" checked=${isSelected} onChange=${() => flip(row.id)} /></span>
      <span role="cell" class="col-number"><a href="#/${row.id}" aria-label="job ${row.number}, ${row.name}">${row.number}</a></span>
      <span role="cell" class="col-name" title=${[row.name, sweepValues(row), row.job_file, ...row.overrides].join(" ")}><a href="#/${row.id}" tabindex="-1">${(isInside && sweepValues(row)) || row.name}</a>${row.tags.map((tag) => html`<span class="tag">${tag}</span>`)}</span>
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

function Sweep({ item: { sweep, rows }, place, isOpen, toggle }) {
  const [error, setError] = useState("");
  const isGoing = rows.some((row) => row.state === "queued" || LIVE.includes(row.state));
  const cancel = async () => {
    const text = "Those that run write a checkpoint and stop; the others do not start.";
    if (await confirmed({ title: `Cancel all jobs of sweep ${rows[0].name}?`, text, yes: "Cancel them", no: "Let them run" }))
      post(`sweeps/${sweep}/cancel`).then(() => setError(""), (problem) => setError(problem.message));
  };
  const counts = STATES.map((state) => [state, rows.filter((row) => row.state === state).length]).filter(([, many]) => many);
  return html`
    <div class="row sweep" role="row" aria-rowindex=${place + 2} style=${top(place)}>
      <span role="cell">
        <button aria-expanded=${isOpen} onClick=${toggle}>${isOpen ? "▾" : "▸"} sweep ${rows[0].name}</button>
        <span class="quiet">${count(rows.length, "job")}: ${counts.map(([state, many]) => `${many} ${state}`).join(", ")}</span>
        <a href="#/compare/sweep:${sweep}">compare</a>
        ${isGoing && html`<button class="danger" onClick=${cancel}>cancel all</button>`}
        ${error && html`<span class="warn" role="alert">${error}</span>`}
      </span>
    </div>
  `;
}

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
