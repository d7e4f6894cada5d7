// The daemon's JSON pages. What they say: docs/HTTP.md. Nothing here touches the page.

const TOKEN_KEY = "mooncask admin token";
const DEADLINE_MS = 10000;

export class NeedsToken extends Error {}

export function setToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token);
}

function headers(extra) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return token ? { ...extra, Authorization: `Bearer ${token}` } : extra;
}

async function ask(path, options = {}) {
  const response = await fetch(`../v1/${path}`, {
    cache: "no-store",
    signal: AbortSignal.timeout(DEADLINE_MS),
    ...options,
    headers: headers(options.headers ?? {}),
  });
  if (response.ok) return response.json();
  if (response.status === 401 || response.status === 403) throw new NeedsToken(await said(response));
  throw new Error(await said(response));
}

async function said(response) {
  try {
    const answer = await response.json();
    return answer.message || `status ${response.status}`;
  } catch {
    return `status ${response.status}`;
  }
}

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
