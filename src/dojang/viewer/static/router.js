// Hash routes: #/rollouts?run=a&outcome=wrong. Pages read their state from the URL, so the back button and links work.

/** Returns the page's name and parameters of a hash. */
export function parseRoute(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { page: path || "overview", params: Object.fromEntries(new URLSearchParams(query)) };
}

/** Returns the hash of a page; leaves out empty parameters. */
export function formatRoute(page, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  const text = query.toString();
  return `#/${page === "overview" ? "" : page}${text ? `?${text}` : ""}`;
}

/** Goes to a page. With `replace`, the back button does not return to the present one. */
export function go(page, params, { replace = false } = {}) {
  const hash = formatRoute(page, params);
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = hash;
  }
}

/** Returns the parameters that name one sample. */
export function sampleParams(run, row) {
  const { kind, step, prompt_index, index, role, turn } = row;
  return { run, kind, step, prompt_index, index, role, turn };
}
