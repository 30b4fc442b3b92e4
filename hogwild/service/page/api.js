// Requests to the service, and its one stream of changed jobs.

const AGAIN_MS = 1000;

async function answer(response) {
  const isJson = (response.headers.get("content-type") || "").includes("json");
  const content = response.status === 204 ? null : isJson ? await response.json() : await response.text();
  if (!response.ok) throw new Error(isJson ? content.detail : content);
  return content;
}

export const get = async (path) => answer(await fetch(`/api/v1/${path}`));

export const ask = async (id, action) =>
  answer(
    action === "delete"
      ? await fetch(`/api/v1/jobs/${id}`, { method: "DELETE" })
      : await fetch(`/api/v1/jobs/${id}/${action}`, { method: "POST" }),
  );

// Call `show` with a Map id -> row after each change, and `tell` with whether the service answers; return what ends it.
export function follow(show, tell) {
  let jobs = new Map(), source, timer;
  const open = () => {
    source = new EventSource("/api/v1/stream");
    source.onopen = () => {
      jobs = new Map(); // the first event has all of them
      tell(true);
    };
    source.addEventListener("jobs", (event) => {
      const { rows, gone } = JSON.parse(event.data);
      jobs = new Map(jobs);
      for (const row of rows) jobs.set(row.id, row);
      for (const id of gone) jobs.delete(id);
      show(jobs);
    });
    source.onerror = () => {
      tell(false);
      source.close();
      timer = setTimeout(open, AGAIN_MS);
    };
  };
  open();
  return () => {
    clearTimeout(timer);
    source.close();
  };
}
