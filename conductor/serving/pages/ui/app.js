// The dashboard: asks the Conductor every two seconds while somebody looks, and shows a request's way when it is chosen.

import { NeedsToken, overview, request, setToken } from "./api.js";
import { clock, duration, el, put } from "./show.js";
import { drawOverview } from "./views.js";
import { drawWay } from "./way.js";

const EVERY_MS = 2000;
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
  say(error instanceof TypeError || error.name === "TimeoutError" ? `the Conductor does not answer${since}; trying again` : error.message, true);
}

async function refresh() {
  clearTimeout(timer);
  try {
    const now = await overview();
    lastAnswer = Date.now() / 1000;
    at("token-form").hidden = true;
    drawOverview(now);
    say(`${now.draining ? "draining" : "serving"} · up ${duration(now.up_seconds)}${paused ? " · paused" : ""}`);
  } catch (error) {
    complain(error);
  }
  if (!paused && !document.hidden) timer = setTimeout(refresh, EVERY_MS);
}

async function choose(event) {
  const button = event.target.closest("button[data-request]");
  if (!button) return;
  try {
    drawWay(await request(button.dataset.request));
    at("way").scrollIntoView({ block: "nearest" });
  } catch (error) {
    put("way", el("p", { class: "bad" }, error.message));
  }
}

at("requests").addEventListener("click", choose);
at("rejections").addEventListener("click", choose);
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
