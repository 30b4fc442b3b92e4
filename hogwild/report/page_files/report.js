// A report: its curves (charts.js), the timeline of its workers and its histogram of staleness, with one state for all of them,
// kept in the address (#x=samples&zoom=100,200&smooth=3&log=loss,-lr&theme=dark). Texts of a run only ever become textContent.
"use strict";
(() => {
  const began = performance.now();
  const root = document.documentElement;
  const { AXES, axes, clock, colour, css, el, hideTip, isPointed, phase, shade, showTip, xInFull } = charts;
  addEventListener("error", (event) => (root.dataset.errors = (root.dataset.errors || "") + event.message + "\n"));
  const data = JSON.parse(document.getElementById("data").textContent);
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
  const caption = ({ name }) => ABOUT[name.endsWith("loss") ? "loss" : name] || ABOUT[name.split(".")[0]] || ABOUT.metric;
  const state = { x: "time", zoom: null, smooth: 0, log: {}, theme: "" };
  const inWords = (name) => data.words[name] ?? name.replaceAll("_", " ");

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
      key.style.background = shade(run.place, data.runs.length);
      const words = `half of the updates: at most ${run.p50}; 99 %: at most ${run.p99}`;
      return el("span", { className: "chip" }, key, alone ? words : `${run.name} (${words})`);
    })));
    const plot = box.appendChild(el("div", { className: "plot" }));
    box.append(el("figcaption", { textContent: caption(panel) }));
    const columnsOf = [xs, ...runs.map(of)];
    const low = Math.min(...columnsOf.slice(1).flat().filter((value) => value));
    const stroke = (run) => () => colour(run.place, data.runs.length);
    chart.u = new uPlot(
      gallery.options("staleness", {
        width: gallery.wide(chart), height: 240,
        scales: { x: { time: false, range: () => [-0.6, end + 0.6] }, y: { distr: 3, range: (_, min, max) => [low / 2, max * 1.5] } },
        axes: axes("staleness", "number"),
        cursor: { drag: { x: false, y: false } },
        series: [{}, ...runs.map((run) => ({
          stroke: stroke(run), fill: alone ? stroke(run) : undefined, width: alone ? 0 : 1.6, points: { show: false },
          fillTo: low / 2, paths: alone ? uPlot.paths.bars({ size: [0.85, 60] }) : uPlot.paths.stepped({ align: 1 }),
        }))],
        hooks: { setCursor: [(u) => {
          if (!isPointed(u)) return hideTip(u);
          const row = u.cursor.idx;
          showTip(u, `${row === 127 ? "127 or more" : row} updates missed`, runs.map((run, place) => [
            shade(run.place, data.runs.length), alone ? "updates" : run.name,
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
    box.append(el("figcaption", { textContent: caption(panel) }));
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
      if (!isPointed(u)) return hideTip(u);
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
      if (!shown.length) return hideTip(u);
      showTip(u, `${label(row) || "worker " + (row - rows)}, ${xInFull("time", x)}`, shown);
    };
    const both = axes("time", "number", innerWidth < 600 ? 78 : 96);
    chart.axis = "time";
    chart.u = new uPlot(
      gallery.options("time", {
        width: gallery.wide(chart), height: top(count) * tall + 46,
        scales: {
          x: { time: false, range: () => (state.x === "time" && state.zoom) || gallery.whole("time") },
          y: { dir: -1, ori: 1, range: () => [0, top(count)] },
        },
        axes: [both[0], {
          ...both[1], grid: { show: false }, font: "11px system-ui, sans-serif",
          splits: () => Array.from({ length: count }, (_, row) => (top(row) + top(row + 1)) / 2),
          values: (_, splits) => splits.map((split) => label(rowAt(split))),
        }],
        series: [{}, {}],
        hooks: { draw: [draw], setCursor: [describe], setSelect: [gallery.selected] },
      }),
      [[0, end], [null, null]], plot
    );
  };

  // ---- the state of the page ----

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (state.theme ? state.theme === "dark" : dark.matches);
  const remember = () => {
    const logs = gallery.charts.filter(({ panel }) => !panel.make && gallery.isLog(panel) !== panel.isLog);
    const parts = [
      state.x !== "time" && `x=${state.x}`,
      state.zoom && `zoom=${state.zoom.map((end) => Number(end.toPrecision(6))).join(",")}`,
      state.smooth && `smooth=${state.smooth}`,
      logs.length && "log=" + logs.map(({ panel }) => (gallery.isLog(panel) ? "" : "-") + encodeURIComponent(panel.name)).join(","),
      state.theme && `theme=${state.theme}`,
    ].filter(Boolean);
    history.replaceState(null, "", parts.length ? "#" + parts.join("&") : location.pathname + location.search);
  };
  const recall = () => {
    const asked = Object.fromEntries(location.hash.slice(1).split("&").map((part) => part.split("=")));
    if (Object.hasOwn(AXES, asked.x)) state.x = asked.x;
    const ends = (asked.zoom || "").split(",").map(Number);
    if (ends.length === 2 && ends[0] < ends[1]) state.zoom = ends;
    if (charts.SMOOTH[asked.smooth]) state.smooth = Number(asked.smooth);
    for (const name of (asked.log || "").split(",").filter(Boolean))
      state.log[decodeURIComponent(name.replace(/^-/, ""))] = !name.startsWith("-");
    if (asked.theme === "dark" || asked.theme === "light") state.theme = asked.theme;
    root.style.colorScheme = state.theme;
  };

  const more = [];
  if (data.timeline) more.push({ name: "timeline", group: "workers", title: "workers over time", make: timeline, isWide: true });
  if (data.runs.some((run) => run.staleness))
    more.push({ name: "staleness", group: "staleness", title: "staleness of updates", make: staleness, isWide: true });
  const gallery = charts.gallery({
    state, inWords, more, about: caption,
    group: (panel) => (panel.name === "lr" && panel.isFlat ? null : document.querySelector(`[data-group="${panel.group}"]`)),
    changed: () => {
      remember();
      show();
      theme.textContent = isDark() ? "light" : "dark";
      root.dataset.state = JSON.stringify({ ...state, charts: gallery.charts.length });
    },
  });
  const controls = document.getElementById("controls");
  const show = gallery.controls(controls);
  const theme = el("button", { type: "button", id: "theme", title: "colours" });
  theme.onclick = () => {
    state.theme = isDark() ? "light" : "dark";
    root.style.colorScheme = state.theme;
    gallery.rebuild();
  };
  controls.append(el("span", { className: "hint", textContent: "Drag over a curve to zoom in; double-click to reset." }), theme);
  addEventListener("beforeprint", () => {
    root.style.colorScheme = "light";
    gallery.rebuild();
  });
  addEventListener("afterprint", () => {
    root.style.colorScheme = state.theme;
    gallery.rebuild();
  });

  recall();
  gallery.show(data.runs);
  queueMicrotask(() => (root.dataset.drawnMs = (performance.now() - began).toFixed(1)));
  Object.defineProperty(window, "report", { value: { gallery, state } }); // for tests and for a curious console
})();
