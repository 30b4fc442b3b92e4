// One event stream for all tabs of a browser: it allows six connections per host, and each tab needs some.
//
//   service ── events ──► leader tab ── BroadcastChannel ──► other tabs
//                            ▲──────── looks (which runs a tab shows) ───┘
//
// The leader holds a Web Lock; when its tab is closed or crashes the browser gives the lock to another tab, which goes on
// from the last event. That works because every tab keeps the whole state, by the same pure function (`after`).

const NAME = `hogwild ${location.pathname}`; // a proxy may show several services below one address
const RETRY_MS = 1000;
const SETTLE_MS = 50; // several tabs may say what they look at in the same moment
const MOST_RUNS = 16; // of one stream; the service's limit
const MOST_EVENTS = 2000; // of a run; the service bounds the points of its curves
const TYPES = ["jobs", "machine", "run", "curves", "events"];

// jobs: Map id -> row, null before the first event; runs: id -> {status, curves, events} of those that some tab shows
const NOTHING = { isConnected: true, isRefused: false, jobs: null, machine: null, runs: {} };

// Return the state after an event. The objects that it changes are new, so that a view sees what has changed.
export function after(state, type, content) {
  const { runs } = state;
  const ofRun = (changes) => ({ ...state, runs: { ...runs, [content.id]: { ...runs[content.id], ...changes } } });
  switch (type) {
    case "connection":
      return { ...state, ...content };
    case "follows":
      return { ...state, runs: Object.fromEntries(Object.entries(runs).filter(([id]) => content.includes(id))) };
    case "jobs": {
      const jobs = new Map(content.isFirst ? [] : state.jobs);
      for (const row of content.rows) jobs.set(row.id, row);
      for (const id of content.gone) jobs.delete(id);
      return { ...state, jobs };
    }
    case "machine":
      return { ...state, machine: content };
    case "run":
      return ofRun({ status: content.status });
    case "curves":
      return ofRun({ curves: joined(content.reset ? null : runs[content.id]?.curves, content) });
    case "events":
      return ofRun({ events: [...(content.reset ? [] : (runs[content.id]?.events ?? [])), ...content.events].slice(-MOST_EVENTS) });
  }
  return state;
}

function joined(before, { train, evaluations }) {
  if (!before) return { train, evaluations };
  return {
    train: Object.fromEntries(Object.entries(train).map(([name, values]) => [name, [...before.train[name], ...values]])),
    evaluations: [...before.evaluations, ...evaluations],
  };
}

// Call `show` with the state after each event. Return `look`, which says what runs this tab shows.
export function follow(show) {
  const tab = crypto.randomUUID();
  const channel = new BroadcastChannel(NAME);
  const looks = new Map([[tab, []]]); // tab -> ids of runs
  let state = NOTHING, last = ""; // last: id of the last event
  let isLeader = false, isKnown = false; // isKnown: the state is that of the leader
  let source = null, timer = 0, rounds = 0;

  const take = ({ type, content, id }) => {
    last = id || last;
    state = after(state, type, content);
    show(state);
  };
  const send = (type, content, id) => {
    take({ type, content, id });
    channel.postMessage({ kind: "event", type, content, id });
  };
  const tell = () => channel.postMessage({ kind: "looks", tab, runs: looks.get(tab), isNew: !isKnown });

  channel.onmessage = ({ data }) => {
    if (data.kind === "event" && isKnown) take(data);
    else if (data.kind === "who") tell();
    else if (data.kind === "state" && data.to === tab) {
      ({ state, last } = data);
      isKnown = true;
      show(state);
    } else if (data.kind === "looks") {
      const isOther = String(looks.get(data.tab) ?? []) !== String(data.runs);
      looks.set(data.tab, data.runs);
      if (!isLeader) return;
      if (data.isNew) channel.postMessage({ kind: "state", to: data.tab, state, last });
      if (isOther || source === null) soon();
    }
  };

  // The leader opens the stream (again) for what all tabs look at.
  const soon = (ms = SETTLE_MS) => {
    clearTimeout(timer);
    timer = setTimeout(open, ms);
  };
  const open = async () => {
    const round = ++rounds;
    const alive = new Set((await navigator.locks.query()).held.map((one) => one.name));
    if (round !== rounds) return;
    for (const one of looks.keys()) if (!alive.has(one)) looks.delete(one);
    const runs = [...new Set([...looks.values()].flat())].slice(0, MOST_RUNS);
    if (Object.keys(state.runs).some((id) => !runs.includes(id))) last = ""; // it has places in files that are let go
    send("follows", runs);
    source?.close();
    const query = new URLSearchParams([...runs.map((id) => ["run", id]), ...(last ? [["last", last]] : [])]);
    const opened = (source = new EventSource(`api/v1/stream?${query}`));
    let isFirst = true; // the first event of a stream has all jobs
    for (const type of TYPES)
      opened.addEventListener(type, (event) => {
        if (opened !== source) return;
        const content = JSON.parse(event.data);
        send(type, type === "jobs" ? { ...content, isFirst } : content, event.lastEventId);
        isFirst &&= type !== "jobs";
      });
    opened.onopen = () => opened === source && send("connection", { isConnected: true, isRefused: false });
    opened.onerror = async () => {
      opened.close();
      if (opened !== source) return;
      source = null;
      soon(RETRY_MS);
      const isRefused = await fetch("./").then((answer) => answer.status === 401, () => false);
      if (source === null) send("connection", { isConnected: false, isRefused });
    };
  };

  // Held while the tab lives: this is how the leader knows that it does.
  navigator.locks.request(tab, () => new Promise(() => {}));
  navigator.locks.request(NAME, () => {
    isLeader = isKnown = true;
    channel.postMessage({ kind: "who" });
    soon();
    return new Promise(() => {});
  });
  // A leader in the background has slow timers; a tab that is seen wakes it, for messages are not slowed down.
  setInterval(() => !document.hidden && (!isKnown || !state.isConnected) && tell(), RETRY_MS);
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  tell();

  return (runs) => {
    if (String(looks.get(tab)) === String(runs)) return;
    looks.set(tab, runs);
    tell();
    if (isLeader) soon();
  };
}
