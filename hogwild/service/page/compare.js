// Several jobs: their curves over each other, and a table of what differs.
import { html, useEffect, useState } from "./vendor/preact/htm-preact.module.js";
import { get } from "./api.js";
import { Curves } from "./curves.js";
import { Empty, LIVE, State } from "./parts.js";
import { duration, inWords, number, rank, shown } from "./words.js";

const NOT_SETTINGS = ["name"];
const MOST_CURVES = 14; // at first; more cannot be told apart

// rows: jobs in the order of their colours; runs: those that the stream follows
export function Compare({ rows, runs }) {
  const [fetched, setFetched] = useState({}); // id -> {curves of an ended job, fields}
  const [hidden, setHidden] = useState(() => rows.slice(MOST_CURVES).map((row) => row.id));
  const [sort, setSort] = useState({ by: "job", isDown: false });
  useEffect(() => {
    for (const { id, state } of rows) {
      const known = fetched[id] ?? {};
      const add = (changes) => setFetched((before) => ({ ...before, [id]: { ...before[id], ...changes } }));
      if (!known.fields) get(`jobs/${id}/config`).then(({ fields }) => add({ fields }), () => add({ fields: [] }));
      if (!LIVE.includes(state) && !hidden.includes(id)) get(`jobs/${id}/metrics`).then((curves) => add({ curves }), () => add({ curves: undefined }));
    }
  }, [rows.map((row) => row.id + row.state).join(), hidden]);
  if (!rows.length)
    return html`<${Empty}><h1 tabindex="-1">Nothing to compare</h1><p>Select jobs in <a href="#/">the list</a> (key x), then Compare (key c).</p><//>`;
  const shownRuns = rows.map((row) => ({
    id: row.id,
    label: `${row.number} ${row.name}`,
    curves: hidden.includes(row.id) ? null : (runs[row.id]?.curves ?? fetched[row.id]?.curves),
  }));
  const flip = (id) => setHidden(hidden.includes(id) ? hidden.filter((one) => one !== id) : [...hidden, id]);
  return html`
    <div class="controls"><h1 tabindex="-1"><a href="#/" aria-label="all jobs">‹</a> ${rows.length} jobs compared</h1></div>
    <${Curves} runs=${shownRuns} />
    <${Table} rows=${rows} columns=${columnsOf(rows, fetched)} hidden=${hidden} flip=${flip} sort=${sort} setSort=${setSort} />
  `;
}

// Settings whose values differ, then results. value(row) is for sorting, text(row) for people.
function columnsOf(rows, fetched) {
  const values = Object.fromEntries(rows.map(({ id }) => [id, new Map((fetched[id]?.fields ?? []).map(({ path, value }) => [path, value]))]));
  const known = rows.filter(({ id }) => values[id].size);
  const paths = [...new Set(known.flatMap(({ id }) => [...values[id].keys()]))].filter((path) => !NOT_SETTINGS.includes(path));
  const differing = paths.filter((path) => new Set(known.map(({ id }) => JSON.stringify(values[id].get(path) ?? null))).size > 1);
  const metrics = [...new Set(rows.flatMap((row) => Object.keys(row.metrics ?? {})))];
  const figure = (name, value) => ({ name, value, text: (row) => number(value(row)) });
  return [
    ...differing.map((path) => ({ name: path.replace(".init_args.", "."), isSetting: true, value: ({ id }) => values[id].get(path) ?? null, text: ({ id }) => (values[id].has(path) ? shown(values[id].get(path)) : "") })),
    figure("training loss", (row) => row.loss),
    ...metrics.map((name) => figure(`last ${name === "loss" ? "validation loss" : inWords(name)}`, (row) => row.metrics?.[name] ?? null)),
    { name: "best", value: rank, text: (row) => (row.best ? `${inWords(row.best.metric)} ${number(row.best.value)}` : "") },
    figure("updates", (row) => row.updates),
    { name: "duration", value: spent, text: (row) => duration(spent(row)) },
    figure("samples/s", (row) => row.samples_per_s),
    figure("restarts", (row) => row.restarts),
  ];
}

const spent = (row) => (row.started === null ? null : (row.ended ?? Date.now() / 1000) - row.started);

function Table({ rows, columns, hidden, flip, sort, setSort }) {
  const places = new Map(rows.map((row, place) => [row.id, place]));
  const column = columns.find(({ name }) => name === sort.by);
  const ordered = column ? [...rows].sort((one, other) => compared(column.value(one), column.value(other)) * (sort.isDown ? -1 : 1)) : rows;
  const sorts = ({ name }) => html`
    <button onClick=${() => setSort({ by: name, isDown: sort.by === name && !sort.isDown })}>${name}<i aria-hidden="true">${sort.by !== name ? "" : sort.isDown ? "▾" : "▴"}</i></button>
  `;
  const order = ({ name }) => (sort.by !== name ? undefined : sort.isDown ? "descending" : "ascending");
  return html`
    <h2>What differs</h2>
    <div class="scroll">
      <table class="compared">
        <caption class="unseen">settings that differ, and results</caption>
        <thead>
          <tr><th aria-sort=${order({ name: "job" })}>${sorts({ name: "job" })}</th><th>state</th>${columns.map((one) => html`<th class=${one.isSetting ? "is-setting" : "n"} aria-sort=${order(one)}>${sorts(one)}</th>`)}</tr>
        </thead>
        <tbody>
          ${ordered.map((row) => html`
            <tr key=${row.id}>
              <th scope="row">
                <label><input type="checkbox" checked=${!hidden.includes(row.id)} aria-label="show the curves of job ${row.number}" onChange=${() => flip(row.id)} /><i class="key ${charts.isDashed(places.get(row.id), rows.length) ? "is-dashed" : ""}" style="--own: ${charts.shade(places.get(row.id), rows.length)}"></i></label>
                <a href="#/${row.id}">${row.number} ${row.name}</a>
              </th>
              <td><${State} ...${row} /></td>
              ${columns.map((one) => html`<td class=${one.isSetting ? "is-setting" : "n"}>${one.text(row)}</td>`)}
            </tr>
          `)}
        </tbody>
      </table>
    </div>
  `;
}

function compared(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return 1;
  if (other === null || other === undefined) return -1;
  return typeof one === "number" && typeof other === "number" ? one - other : shown(one).localeCompare(shown(other));
}
