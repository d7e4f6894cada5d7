// A dashboard's way to its JSON pages, with the token that was typed in. Nothing here touches the page.

const DEADLINE_MS = 10000;

export class NeedsToken extends Error {}

export class Pages {
  // `tokenKey`: under which name the tab keeps the token. `refusals`: statuses that mean that one is needed.
  // `reason`: what an error's JSON says.
  constructor(tokenKey, refusals, reason) {
    Object.assign(this, { tokenKey, refusals, reason });
  }

  setToken(token) {
    sessionStorage.setItem(this.tokenKey, token);
  }

  async ask(path, options = {}) {
    const response = await fetch(`../v1/${path}`, {
      cache: "no-store",
      signal: AbortSignal.timeout(DEADLINE_MS),
      ...options,
      headers: this.headers(options.headers ?? {}),
    });
    if (response.ok) return response.json();
    const text = await this.told(response);
    throw this.refusals.includes(response.status) ? new NeedsToken(text) : new Error(text);
  }

  headers(more) {
    const token = sessionStorage.getItem(this.tokenKey);
    return token ? { ...more, Authorization: `Bearer ${token}` } : more;
  }

  async told(response) {
    try {
      return this.reason(await response.json()) || `status ${response.status}`;
    } catch {
      return `status ${response.status}`;
    }
  }
}
