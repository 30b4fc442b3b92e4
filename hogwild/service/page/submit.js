// A job file is written or taken from a template, checked as it is typed, and submitted.
import { html, useEffect, useRef, useState } from "./vendor/preact/htm-preact.module.js";
import { Refused, get, post } from "./api.js";
import { useFetched, useKept } from "./hooks.js";
import { count } from "./words.js";

const CHECK_MS = 400; // after the last letter
const START = { text: "", overrides: "", name: "job", files: {}, needs: [], folder: "", copyOf: null };

// from: id of a job that is copied
export function Submit({ from }) {
  const [kept, setDraft] = useKept("draft", START, sessionStorage);
  const draft = { ...START, ...kept }; // of an earlier version of the page, perhaps
  const [templates] = useFetched("templates");
  const [verdict, setVerdict] = useState(null); // of the last check: {row} or {problems, message}
  const [isBusy, setBusy] = useState(false);
  const area = useRef(null);
  const id = useRef(newId()); // the same until it is accepted: a repeated request is the same job
  const change = (changes) => setDraft({ ...draft, ...changes });
  const overrides = linesOf(draft.overrides);
  const { copyOf } = draft; // its code, data and environment; a changed folder has its own code
  const place = draft.folder.trim() && draft.folder.trim() !== copyOf?.folder ? { from_folder: draft.folder.trim() } : {};
  const body = { text: draft.text, job_file: `${draft.name}.yaml`, files: draft.files, ...(copyOf && { copy_of: copyOf.id }), ...place };

  useEffect(() => {
    if (!from) return;
    get(`jobs/${from}/config`).then(
      ({ text, overridden, folder }) => setDraft({ ...START, text, folder, copyOf: { id: from, folder }, overrides: overridden.map(({ path, value }) => `${path}=${value}`).join("\n") }),
      (problem) => setVerdict({ problems: [], message: problem.message }),
    );
  }, [from]);

  useEffect(() => {
    setVerdict((before) => before && { ...before, isOld: true });
    if (!draft.text.trim()) return setVerdict(null);
    let isOver = false;
    const timer = setTimeout(async () => {
      const found = await post("check", { ...body, overrides }).then((row) => ({ row, problems: [] }), refusal);
      if (!isOver) setVerdict(found);
    }, CHECK_MS);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [draft.text, draft.overrides, draft.name, draft.folder, draft.copyOf]);

  const submit = async () => {
    setBusy(true);
    try {
      location.hash = `#/${(await post("jobs", { ...body, overrides, id: id.current })).id}`;
      setDraft(START);
    } catch (problem) {
      id.current = newId();
      setVerdict(refusal(problem));
    }
    setBusy(false);
  };
  const take = (name) => {
    const { text, files, needs } = templates.find((one) => one.name === name) ?? START;
    change({ ...START, overrides: draft.overrides, text, files, needs, name: name || START.name });
  };
  const problems = verdict?.problems ?? [];
  const isReady = verdict?.row && !verdict.isOld;
  return html`
    <h1 tabindex="-1">Submit a job</h1>
    <div class="submit">
      <div class="written">
        <div class="controls">
          <label>start from
            <select value=${""} onChange=${(event) => take(event.currentTarget.value)}>
              <option value="">a template …</option>
              ${(templates ?? []).map((one) => html`<option value=${one.name}>${one.name}: ${one.description}</option>`)}
            </select>
          </label>
          <label>or a file <input type="file" accept=".yaml,.yml" onChange=${async (event) => {
            const [file] = event.currentTarget.files;
            if (file) change({ files: {}, needs: [], text: await file.text(), name: file.name.replace(/\.ya?ml$/, "") });
          }} /></label>
        </div>
        <${Editor} text=${draft.text} problems=${problems.filter((one) => one.line)} area=${area} change=${(text) => change({ text })} submit=${() => isReady && submit()} />
      </div>
      <div class="checked">
        <label class="over">folder of the job's code and data, on the service's machine
          <input type="text" spellcheck="false" placeholder="/path/of/project" value=${draft.folder} onInput=${(event) => change({ folder: event.currentTarget.value })} />
        </label>
        <label class="over">overrides, one <code>key=value</code> per line
          <textarea rows="4" spellcheck="false" placeholder="train.epochs=3" value=${draft.overrides} onInput=${(event) => change({ overrides: event.currentTarget.value })}></textarea>
        </label>
        <div id="verdict" role="status">
          ${!draft.text.trim() && html`<p class="quiet">Take a template, open a file, or write a job file. It is checked as you type; nothing starts before you press Submit.</p>`}
          ${verdict?.row && html`<p class="notice">The job file is valid. ${verdict.row.name} gets ${count(verdict.row.cpus, "core")}.</p>`}
          ${verdict && !verdict.row && !problems.length && html`<p class="alert">${verdict.message}</p>`}
          ${problems.length > 0 && html`<p>${count(problems.length, "error")}:</p>`}
        </div>
        <ol class="problems">
          ${problems.map((one) => html`<${Problem} problem=${one} draft=${draft} change=${change} area=${area} />`)}
        </ol>
        <p class="actions">
          <button class="primary" disabled=${!isReady || isBusy} onClick=${submit}>Submit</button>
          <span class="quiet">Ctrl Enter</span>
        </p>
        ${verdict?.row?.files.length > 0 && html`<p class="quiet">Submitted with it: ${verdict.row.files.join(", ")}</p>`}
        ${draft.needs.length > 0 && html`<p class="quiet">The template reads ${draft.needs.join(", ")}. Put your own path there, as the service's machine sees it.</p>`}
      </div>
    </div>
  `;
}

const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

const newId = () => [...crypto.getRandomValues(new Uint8Array(6))].map((one) => one.toString(16).padStart(2, "0")).join("");

const refusal = (problem) => ({ problems: problem instanceof Refused ? problem.problems : [], message: problem.message });

// A text area over lines that carry the marks; both scroll together.
function Editor({ text, problems, area, change, submit }) {
  const back = useRef(null);
  const marks = new Map(problems.map((one) => [one.line, one.message]));
  const lines = text.split("\n");
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
  };
  const scroll = ({ currentTarget: { scrollTop, scrollLeft } }) => {
    back.current.style.transform = `translateY(${-scrollTop}px)`;
  };
  return html`
    <div class="editor">
      <div class="lines" aria-hidden="true">
        <div ref=${back}>${lines.map((_, place) => html`<div class=${marks.has(place + 1) ? "is-wrong" : ""} title=${marks.get(place + 1)}>${place + 1}</div>`)}</div>
      </div>
      <textarea ref=${area} aria-label="job file" aria-invalid=${marks.size > 0} aria-describedby="verdict" spellcheck="false" autocapitalize="off" wrap="off"
        value=${text} onInput=${(event) => change(event.currentTarget.value)} onScroll=${scroll} onKeyDown=${keys}></textarea>
    </div>
  `;
}

// One error: where it is, its rule and code, and the nearest correct value as a button.
function Problem({ problem: { line, column, path, message, code, source }, draft, change, area }) {
  const lines = draft.text.split("\n");
  const show = () => {
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    area.current.focus();
    area.current.setSelectionRange(start + Math.max(0, column - 1), start + lines[line - 1].length);
  };
  const [right] = message.match(/(?<=did you mean ')[^']+/) ?? [];
  const [wrong] = message.match(/(?<=')[^']+(?='; did you mean)/) ?? [path.split(".").at(-1)];
  const isFixable = right && !right.includes(".") && line > 0 && lines[line - 1].indexOf(wrong, column - 1) >= 0;
  const fix = () => {
    const place = lines[line - 1].indexOf(wrong, column - 1);
    lines[line - 1] = lines[line - 1].slice(0, place) + right + lines[line - 1].slice(place + wrong.length);
    change({ text: lines.join("\n") });
  };
  return html`
    <li>
      ${line ? html`<button class="plain" onClick=${show}>line ${line}</button>` : html`<b>${source}</b>`} <b>${path}</b>
      <p>${message}</p>
      <p class="quiet">${isFixable && html`<button onClick=${fix}>Use ${right}</button> `}<code>${code}</code></p>
    </li>
  `;
}
