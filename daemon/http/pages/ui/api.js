// The daemon's JSON pages. What they say: docs/HTTP.md. Nothing here touches the page.

import { Pages } from "./ask.js";

export { NeedsToken } from "./ask.js";

const pages = new Pages("mooncask admin token", [401, 403], (answer) => answer.message);
const ask = (path, options) => pages.ask(path, options);

export const setToken = (token) => pages.setToken(token);

function query(fields) {
  return new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== "" && value !== undefined)).toString();
}

const name = encodeURIComponent;

export const overview = () => ask("overview");
export const events = (limit) => ask(`events?${query({ limit })}`);
export const children = (namespace, parent, after) =>
  ask(`chains/${name(namespace)}?${query({ parent, after, limit: 50 })}`);
export const path = (namespace, key) => ask(`chains/${name(namespace)}/${name(key)}`);
export const why = (request) =>
  ask("why", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) });
