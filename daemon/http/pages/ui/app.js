// The dashboard: asks the daemon every two seconds while somebody looks, and wires the views to what people press.

import { NeedsToken, events, overview, setToken, why } from "./api.js";
import { clock, duration, el, put } from "./show.js";
import { Tree } from "./tree.js";
import { drawEvents, drawOverview, drawWhy } from "./views.js";

const EVERY_MS = 2000;
const EVENTS_SHOWN = 50;
const at = (id) => document.getElementById(id);

let paused = false;
let timer = 0;
let lastAnswer = 0;

function say(text, lost = false) {
  at("state").textContent = text;
  at("state").classList.toggle("lost", lost);
}

function complain(error) {
  at("token-form").hidden = !(error instanceof NeedsToken);
  const since = lastAnswer ? `; last answer at ${clock(lastAnswer)}` : "";
  say(error instanceof TypeError || error.name === "TimeoutError" ? `the daemon does not answer${since}; trying again` : error.message, true);
}

async function refresh() {
  clearTimeout(timer);
  try {
    const [now, happened] = await Promise.all([overview(), events(EVENTS_SHOWN)]);
    lastAnswer = Date.now() / 1000;
    at("token-form").hidden = true;
    offerNamespaces(now.namespaces);
    drawOverview(now);
    drawEvents(happened);
    say(`${now.ready ? "ready" : "not ready"} · up ${duration(now.uptime_seconds)}${paused ? " · paused" : ""}`);
  } catch (error) {
    complain(error);
  }
  if (!paused && !document.hidden) timer = setTimeout(refresh, EVERY_MS);
}

// Keeps what is chosen, at first the fullest one; fills the tree at the first sight of a namespace.
function offerNamespaces(namespaces) {
  const kv = namespaces.filter((n) => n.kind === "kv");
  const names = kv.map((n) => n.name);
  const fullest = kv.reduce((most, n) => (most && most.blocks >= n.blocks ? most : n), null);
  for (const id of ["tree-namespace", "why-namespace"]) {
    const select = at(id);
    if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) continue;
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : (fullest?.name ?? "");
    if (id === "tree-namespace" && names.length && !names.includes(chosen)) tree.roots();
  }
}

// A chain of keys is hex of more than 8 digits each; token ids are decimal numbers.
function promptOf(text) {
  const words = text.split(/[\s,;[\]"']+/).filter(Boolean);
  if (words.length && words.every((word) => /^[0-9]{1,10}$/.test(word))) return { tokens: words.map(Number) };
  if (words.length && words.every((word) => /^[0-9a-fA-F]{12,}$/.test(word))) return { keys: words.map((word) => word.toLowerCase()) };
  throw new Error("a prompt is token ids (decimal, with commas) or block keys (hex)");
}

async function askWhy(event) {
  event.preventDefault();
  try {
    const prompt = promptOf(at("why-prompt").value);
    drawWhy(await why({ namespace: at("why-namespace").value, cache_salt: at("why-salt").value, ...prompt }));
  } catch (error) {
    put("why", el("p", { class: "bad" }, error.message));
  }
}

const tree = new Tree(at("tree"), () => at("tree-namespace").value, complain);

at("tree-namespace").addEventListener("change", () => tree.roots());
at("tree-reload").addEventListener("click", () => (tree.chosen ? tree.open(tree.chosen) : tree.roots()));
at("tree-roots").addEventListener("click", () => tree.roots());
at("why-form").addEventListener("submit", askWhy);
at("hot").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  at("tree-namespace").value = button.dataset.namespace;
  tree.open(button.dataset.key);
  at("tree").scrollIntoView({ block: "center" });
});
at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").textContent = paused ? "Go on" : "Pause";
  at("pause").setAttribute("aria-pressed", String(paused));
  refresh();
});
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(at("token").value);
  at("token").value = "";
  refresh();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) refresh();
});

refresh();
