// The Conductor's JSON pages. What they say: docs/CONDUCTOR-PAGES.md. Nothing here touches the page.

import { Pages } from "./ask.js";

export { NeedsToken } from "./ask.js";

const pages = new Pages("mooncask conductor token", [401], (answer) => answer.error.message);

export const setToken = (token) => pages.setToken(token);
export const overview = () => pages.ask("overview");
export const request = (id) => pages.ask(`requests/${encodeURIComponent(id)}`);
