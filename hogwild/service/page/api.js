// Requests to the service, relative to the page: a proxy may show it below a path. A refusal is a `Refused`, with the service's own words.

const PATIENCE_MS = 60_000;

export class Refused extends Error {
  constructor({ detail, error_code, problems }) {
    super(detail);
    this.code = error_code;
    this.problems = problems ?? [];
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(`api/v1/${path}`, { signal: AbortSignal.timeout(PATIENCE_MS), ...options });
  } catch {
    throw new Error("The service does not answer. Jobs go on without it; try again in a moment.");
  }
  const isJson = (response.headers.get("content-type") || "").includes("json");
  const content = response.status === 204 ? null : isJson ? await response.json() : await response.text();
  if (!response.ok) throw isJson ? new Refused(content) : new Error(content);
  return content;
}

export const get = (path) => request(path);

export const post = (path, body = {}) =>
  request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export const remove = (path) => request(path, { method: "DELETE" });
