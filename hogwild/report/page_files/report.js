// The curves of a report: one uPlot chart per panel, with one state for all of them, kept in the address
// (#x=samples&zoom=100,200&log=loss,-accuracy&theme=dark). Texts of a run only ever become textContent.
"use strict";
(() => {
  const began = performance.now();
  const root = document.documentElement;
  const { NAMED, axes, clock, colour, css, inFull, phase, range, xInFull } = drawing;
  addEventListener("error", (event) => (root.dataset.errors = (root.dataset.errors || "") + event.message + "\n"));
  const data = JSON.parse(document.getElementById("data").textContent);
  const AXES = { time: "running time", samples: "samples", updates: "updates" };
  const MOST_SHOWN = 8; // values in a tooltip: those nearest to the pointer
  const ABOUT = {
    __proto__: null,
    loss: "Training: mean of the batches between two records, with dropout. Validation: the whole validation set. " +
      "Look for: both fall. If validation rises while training falls, the model overfits; if both jump or rise, " +
      "the learning rate is too high for this staleness.",
    metric: "On the whole validation set. Look for: does it still improve at the end? Then more epochs may help.",
    cluster: "Exchange with other nodes, by the last round. Look for: a level line. Seconds that grow mean a slow network; " +
      "a drift that grows means too long rounds or too high a rate.",
    losses: "A further loss of training_step, mean of the batches between two records.",
    lr: "Of the first parameter group. It follows the updates.",
    samples_per_s: "All workers together. Look for: a steady level. Short dips are evaluations and checkpoints; " +
      "a long fall means busy cores or slow data.",
    worker_samples_per_s: "Look for: equal curves on equal cores. A worker that is always below the others has a " +
      "slower or busier core; a gap is a worker that was dead.",
    timeline: "Each bar is a worker. Look for: long waiting (too little work for so many workers, or slow data), " +
      "much grey (too many evaluations or checkpoints), deaths and how long a replacement takes to start.",
    staleness: "Number of updates by others between reading the parameters and applying the gradient; counts on a " +
      "log scale. Look for: about N - 1 for N equally fast workers. A long tail comes from workers that did not run " +
      "for a moment.",
    pss_bytes: "PSS: a page that several processes share is counted once, in parts. Look for: a level line. " +
      "A steady rise is a leak, often a list that grows.",
    worker_pss_bytes: "PSS of each worker process. Look for: equal, level lines.",
    worker_cpu: "Cores that each worker keeps busy. Near 1: it computes all the time. Well below 1: it waits for a " +
      "core, for data, or for work.",
  };
  const caption = ({ name }) => el("figcaption", { textContent: ABOUT[name] || ABOUT[name.split(".")[0]] || ABOUT.metric });
  const state = { x: "time", zoom: null, log: {}, theme: "" };
  let charts = [];

  // ---- elements and colours ----

  const el = (tag, props = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), props);
    made.append(...children);
    return made;
  };
  // ---- columns to curves ----

  // Rows of a table between the places where x goes back: after a rollback a run passes the same samples again.
  const segments = (table, axis) => {
    const xs = table.columns[axis];
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
  const columns = (table, axis, rows, names, isLog) => {
    const breaks = new Set(table.breaks);
    const xs = [];
    const ys = names.map(() => []);
    for (const row of rows) {
      if (breaks.has(row) && xs.length) {
        xs.push(xs[xs.length - 1]);
        ys.forEach((column) => column.push(null));
      }
      xs.push(table.columns[axis][row]);
      names.forEach((name, place) => {
        const value = table.columns[name][row];
        ys[place].push(value === null || (isLog && value <= 0) ? (table.is_sparse ? null : undefined) : value);
      });
    }
    return { xs, ys };
  };

  const merged = (parts) => {
    if (parts.length === 1) return [parts[0].xs, ...parts[0].ys];
    const order = parts.flatMap((part, at) => part.xs.map((x, row) => [x, at, row]));
    order.sort((a, b) => a[0] - b[0]);
    const all = [order.map((one) => one[0])];
    parts.forEach((part, at) =>
      part.ys.forEach((column) => all.push(order.map(([, which, row]) => (which === at ? column[row] : undefined))))
    );
    return all;
  };

  const curvesOf = (panel, isLog) => {
    const groups = new Map();
    for (const line of panel.lines) {
      const key = line[0] + "/" + line[1];
      groups.set(key, [...(groups.get(key) || []), line]);
    }
    const parts = [];
    const lines = [];
    for (const group of groups.values()) {
      const table = data.runs[group[0][0]].tables[group[0][1]];
      for (const rows of segments(table, state.x)) {
        parts.push(columns(table, state.x, rows, group.map((line) => line[2]), isLog));
        lines.push(...group);
      }
    }
    return { columns: parts.length ? merged(parts) : [[0]], lines };
  };

  // The whole x axis, the same for all charts.
  const whole = (axis) => {
    let end = 0;
    for (const run of data.runs) {
      if (axis === "time") end = Math.max(end, run.end);
      for (const table of Object.values(run.tables)) for (const x of table.columns[axis]) if (x > end) end = x;
    }
    return [0, end * 1.01 || 1];
  };

  // ---- one chart ----

  const look = (line) => {
    const [, table, , label, kind, place, count] = line;
    const points = table === "evaluations" ? { show: true, size: 6 } : { size: 4 };
    const stroke = () => colour(place, count);
    return {
      label, stroke, points: { ...points, stroke, fill: stroke },
      width: { faint: 1, line: 1.5, smooth: 2.2, dots: 1.8 }[kind],
      alpha: kind === "faint" ? 0.4 : 1,
    };
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

  const marked = (panel) => (u) => {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    for (const mark of data.runs.length === 1 ? data.runs[0].marks : []) {
      const at = u.valToPos(mark[state.x], "x", true);
      if (mark[state.x] === null || at < bbox.left || at > bbox.left + bbox.width) continue;
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
    for (const [run, table, column, , , place, count] of panel.lines) {
      const best = data.runs[run].best;
      if (table !== "evaluations" || !best || typeof best[column] !== "number" || best[state.x] === null) continue;
      const [x, y] = [u.valToPos(best[state.x], "x", true), u.valToPos(best[column], "y", true)];
      if (!(x >= bbox.left - 1 && x <= bbox.left + bbox.width + 1)) continue;
      ctx.setLineDash([]);
      ctx.beginPath();
      for (let tip = 0; tip < 10; tip++) {
        const [radius, angle] = [(tip % 2 ? 4 : 9) * ratio, (tip * Math.PI) / 5];
        ctx.lineTo(x + radius * Math.sin(angle), y - radius * Math.cos(angle));
      }
      ctx.closePath();
      ctx.fillStyle = colour(place, count);
      ctx.strokeStyle = css("--paper");
      ctx.lineWidth = 1.5 * ratio;
      ctx.fill();
      ctx.stroke();
    }
    ctx.restore();
  };

  // The tooltip beside the pointer: `rows` are [colour, name, value].
  const tip = el("div", { className: "tip", hidden: true });
  document.body.append(tip);
  const showTip = (u, title, rows) => {
    tip.replaceChildren(
      el("b", { textContent: title }),
      ...rows.map(([shade, name, value]) => {
        const key = el("i");
        if (shade) key.style.background = shade;
        return el("div", {}, key, el("span", { textContent: name }), el("em", { textContent: value }));
      })
    );
    tip.hidden = false;
    const box = u.over.getBoundingClientRect();
    const left = box.left + u.cursor.left;
    const width = tip.offsetWidth;
    const x = left + width + 24 > innerWidth ? Math.max(4, left - width - 16) : left + 16;
    const y = Math.min(box.top + u.cursor.top + 12, innerHeight - tip.offsetHeight - 8);
    tip.style.transform = `translate(${x}px, ${Math.max(4, y)}px)`;
  };
  const hideTip = () => (tip.hidden = true);
  const isPointed = (u) => u.over.matches(":hover") && u.cursor.left >= 0;

  const tooltip = (panel, axis) => (u) => {
    if (!isPointed(u)) return u === tip.owner && hideTip();
    tip.owner = u;
    let rows = [];
    u.series.forEach((one, place) => {
      const row = u.cursor.idxs[place];
      const value = place && row !== null && row !== undefined ? u.data[place][row] : null;
      if (!one.show || value === null || value === undefined) return;
      const [, , , label] = one.line;
      rows.push({ away: Math.abs(u.valToPos(value, "y") - u.cursor.top), value, row: [one.line, label], place });
    });
    if (rows.length > MOST_SHOWN) rows = rows.sort((a, b) => a.away - b.away).slice(0, MOST_SHOWN);
    rows.sort((a, b) => a.place - b.place);
    if (!rows.length) return hideTip();
    showTip(
      u, xInFull(axis, u.posToVal(u.cursor.left, "x")),
      rows.map(({ row: [line, label], value }) => [colour(line[5], line[6]), label, inFull(panel.form, value)])
    );
  };

  const isLog = (panel) => state.log[panel.name] ?? panel.is_log;
  const hidden = new Set();

  const legend = (chart) => {
    const { panel, box } = chart;
    const entries = new Map();
    for (const line of panel.lines) if (!entries.has(line[3])) entries.set(line[3], line);
    if (entries.size === 1 && !panel.lines.some((line) => line[1] === "evaluations")) return;
    const dots = [...entries].map(([label, line]) => {
      const name = panel.name + "/" + label;
      const key = el("i", { className: line[4] });
      const chip = el("button", { type: "button", className: "chip", title: "show or hide" }, key, label);
      key.style.background = colour(line[5], line[6]);
      chip.setAttribute("aria-pressed", String(!hidden.has(name)));
      chip.onclick = () => {
        hidden.has(name) ? hidden.delete(name) : hidden.add(name);
        build(chart);
      };
      return chip;
    });
    const stars = panel.lines.some(([run, table]) => table === "evaluations" && data.runs[run].best);
    if (stars) dots.push(el("span", { className: "chip", textContent: "★ best" }));
    const few = dots.length <= 2 * NAMED + 1;
    box.append(few ? el("div", { className: "legend" }, ...dots) : el("details", { className: "legend" },
      el("summary", { textContent: `${dots.length} curves, from violet (first) to orange (last)` }), ...dots));
  };

  const wide = (chart) => Math.max(200, chart.box.clientWidth);

  const build = (chart) => {
    const { panel, box } = chart;
    if (chart.u) chart.u.destroy();
    box.replaceChildren();
    if (panel.make) return panel.make(chart);
    const log = isLog(panel);
    const { columns: columnsOf, lines } = curvesOf(panel, log);
    const canLog = lines.length && lines.some((_, place) => columnsOf[place + 1].some((value) => value > 0));
    const head = el("div", { className: "head" }, el("h3", { textContent: panel.title }));
    if (canLog) {
      const button = el("button", { type: "button", className: "small", textContent: "log scale" });
      button.setAttribute("aria-pressed", String(log));
      button.onclick = () => {
        state.log[panel.name] = !log;
        build(chart);
        remember();
      };
      head.append(button);
    }
    box.append(head);
    legend(chart);
    const plot = box.appendChild(el("div", { className: "plot" }));
    box.append(caption(panel));
    const series = lines.map((line) => ({ ...look(line), line, show: !hidden.has(panel.name + "/" + line[3]) }));
    chart.axis = state.x;
    chart.u = new uPlot(
      options(state.x, {
        width: wide(chart), height: panel.is_wide ? 270 : 230,
        scales: { x: { time: false, range: () => state.zoom || whole(state.x) }, y: { distr: log ? 3 : 1, range: range(panel.form, log) } },
        axes: axes(state.x, panel.form),
        series: [{}, ...series],
        hooks: { draw: [marked(panel)], setCursor: [tooltip(panel, state.x)], setSelect: [selected] },
      }),
      columnsOf, plot
    );
  };

  // ---- histogram of staleness ----

  const staleness = (chart) => {
    const { panel, box } = chart;
    const runs = data.runs.map((run, place) => ({ ...run.staleness, name: run.name, place })).filter((run) => run.counts);
    const end = Math.max(8, ...runs.map((run) => run.counts.length));
    const alone = runs.length === 1;
    const xs = Array.from({ length: end + 1 }, (_, place) => place);
    const of = (run) => {
      const sum = alone ? 1 : run.counts.reduce((a, b) => a + b, 0);
      return xs.map((x) => (run.counts[x] ? run.counts[x] / sum : null));
    };
    box.append(el("div", { className: "head" }, el("h3", { textContent: panel.title })));
    box.append(el("div", { className: "legend" }, ...runs.map((run) => {
      const key = el("i");
      key.style.background = colour(run.place, data.runs.length);
      const words = `half of the updates: at most ${run.p50}; 99 %: at most ${run.p99}`;
      return el("span", { className: "chip" }, key, alone ? words : `${run.name} (${words})`);
    })));
    const plot = box.appendChild(el("div", { className: "plot" }));
    box.append(caption(panel));
    const columnsOf = [xs, ...runs.map(of)];
    const low = Math.min(...columnsOf.slice(1).flat().filter((value) => value));
    const stroke = (run) => () => colour(run.place, data.runs.length);
    chart.u = new uPlot(
      options("staleness", {
        width: wide(chart), height: 240,
        scales: { x: { time: false, range: () => [-0.6, end + 0.6] }, y: { distr: 3, range: (_, min, max) => [low / 2, max * 1.5] } },
        axes: axes("staleness", "number"),
        cursor: { drag: { x: false, y: false } },
        series: [{}, ...runs.map((run) => ({
          stroke: stroke(run), fill: alone ? stroke(run) : undefined, width: alone ? 0 : 1.6, points: { show: false },
          fillTo: low / 2, paths: alone ? uPlot.paths.bars({ size: [0.85, 60] }) : uPlot.paths.stepped({ align: 1 }),
        }))],
        hooks: { setCursor: [(u) => {
          if (!isPointed(u)) return u === tip.owner && hideTip();
          tip.owner = u;
          const row = u.cursor.idx;
          showTip(u, `${row === 127 ? "127 or more" : row} updates missed`, runs.map((run, place) => [
            colour(run.place, data.runs.length), alone ? "updates" : run.name,
            alone ? (u.data[place + 1][row] || 0).toLocaleString("en") : ((u.data[place + 1][row] || 0) * 100).toFixed(2) + " %",
          ]));
        }] },
      }),
      columnsOf, plot
    );
  };

  // ---- timeline of the workers ----

  const MARKS = { exit: "✕", stall: "▲", fence: "▼" };
  const ROW_COLOURS = { evaluations: "--c2", checkpoints: "--c0", pauses: "--p-parked", restarts: "--c4", trouble: "--c1" };

  const timeline = (chart) => {
    const { panel, box } = chart;
    const found = data.timeline;
    const end = data.runs[0].end;
    const rows = found.rows.length;
    const count = rows + found.bars.length;
    const tall = found.bars.length > 32 ? 10 : 24;
    const unit = 24 / tall; // heights: a row of events is as high as a wide bar
    const top = (row) => (row < rows ? row * unit : rows * unit + row - rows);
    const rowAt = (y) => (y < rows * unit ? Math.floor(y / unit) : rows + Math.floor(y - rows * unit));
    const used = new Set(found.bars.flatMap((bar) => bar.flatMap((run) => run.filter((_, place) => place % 2))));
    const names = [...new Set([...used].map((place) => found.words[place]))].filter((word) => word !== "not there");
    const chip = (key, word) => el("span", { className: "chip" }, key, word);
    const block = (shade) => {
      const key = el("i");
      key.style.background = shade;
      return key;
    };
    const kinds = new Set(found.marks.map((mark) => mark.kind));
    box.append(
      el("div", { className: "head" }, el("h3", { textContent: panel.title })),
      el("div", { className: "legend" }, ...names.map((word) => chip(block(phase(word)), word)),
        ...[...kinds].map((kind) => chip(el("b", { textContent: MARKS[kind] }), found.names[kind])))
    );
    const plot = box.appendChild(el("div", { className: "plot" }));
    box.append(caption(panel));
    const every = Math.ceil(found.bars.length / 32);
    const label = (row) =>
      row < rows ? found.rows[row].name : (row - rows) % every ? "" : "worker " + (row - rows);
    const draw = (u) => {
      const { ctx, bbox } = u;
      const ratio = devicePixelRatio;
      const at = (x) => u.valToPos(x, "x", true);
      const edge = (row) => u.valToPos(top(row), "y", true);
      const high = edge(rows + 1) - edge(rows);
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      found.rows.forEach((row, place) => {
        ctx.fillStyle = css(ROW_COLOURS[row.name]);
        for (const mark of row.marks) {
          const length = row.name === "pauses" ? mark.length || 0 : 0;
          const wide = Math.max(2 * ratio, at(mark.at) - at(mark.at - length));
          ctx.fillRect(at(mark.at) - (length ? wide : wide / 2), edge(place) + 0.2 * high * unit, wide, 0.6 * high * unit);
        }
      });
      found.bars.forEach((bar, worker) => {
        const upper = edge(rows + worker) + 0.1 * high;
        let column = 0;
        for (const [columns, ...parts] of bar) {
          const [left, right] = [at((column * end) / found.columns), at(((column + columns) * end) / found.columns)];
          column += columns;
          if (right < bbox.left || left > bbox.left + bbox.width) continue;
          let done = 0;
          for (let part = 0; part < parts.length; part += 2) {
            const word = found.words[parts[part]];
            const tallOf = (0.8 * high * parts[part + 1]) / found.height;
            if (word !== "not there") {
              ctx.fillStyle = phase(word);
              ctx.fillRect(left, upper + done, Math.max(right - left, 1) + 0.4, tallOf);
            }
            done += tallOf;
          }
        }
      });
      ctx.restore();
      ctx.save();
      ctx.textAlign = "center";
      ctx.textBaseline = "middle";
      ctx.lineWidth = 3 * ratio;
      ctx.font = `bold ${(tall > 12 ? 14 : 9) * ratio}px system-ui, sans-serif`;
      for (const mark of found.marks) {
        const [x, y] = [at(mark.at), edge(rows + mark.worker) + high / 2];
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.strokeStyle = css("--paper");
        ctx.fillStyle = css("--ink");
        ctx.strokeText(MARKS[mark.kind], x, y);
        ctx.fillText(MARKS[mark.kind], x, y);
      }
      ctx.restore();
    };
    const describe = (u) => {
      if (!isPointed(u)) return u === tip.owner && hideTip();
      tip.owner = u;
      const x = u.posToVal(u.cursor.left, "x");
      const row = rowAt(u.posToVal(u.cursor.top, "y"));
      const marks = row < rows ? found.rows[row]?.marks || [] : found.marks.filter((mark) => mark.worker === row - rows);
      const near = marks.filter((mark) => Math.abs(u.valToPos(mark.at, "x") - u.cursor.left) < 7).slice(0, 4);
      const shown = near.map((mark) => ["", mark.text, clock(mark.at, mark.at < 180 ? 0.1 : 1)]);
      if (row >= rows && row < count) {
        let column = 0;
        const run = found.bars[row - rows].find(([columns]) => (column += columns) > (x / end) * found.columns) || [];
        for (let part = 1; part < run.length; part += 2)
          shown.push([phase(found.words[run[part]]), found.words[run[part]], Math.round((100 * run[part + 1]) / found.height) + " %"]);
      }
      if (!shown.length) return hideTip();
      showTip(u, `${label(row) || "worker " + (row - rows)}, ${xInFull("time", x)}`, shown);
    };
    const both = axes("time", "number", innerWidth < 600 ? 78 : 96);
    chart.axis = "time";
    chart.u = new uPlot(
      options("time", {
        width: wide(chart), height: top(count) * tall + 46,
        scales: {
          x: { time: false, range: () => (state.x === "time" && state.zoom) || whole("time") },
          y: { dir: -1, ori: 1, range: () => [0, top(count)] },
        },
        axes: [both[0], {
          ...both[1], grid: { show: false }, font: "11px system-ui, sans-serif",
          splits: () => Array.from({ length: count }, (_, row) => (top(row) + top(row + 1)) / 2),
          values: (_, splits) => splits.map((split) => label(rowAt(split))),
        }],
        series: [{}, {}],
        hooks: { draw: [draw], setCursor: [describe], setSelect: [selected] },
      }),
      [[0, end], [null, null]], plot
    );
  };

  // ---- the state of all charts ----

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (state.theme ? state.theme === "dark" : dark.matches);

  const selected = (u) => {
    if (u.select.width < 6) return;
    const ends = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    const chart = charts.find((one) => one.u === u);
    if (chart.axis === state.x) zoom(ends);
  };
  const zoom = (ends) => {
    state.zoom = ends;
    const [min, max] = ends || whole(state.x);
    for (const chart of charts) if (chart.axis === state.x) chart.u.setScale("x", { min, max });
    remember();
    showState();
  };
  const rebuild = () => {
    drawing.forget();
    hideTip();
    charts.forEach(build);
    showState();
  };
  const controls = document.getElementById("controls");
  const showState = () => {
    for (const button of controls.querySelectorAll("[data-x]"))
      button.setAttribute("aria-pressed", String(button.dataset.x === state.x));
    controls.querySelector("#reset").hidden = !state.zoom;
    controls.querySelector("#theme").textContent = isDark() ? "light" : "dark";
    root.dataset.state = JSON.stringify({ ...state, charts: charts.length });
  };
  const remember = () => {
    const logs = data.panels.filter((panel) => isLog(panel) !== panel.is_log);
    const parts = [
      state.x !== "time" && `x=${state.x}`,
      state.zoom && `zoom=${state.zoom.map((end) => Number(end.toPrecision(6))).join(",")}`,
      logs.length && "log=" + logs.map((panel) => (isLog(panel) ? "" : "-") + encodeURIComponent(panel.name)).join(","),
      state.theme && `theme=${state.theme}`,
    ].filter(Boolean);
    history.replaceState(null, "", parts.length ? "#" + parts.join("&") : location.pathname + location.search);
  };
  const recall = () => {
    const asked = Object.fromEntries(location.hash.slice(1).split("&").map((part) => part.split("=")));
    if (AXES[asked.x]) state.x = asked.x;
    const ends = (asked.zoom || "").split(",").map(Number);
    if (ends.length === 2 && ends[0] < ends[1]) state.zoom = ends;
    for (const name of (asked.log || "").split(",").filter(Boolean))
      state.log[decodeURIComponent(name.replace(/^-/, ""))] = !name.startsWith("-");
    if (asked.theme === "dark" || asked.theme === "light") state.theme = asked.theme;
    root.style.colorScheme = state.theme;
  };
  for (const button of controls.querySelectorAll("[data-x]"))
    button.onclick = () => {
      if (state.x === button.dataset.x) return;
      Object.assign(state, { x: button.dataset.x, zoom: null });
      remember();
      rebuild();
    };
  controls.querySelector("#reset").onclick = () => zoom(null);
  controls.querySelector("#theme").onclick = () => {
    state.theme = isDark() ? "light" : "dark";
    root.style.colorScheme = state.theme;
    remember();
    rebuild();
  };
  dark.addEventListener("change", rebuild);
  addEventListener("beforeprint", () => {
    root.style.colorScheme = "light";
    rebuild();
  });
  addEventListener("afterprint", () => {
    root.style.colorScheme = state.theme;
    rebuild();
  });
  addEventListener("scroll", hideTip, { passive: true });

  // ---- drawing everything ----

  recall();
  const panels = [...data.panels];
  if (data.timeline)
    panels.push({ name: "timeline", group: "workers", title: "workers over time", make: timeline, is_wide: true });
  if (data.runs.some((run) => run.staleness))
    panels.push({ name: "staleness", group: "staleness", title: "staleness of updates", make: staleness, is_wide: true });
  for (const panel of panels) {
    const place = document.querySelector(`[data-group="${panel.group}"]`);
    const box = el("figure", { className: panel.is_wide ? "wide" : "" });
    box.dataset.panel = panel.name;
    place.append(box);
    charts.push({ panel, box });
  }
  rebuild();
  queueMicrotask(() => (root.dataset.drawnMs = (performance.now() - began).toFixed(1)));
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    charts.forEach((chart) => chart.u.setSize({ width: wide(chart), height: chart.u.height }));
  });
  Object.defineProperty(window, "report", { value: { charts, state } }); // for tests and for a curious console
})();
