// What several views need: values that are kept, a clock, requests that are repeated, keys.
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact/htm-preact.module.js";
import { get } from "./api.js";

// A state that outlives the view. `store`: localStorage for how somebody likes to look, sessionStorage for what at.
export function useKept(name, initial, store = localStorage) {
  const [value, setValue] = useState(() => {
    const kept = JSON.parse(store.getItem(name)) ?? initial;
    return Array.isArray(kept) || typeof kept !== "object" ? kept : { ...initial, ...kept }; // an older page kept fewer fields
  });
  const keep = (next) => {
    store.setItem(name, JSON.stringify(next));
    setValue(next);
  };
  return [value, keep];
}

// Seconds since 1970; the view is drawn again every `ms`.
export function useNow(ms) {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setNow(Date.now() / 1000), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}

// Return [content, error, again] of a GET; `everyMs`: ask again while the tab is seen; 0: only when the path changes.
export function useFetched(path, everyMs = 0) {
  const [found, setFound] = useState({ path: null, content: null, error: "" });
  const newest = useRef(path);
  newest.current = path;
  const look = useCallback(async () => {
    if (path === null) return;
    const answer = await get(path).then((content) => ({ content, error: "" }), (error) => ({ content: null, error: error.message }));
    if (newest.current === path) setFound({ path, ...answer });
  }, [path]);
  useEffect(() => {
    look();
    if (!everyMs) return undefined;
    const timer = setInterval(() => document.hidden || look(), everyMs);
    return () => clearInterval(timer);
  }, [look, everyMs]);
  return found.path === path ? [found.content, found.error, look] : [null, "", look];
}

// keys: letter -> what it does, while the view is shown and nobody writes.
export function useKeys(keys) {
  const newest = useRef(keys);
  newest.current = keys;
  useLayoutEffect(() => { // at once: who sees the view may press a key
    const press = (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
      if (event.target.closest?.("input:not([type=checkbox], [type=range]), textarea, select") && event.key !== "Escape") return;
      const act = newest.current[event.key];
      if (act && act(event) !== false) event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
