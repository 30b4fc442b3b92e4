// The charts of the report and of the service's page: colours, numbers as text, axes, and the curves of one run or of
// several, one uPlot chart per panel. Texts of a run only ever become textContent.
//
//   runs ── panelsOf ──► panels of lines ── gallery ──► a figure each: title, legend with the latest values, chart
//
// A run is {name, tables, marks, best, end}; a table is {columns: {time, samples, updates, ...}, breaks, is_sparse}, and
// before the rows `breaks` nothing was recorded for long. Curves are the values as recorded; a smoothed curve, if somebody
// wants one, is drawn over them, and has no name in a legend.
"use strict";
const charts = (() => {
  const NAMED = 7; // so many curves have colours of their own; as many again are dashed; more form a gradient

  // ---- colours ----

  const probe = document.createElement("span"); // a canvas does not know variables; light-dark() is resolved only in a colour
  probe.hidden = true;
  let resolved = new Map();
  const css = (name) => {
    if (!resolved.has(name)) {
      document.body.append(probe);
      probe.style.color = name.startsWith("--") ? `var(${name})` : name;
      resolved.set(name, getComputedStyle(probe).color);
    }
    return resolved.get(name);
  };
  const shade = (place, count) =>
    count <= 2 * NAMED ? `var(--c${place % NAMED})` : `hsl(${Math.round(265 - (215 * place) / (count - 1))} 65% 52%)`;
  const isDashed = (place, count) => place >= NAMED && count <= 2 * NAMED;
  const colour = (place, count) => css(shade(place, count));
  const phase = (word) => css(PHASES[word] || "--p-other");
  const PHASES = {};
  for (const name of ["starting", "working", "waiting", "evaluating", "parked", "leaving", "compiling"])
    PHASES[name] = `--p-${name}`;
  PHASES["alive, phase not recorded"] = "--p-alive";

  // ---- numbers as text ----

  const significant = (value, digits) =>
    Math.abs(value) >= 1e15 ? value.toExponential(digits - 1)
      : Math.abs(value) >= 1e4
      ? Math.round(value).toLocaleString("en")
      : String(Number(value.toPrecision(digits)));
  const short = (value) => {
    if (Math.abs(value) >= 1e15) return value.toExponential();
    for (const [size, word] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= size) return Number((value / size).toPrecision(4)) + word;
    return String(Number(value.toPrecision(4)));
  };
  const bytes = (value) => {
    for (const [power, word] of [[40, "TiB"], [30, "GiB"], [20, "MiB"], [10, "KiB"]])
      if (Math.abs(value) >= 2 ** power) return Number((value / 2 ** power).toPrecision(3)) + " " + word;
    return value + " B";
  };
  const clock = (value, step = 1) => {
    const two = (number) => String(Math.floor(number)).padStart(2, "0");
    if (step < 1) return Number(value.toFixed(3)) + " s";
    const [hours, minutes, seconds] = [Math.floor(value / 3600), (value / 60) % 60, value % 60];
    if (hours >= 72) return Number((hours / 24 + (minutes % 60) / 1440).toFixed(1)) + " d";
    return hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${Math.floor(minutes)}:${two(seconds)}`;
  };
  const tick = (value, step) =>
    step >= 86400 ? value / 86400 + " d" : step >= 3600 ? value / 3600 + " h"
      : step < 60 ? clock(value, step) : value < 3600 ? value / 60 + " min"
      : `${Math.floor(value / 3600)} h ${(value / 60) % 60 || ""}`;
  const onAxis = (form) => (form === "bytes" ? bytes : short);
  const inFull = (form, value) =>
    form === "bytes" ? bytes(value) : form === "cores" ? value.toFixed(2) + " cores" : significant(value, 5);
  const xInFull = (axis, value) =>
    axis === "time" ? clock(value, value < 180 ? 0.1 : 1) : Math.round(value).toLocaleString("en") + " " + axis;
  const STEPS = {
    staleness: [1, 2, 5, 10, 20, 50],
    time: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600]
      .concat([43200, 86400, 172800, 432000, 864000, 1728000]),
    bytes: Array.from({ length: 45 }, (_, power) => 2 ** power),
  };

  // ---- axes ----

  // The places of ticks. Counted beforehand: uPlot adds steps until it is past the end, and where a step is lost in rounding
  // that is never.
  const MOST_TICKS = 1000;
  const places = (low, high, first, count, place) =>
    count >= 0 && count < MOST_TICKS ? [...new Set(Array.from({ length: count + 1 }, (_, at) => place(first + at)))].filter((one) => one >= low && one <= high) : [];
  const steps = (low, high, step) =>
    places(low, high, Math.ceil(low / step), Math.floor(high / step) - Math.ceil(low / step), (at) => Number((at * step).toPrecision(12)));
  const splits = (u, at, low, high, step) => {
    if (u.scales[u.axes[at].scale].distr !== 3) return steps(low, high, step);
    const [first, end] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const ofPowers = places(low, high, 9 * first, 9 * (end - first), (at) => Number(`${at - 9 * Math.floor(at / 9) + 1}e${Math.floor(at / 9)}`));
    const size = 10 ** Math.floor(Math.log10(high - low));
    return ofPowers.length > 1 ? ofPowers : steps(low, high, high - low > 3 * size ? size : size / 2);
  };
  const axes = (axis, form, width = 58) => [
    {
      stroke: () => css("--quiet"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false },
      space: 70, size: 32, incrs: STEPS[axis], splits,
      values: (_, splits, _axis, _space, step) =>
        splits.map((value) => (value === null ? "" : axis === "time" ? tick(value, step) : short(value))),
    },
    {
      stroke: () => css("--quiet"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false },
      size: width, incrs: STEPS[form], splits,
      values: (u, splits) => {
        const isNice = (value) => u.scales.y.distr !== 3 || [1, 2, 5].includes(Number(value.toExponential(3).split("e")[0]));
        const all = splits.filter((value) => value !== null && isNice(value)).length < 2;
        return splits.map((value) => (value !== null && (all || isNice(value)) ? onAxis(form)(value) : ""));
      },
    },
  ];

  const range = (form, isLog) => (_, low, high) => {
    if (low === null || high === null) return isLog ? [0.1, 1] : [0, 1];
    if (isLog) return [low / (high / low) ** 0.06 / 1.02, high * (high / low) ** 0.06 * 1.02];
    if (form !== "number") return [0, high > 0 ? high * 1.08 : 1];
    const most = Math.max(Math.abs(low), Math.abs(high));
    // A smaller span is rounding (of smoothed equal values): such a curve is level.
    const margin = 0.07 * (high - low > 1e-9 * most ? high - low : most || 1);
    return [low >= 0 && low < margin ? 0 : low - margin, high + margin];
  };

  // ---- panels ----

  const AXES = { time: "running time", samples: "samples", updates: "updates" };
  const SMOOTH = [0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99]; // weights of the values before
  const TRAINING = {
    __proto__: null,
    loss: { group: "learning", title: "loss", label: "training", isSmoothable: true },
    lr: { group: "learning" },
    samples_per_s: { group: "throughput", form: "rate", isWide: true, isSmoothable: true },
    pss_bytes: { group: "resources", form: "bytes", title: "memory of all processes" },
    "cluster.seconds": { group: "rounds", title: "seconds of a round" },
    "cluster.drift": { group: "rounds", title: "drift of this node in a round" },
  };
  const WORKERS = {
    samples_per_s: { group: "throughput", form: "rate", isWide: true, title: "samples per second of each worker" },
    pss_bytes: { group: "resources", form: "bytes", title: "memory of each worker" },
    cpu: { group: "resources", form: "cores", title: "processor time of each worker" },
  };
  const ORDER = [/^(training )?loss$/, /^validation /, /^losses\./, /^lr$/]; // then the others
  const rank = ({ name }) => (ORDER.findIndex((pattern) => pattern.test(name)) + ORDER.length + 1) % (ORDER.length + 1);

  // The panels of one run, with training and validation in one, or of several. A line: {run, table, column, label, place,
  // count}, its colour by `place` among `count`. `inWords`: a column's name in words.
  const panelsOf = (runs, inWords) => {
    const alone = runs.length === 1;
    const found = new Map();
    const valuesOf = ({ run, table, column }) => runs[run].tables[table].columns[column];
    const add = (name, looks, line) => {
      if (!valuesOf(line).some((value) => value !== null)) return;
      if (!found.has(name)) found.set(name, { name, form: "number", ...looks, lines: [] });
      found.get(name).lines.push(alone ? line : { ...line, label: runs[line.run].name, place: line.run, count: runs.length });
    };
    runs.forEach(({ tables: { train, evaluations, workers } }, run) => {
      const columns = (table) => Object.keys(table?.columns ?? {}).filter((name) => !Object.hasOwn(AXES, name));
      const losses = columns(train).filter((name) => name.startsWith("losses."));
      for (const column of columns(train)) {
        const part = losses.indexOf(column);
        const looks = part < 0 ? TRAINING[column] : { group: "learning", title: `training loss: ${column.slice(7)}`, isSmoothable: true };
        const isShared = column === "loss" && !alone;
        const label = looks.label ?? inWords(column);
        const line = { run, table: "train", column, label, place: Math.max(0, part), count: Math.max(2, losses.length) };
        add(isShared ? "training loss" : column, { ...looks, title: isShared ? "training loss" : (looks.title ?? inWords(column)) }, line);
      }
      for (const column of columns(evaluations)) {
        const line = { run, table: "evaluations", column, label: "validation", place: 1, count: 2 };
        const popular = column.startsWith("popularity.") ? column.slice(11) : "";
        if (popular && alone) add(`validation ${popular}`, {}, { ...line, label: "most popular items", place: 0 });
        else if (popular) continue;
        else if (column === "loss" && alone) add("loss", TRAINING.loss, line);
        else add(`validation ${column}`, { group: "learning", title: `validation ${inWords(column)}` }, line);
      }
      const ofWorkers = alone ? columns(workers) : [];
      for (const column of ofWorkers) {
        const [name, worker] = column.split(".");
        const count = ofWorkers.filter((one) => one.startsWith(`${name}.`)).length;
        if (count === 1 && name === "samples_per_s") continue; // the job's are those of its worker
        add(`worker_${name}`, WORKERS[name], { run, table: "workers", column, label: `worker ${worker}`, place: Number(worker), count });
      }
    });
    for (const panel of found.values()) {
      const known = panel.lines.flatMap(valuesOf).filter((value) => value !== null);
      const [low, high] = known.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
      Object.assign(panel, { isFlat: low === high, isLog: panel.group === "learning" && low > 0 && high > 30 * low });
    }
    return [...found.values()].sort((one, other) => rank(one) - rank(other));
  };

  // ---- columns to curves ----

  // Rows of a table between the places where x goes back: after a rollback a run passes the same samples again.
  const segments = (xs) => {
    const found = [];
    let rows = [];
    for (let row = 0; row < xs.length; row++) {
      if (xs[row] === null) continue;
      if (rows.length && xs[row] < xs[rows[rows.length - 1]]) {
        found.push(rows);
        rows = [];
      }
      rows.push(row);
    }
    if (rows.length) found.push(rows);
    return found;
  };

  // One segment as uPlot columns: undefined is "no value here", null interrupts the curve.
  const columnsOf = (table, xs, rows, many, isLog) => {
    const breaks = new Set(table.breaks);
    const found = [[], ...many.map(() => [])];
    for (const row of rows) {
      if (breaks.has(row) && found[0].length) found.forEach((column, at) => column.push(at ? null : column[column.length - 1]));
      found[0].push(xs[row]);
      many.forEach((values, at) => {
        const value = values[row];
        found[at + 1].push(value === null || (isLog && value <= 0) ? (table.is_sparse ? null : undefined) : value);
      });
    }
    return found;
  };

  const merged = (parts) => {
    if (parts.length === 1) return parts[0];
    const order = parts.flatMap(([xs], part) => xs.map((x, row) => [x, part, row]));
    order.sort((one, other) => one[0] - other[0]);
    const all = [order.map(([x]) => x)];
    parts.forEach(([, ...ys], part) =>
      ys.forEach((column) => all.push(order.map(([, which, row]) => (which === part ? column[row] : undefined))))
    );
    return all;
  };

  // The mean of the values until then, with exponential weights, corrected for its start.
  const smoothed = (values, weight) => {
    let sum = 0, total = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = weight * sum + (1 - weight) * value;
      total = weight * total + 1 - weight;
      return sum / total;
    });
  };

  // Return [columns, series]: a series per line and segment, {line, isFaint, isSmooth, isDot}. isDot: it has one value.
  const curvesOf = (runs, { lines, isSmoothable }, { x, smooth }, isLog) => {
    const groups = new Map();
    for (const line of lines) {
      const key = `${line.run}/${line.table}`;
      groups.set(key, [...(groups.get(key) ?? []), line]);
    }
    const [parts, series] = [[], []];
    for (const group of groups.values()) {
      const table = runs[group[0].run].tables[group[0].table];
      const ofLine = (line) => {
        const values = table.columns[line.column];
        const isDot = values.filter((value) => value !== null).length === 1;
        if (!smooth || !isSmoothable || line.table === "evaluations") return [[values, { line, isDot }]];
        return [[values, { line, isFaint: true }], [smoothed(values, SMOOTH[smooth]), { line, isSmooth: true }]];
      };
      const drawn = group.flatMap(ofLine);
      for (const rows of segments(table.columns[x])) {
        parts.push(columnsOf(table, table.columns[x], rows, drawn.map(([values]) => values), isLog));
        series.push(...drawn.map(([, one]) => one));
      }
    }
    return [parts.length ? merged(parts) : [[0]], series];
  };

  // ---- elements ----

  const el = (tag, props = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), props);
    made.append(...children);
    return made;
  };
  const key = (shadeOfIt) => {
    const made = el("i");
    if (shadeOfIt) made.style.background = shadeOfIt;
    return made;
  };

  // The values beside the pointer: `rows` are [colour, name, value].
  const MOST_SHOWN = 8; // values in a tooltip: those nearest to the pointer
  const tip = el("div", { className: "tip", hidden: true });
  const showTip = (u, title, rows) => {
    document.body.append(tip);
    tip.owner = u;
    tip.replaceChildren(
      el("b", { textContent: title }),
      ...rows.map(([shadeOfIt, name, value]) => el("div", {}, key(shadeOfIt), el("span", { textContent: name }), el("em", { textContent: value })))
    );
    tip.hidden = false;
    const box = u.over.getBoundingClientRect();
    const left = box.left + u.cursor.left;
    const width = tip.offsetWidth;
    const x = left + width + 24 > innerWidth ? Math.max(4, left - width - 16) : left + 16;
    const y = Math.min(box.top + u.cursor.top + 12, innerHeight - tip.offsetHeight - 8);
    tip.style.transform = `translate(${x}px, ${Math.max(4, y)}px)`;
  };
  const hideTip = (u = tip.owner) => u === tip.owner && (tip.hidden = true);
  addEventListener("scroll", () => hideTip(), { passive: true });
  const isPointed = (u) => u.over.matches(":hover") && u.cursor.left >= 0;

  const tooltip = (panel, axis) => (u) => {
    if (!isPointed(u)) return hideTip(u);
    let rows = [];
    u.series.forEach((one, at) => {
      const row = u.cursor.idxs[at];
      const value = at && row !== null && row !== undefined ? u.data[at][row] : null;
      if (!one.show || one.isSmooth || value === null || value === undefined) return;
      rows.push({ away: Math.abs(u.valToPos(value, "y") - u.cursor.top), value, line: one.line, at });
    });
    if (rows.length > MOST_SHOWN) rows = rows.sort((one, other) => one.away - other.away).slice(0, MOST_SHOWN);
    rows.sort((one, other) => one.at - other.at);
    if (!rows.length) return hideTip(u);
    const told = rows.map(({ line, value }) => [shade(line.place, line.count), line.label, inFull(panel.form, value)]);
    showTip(u, xInFull(axis, u.posToVal(u.cursor.left, "x")), told);
  };

  // Rollbacks, resumes and the best evaluation.
  const marked = (panel, runs, axis) => (u) => {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    for (const mark of runs.length === 1 ? (runs[0].marks ?? []) : []) {
      const at = u.valToPos(mark[axis], "x", true);
      if (mark[axis] === null || at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = css(mark.kind === "rollback" ? "--c3" : "--quiet");
      ctx.setLineDash([4 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      const isLate = at > bbox.left + 0.85 * bbox.width;
      ctx.textAlign = isLate ? "right" : "left";
      ctx.fillText(mark.kind, at + (isLate ? -4 : 4) * ratio, bbox.top + 10 * ratio);
    }
    for (const { run, table, column, place: own, count } of panel.lines) {
      const { best } = runs[run];
      if (table !== "evaluations" || typeof best?.[column] !== "number" || best[axis] === null) continue;
      const [x, y] = [u.valToPos(best[axis], "x", true), u.valToPos(best[column], "y", true)];
      if (!(x >= bbox.left - 1 && x <= bbox.left + bbox.width + 1)) continue;
      ctx.setLineDash([]);
      ctx.beginPath();
      for (let point = 0; point < 10; point++) {
        const [radius, angle] = [(point % 2 ? 4 : 9) * ratio, (point * Math.PI) / 5];
        ctx.lineTo(x + radius * Math.sin(angle), y - radius * Math.cos(angle));
      }
      ctx.closePath();
      ctx.fillStyle = colour(own, count);
      ctx.strokeStyle = css("--paper");
      ctx.lineWidth = 1.5 * ratio;
      ctx.fill();
      ctx.stroke();
    }
    ctx.restore();
  };

  const look = ({ line, isFaint, isSmooth, isDot }) => {
    const stroke = () => colour(line.place, line.count);
    const isDots = isDot || line.table === "evaluations";
    return {
      line, isSmooth, stroke, spanGaps: false, label: line.label,
      points: { ...(isFaint || isSmooth ? { show: false } : isDots ? { show: true, size: 6 } : { size: 4 }), stroke, fill: stroke },
      width: isFaint ? 1 : isSmooth ? 2.2 : isDots ? 1.8 : 1.5,
      alpha: isFaint ? 0.4 : 1,
      dash: isDashed(line.place, line.count) ? [6, 3] : undefined,
    };
  };

  // ---- all charts of a page ----

  // Draw the charts of `runs` with one state for all: {x, zoom, smooth, log: {panel: true or false}}. `group(panel)`: the
  // element that a panel belongs to, null for none; `about(panel)`: a sentence below the chart, ""; `more`: panels that
  // draw themselves, with `make(chart)`; `changed`: called after the state was changed here.
  const gallery = ({ state, inWords, group, about = () => "", more = [], changed = () => {} }) => {
    const hidden = new Set(); // panel/label
    let runs = [];
    const found = { charts: [] };
    const isLog = (panel) => state.log[panel.name] ?? panel.isLog;
    const wide = (chart) => Math.max(200, chart.box.clientWidth);

    // The whole x axis, the same for all charts.
    const whole = (axis) => {
      let end = 0;
      for (const run of runs) {
        if (axis === "time") end = Math.max(end, run.end ?? 0);
        for (const table of Object.values(run.tables)) for (const x of table.columns[axis]) if (x > end) end = x;
      }
      return [0, end * 1.01 || 1];
    };

    const options = (axis, extra) => ({
      legend: { show: false },
      padding: [12, 14, 0, 0],
      cursor: {
        points: { size: 7 },
        drag: { x: true, y: false, dist: 6 },
        sync: { key: axis, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        bind: { dblclick: () => () => zoom(null) },
      },
      ...extra,
    });

    const selected = (u) => {
      if (u.select.width < 6) return;
      const ends = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
      u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      if (found.charts.find((one) => one.u === u).axis === state.x) zoom(ends);
    };
    const zoom = (ends) => {
      state.zoom = ends;
      const [min, max] = ends || whole(state.x);
      for (const chart of found.charts) if (chart.axis === state.x) chart.u.setScale("x", { min, max });
      changed();
    };

    const latest = ({ run, table, column }) => runs[run].tables[table].columns[column].findLast((value) => value !== null);
    const legend = (chart) => {
      const { panel } = chart;
      const chips = panel.lines.map((line) => {
        const name = `${panel.name}/${line.label}`;
        const value = el("em", { textContent: inFull(panel.form, latest(line)) });
        const chip = el("button", { type: "button", className: "chip", title: "show or hide" }, key(shade(line.place, line.count)), line.label, value);
        chip.querySelector("i").className = isDashed(line.place, line.count) ? "dashed" : "";
        chip.setAttribute("aria-pressed", String(!hidden.has(name)));
        chip.onclick = () => {
          hidden.has(name) ? hidden.delete(name) : hidden.add(name);
          build(chart);
        };
        return chip;
      });
      if (panel.lines.some(({ run, table }) => table === "evaluations" && runs[run].best)) chips.push(el("span", { className: "chip", textContent: "★ best" }));
      if (chips.length <= 2 * NAMED + 1) return el("div", { className: "legend" }, ...chips);
      const words = `${chips.length} curves, from violet (first) to orange (last)`;
      return el("details", { className: "legend" }, el("summary", { textContent: words }), ...chips);
    };
    const label = ({ panel }) =>
      `${panel.title} by ${AXES[state.x]}; latest: ${panel.lines.slice(0, MOST_SHOWN).map((line) => `${line.label} ${inFull(panel.form, latest(line))}`).join(", ")}`;

    const structure = ({ panel }, series) => [panel.title, isLog(panel), state.x, ...series.map(({ line, isSmooth, isDot }) => `${line.label}${isSmooth ?? ""}${isDot ? "." : ""}`)].join("\n");
    const build = (chart) => {
      const { panel, box } = chart;
      chart.u?.destroy();
      box.replaceChildren();
      if (panel.make) return panel.make(chart);
      const log = isLog(panel);
      const [columns, series] = curvesOf(runs, panel, state, log);
      chart.structure = structure(chart, series);
      const head = el("div", { className: "head" }, el("h3", { textContent: panel.title }));
      if (panel.lines.some((line) => latest(line) > 0)) {
        const button = el("button", { type: "button", className: "small", textContent: "log scale" });
        button.setAttribute("aria-pressed", String(log));
        button.onclick = () => {
          state.log[panel.name] = !log;
          build(chart);
          changed();
        };
        head.append(button);
      }
      const plot = el("div", { className: "plot" });
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", label(chart));
      box.append(head, (chart.legend = legend(chart)), plot);
      if (about(panel)) box.append(el("figcaption", { textContent: about(panel) }));
      chart.axis = state.x;
      const shown = series.map((one) => ({ ...look(one), show: !hidden.has(`${panel.name}/${one.line.label}`) }));
      chart.u = new uPlot(
        options(state.x, {
          width: wide(chart), height: panel.isWide ? 270 : 230,
          scales: { x: { time: false, range: () => state.zoom || whole(state.x) }, y: { distr: log ? 3 : 1, range: range(panel.form, log) } },
          axes: axes(state.x, panel.form),
          series: [{}, ...shown],
          hooks: { draw: [marked(panel, runs, state.x)], setCursor: [tooltip(panel, state.x)], setSelect: [selected] },
        }),
        columns, plot
      );
    };
    // Show newer records of the same runs: without building the chart again if it has the same lines.
    const renew = (chart) => {
      if (chart.panel.make) return;
      const [columns, series] = curvesOf(runs, chart.panel, state, isLog(chart.panel));
      if (structure(chart, series) !== chart.structure) return build(chart);
      chart.u.setData(columns);
      const fresh = legend(chart);
      chart.legend.replaceWith(fresh);
      chart.legend = fresh;
      chart.box.querySelector(".plot").setAttribute("aria-label", label(chart));
    };

    // Draw everything again: the state, the colours or the width have changed.
    const rebuild = () => {
      resolved = new Map();
      hideTip();
      found.charts.forEach(build);
      changed();
    };
    // Show these runs, perhaps with newer records than before.
    const show = (given) => {
      runs = given;
      const panels = [...panelsOf(runs, inWords), ...more].filter((panel) => group(panel) !== null);
      const before = found.charts;
      if (panels.map(({ name }) => name).join("\n") === before.map(({ panel }) => panel.name).join("\n")) {
        before.forEach((chart, at) => (chart.panel = panels[at]));
        before.forEach(renew);
        return;
      }
      clear();
      found.charts = panels.map((panel) => {
        const box = el("figure", { className: panel.isWide ? "wide" : "" });
        box.dataset.panel = panel.name;
        group(panel).append(box);
        return { panel, box };
      });
      rebuild();
    };
    const clear = () => {
      for (const { u, box } of found.charts) {
        u?.destroy();
        box.remove();
      }
      found.charts = [];
      hideTip();
    };
    let width = innerWidth;
    const resize = () => {
      if (innerWidth === width) return;
      width = innerWidth;
      found.charts.forEach((chart) => chart.u.setSize({ width: wide(chart), height: chart.u.height }));
    };
    const dark = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("resize", resize);
    dark.addEventListener("change", rebuild);
    const close = () => {
      removeEventListener("resize", resize);
      dark.removeEventListener("change", rebuild);
      clear();
    };
    // The choices above the charts: axis, smoothing, the whole axis again.
    const controls = (element) => {
      const choices = Object.entries(AXES).map(([x, words]) => {
        const button = el("button", { type: "button", textContent: words });
        button.dataset.x = x;
        button.onclick = () => {
          if (state.x === x) return;
          Object.assign(state, { x, zoom: null });
          rebuild();
        };
        return button;
      });
      const axis = el("span", { className: "axis" }, ...choices);
      axis.setAttribute("role", "group");
      axis.setAttribute("aria-label", "horizontal axis");
      const smooth = el("input", { type: "range", min: 0, max: SMOOTH.length - 1 });
      smooth.oninput = () => {
        state.smooth = Number(smooth.value);
        rebuild();
      };
      const reset = el("button", { type: "button", id: "reset", textContent: "reset zoom", onclick: () => zoom(null) });
      element.replaceChildren(axis, el("label", {}, "smooth ", smooth), reset);
      return () => {
        for (const button of choices) button.setAttribute("aria-pressed", String(button.dataset.x === state.x));
        smooth.value = state.smooth;
        smooth.setAttribute("aria-valuetext", SMOOTH[state.smooth] || "off");
        reset.hidden = !state.zoom;
      };
    };
    return Object.assign(found, { clear, close, controls, isLog, options, rebuild, selected, show, whole, wide });
  };

  return { AXES, axes, bytes, clock, colour, css, el, gallery, hideTip, inFull, isDashed, isPointed, panelsOf, phase, range, shade, showTip, SMOOTH, xInFull };
})();
