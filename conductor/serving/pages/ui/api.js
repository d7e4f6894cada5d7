// The Conductor's JSON pages. What they say: docs/CONDUCTOR-PAGES.md. Nothing here touches the page.

const TOKEN_KEY = "mooncask conductor token";
const DEADLINE_MS = 10000;

export class NeedsToken extends Error {}

export function setToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token);
}

async function ask(path) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const response = await fetch(`../v1/${path}`, {
    cache: "no-store",
    signal: AbortSignal.timeout(DEADLINE_MS),
    headers: token ? { Authorization: `Bearer ${token}` } : {},
  });
  if (response.ok) return response.json();
  const text = await told(response);
  throw response.status === 401 ? new NeedsToken(text) : new Error(text);
}

async function told(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `status ${response.status}`;
  }
}

export const overview = () => ask("overview");
export const request = (id) => ask(`requests/${encodeURIComponent(id)}`);
