// From the overview to what is seen of it.

import { plot } from "./plot.js";
import { bytes, clock, count, duration, el, percent, put, quantile, share, table } from "./show.js";

const at = (id) => document.getElementById(id);

export function drawOverview(now) {
  at("policies").textContent = `${now.placement}, admission ${now.admission}`;
  at("version").textContent = `Mooncask ${now.version}`;
  drawNumbers(now);
  put("pools", ...(now.pools.length ? now.pools.map(pool) : [el("p", { class: "empty" }, "No worker has registered.")]));
  put("requests", requestTable(now.requests.filter((one) => !one.rejected)));
  drawRejections(now);
  drawCalibration(now.calibration);
  put("hot", hotTable(now.hot));
  put("caches", cacheTable(now.caches, now.currency));
  put("classes", table([["class, highest last"], ["first token", "right"], ["between tokens", "right"]],
    now.classes.map((one) => [one.name, duration(one.ttft_seconds), duration(one.tbt_seconds)]), ""));
  put("quotas", quotaTable(now.quotas));
  if (now.plan) drawPlan(now.plan);
}

function drawPlan(plan) {
  const how = plan.apply ? "Roles are changed as recommended" : "Recommended only";
  const hook = plan.hook ? ` The scale hook: ${plan.hook}.` : "";
  put("plan", el("p", { class: "note" }, `${how}, for slots of ${duration(plan.slot_seconds)}.${hook}`),
    table([["model", "name"], ["prefill", "right"], ["decode", "right"], ["last load", "right"], ["changes", "text"]],
      plan.recommendations.map((one) => [one.model, arrow(one.prefill_now, one.prefill), arrow(one.decode_now, one.decode),
        `${one.prefill_load.toFixed(2)} + ${one.decode_load.toFixed(2)}`,
        one.changes.map((change) => `${change.worker} to ${change.role}${change.restart ? " by a restart" : ""}`).join(", ") || "none"]),
      "Nothing yet: two slots of load and two workers of a model are needed."));
}

const arrow = (from, to) => (from === to ? `${to}` : `${from} → ${to}`);

function drawNumbers(now) {
  const ended = Object.values(now.outcomes).reduce((sum, one) => sum + one, 0);
  const rejected = now.outcomes.rejected ?? 0;
  const figures = [
    [count(now.running), "running"],
    [count(now.waiting), "wait for a place"],
    [count(ended), "requests ended"],
    [share(rejected, ended), "rejected early"],
    [duration(quantile(now.ttft, 0.5)), "first token, median"],
    [duration(quantile(now.ttft, 0.9)), "first token, P90"],
    [share(now.cached_tokens, now.prompt_tokens), "of prompts cached"],
    [count(now.output_tokens), "tokens answered"],
    [count(now.retries), "tried again"],
  ];
  put("numbers", ...figures.map(([value, what]) => el("div", { class: "number" }, el("b", {}, value), el("span", {}, what))));
}

function pool(one) {
  const speed = one.prefill_tokens_per_second
    ? ` · prefill ${count(one.prefill_tokens_per_second)} tokens/s · step ${duration(one.step_seconds)}` : "";
  const rows = one.workers.map((worker) => [
    worker.name, role(worker), worker.node, load(worker), state(worker),
  ]);
  return el("div", { class: "pool" }, el("h3", {}, one.model),
    el("p", { class: "note" }, `${count(one.positions_max)} positions · blocks of ${one.block_tokens} tokens${speed}`),
    el("div", { class: "scroll" }, table([["worker", "name"], ["role"], ["node"], ["load", "wide-cell"], ["state", "text"]], rows, "")));
}

function role(worker) {
  const wanted = worker.wanted_role ? ` → ${worker.wanted_role}` : "";
  return el("span", { class: `chip ${worker.role}` }, `${worker.role}${wanted}`);
}

function load(worker) {
  if (worker.role === "prefill")
    return meter(worker.queue_seconds / 10, "prefill", worker.queue_seconds
      ? `${duration(worker.queue_seconds)} queued, ${count(worker.queued_tokens)} tokens` : "nothing queued");
  const used = Math.max(0, worker.slots - worker.free_slots);
  return meter(used / Math.max(1, worker.slots), "decode", `${used} of ${worker.slots} places, ${count(worker.context_tokens)} tokens`);
}

function meter(part, kind, text) {
  const width = `width:${Math.min(100, 100 * part).toFixed(1)}%`;
  return el("div", {}, el("div", { class: `bar-of ${kind}`, role: "img", "aria-label": text }, el("i", { style: width })),
    el("span", { class: "note" }, text));
}

function state(worker) {
  if (worker.draining) return el("span", { class: "warn" }, "draining");
  if (worker.shunned) return el("span", { class: "bad" }, "failed a moment ago");
  const failures = worker.failures ? `, ${count(worker.failures)} failed calls` : "";
  return el("span", { class: failures ? "warn" : "good" }, `answers${failures}`);
}

function requestTable(requests) {
  const rows = requests.map((one) => [
    clock(one.at),
    el("button", { type: "button", class: "link key", "data-request": one.id }, one.id.slice(0, 18)),
    one.service_class || "default",
    `${count(one.matched_tokens)} of ${count(one.prompt_tokens)}`,
    one.inline ? "–" : one.prefill_worker,
    one.decode_worker,
    `${duration(one.predicted_ttft)} / ${duration(one.ttft)}`,
    el("span", { class: { failed: "bad", cancelled: "warn" }[one.ended] }, one.ended || "running"),
  ]);
  return table([["at"], ["request"], ["class"], ["tokens in store", "right"], ["prefill", "name"], ["decode", "name"],
    ["first token predicted / seen", "right"], ["ended"]], rows, "No request yet.");
}

function drawRejections(now) {
  const reasons = Object.entries(now.rejections);
  put("reasons", table([["reason"], ["requests", "right"]], reasons.map(([why, n]) => [why.replaceAll("_", " "), count(n)]),
    "Nothing has been rejected."));
  const rejected = now.requests.filter((one) => one.rejected);
  put("rejections", ...(rejected.length ? [table([["at"], ["class"], ["why", "text"], ["again in", "right"]],
    rejected.map((one) => [clock(one.at), one.service_class || "default",
      el("button", { type: "button", class: "link", "data-request": one.id }, one.rejected), duration(one.retry_after_seconds)]), "")] : []));
}

function drawCalibration(told) {
  const plots = [["First token", told.ttft], ["First token, no prefill", told.inline], ["Decode step", told.step]];
  put("calibration", ...plots.map(([title, one]) =>
    el("figure", {}, el("figcaption", {}, one.pairs.length
      ? `${title}: off by ${percent(one.error)} on average, ${percent(Math.abs(one.bias))} too ${one.bias < 0 ? "short" : "long"}`
      : `${title}: nothing predicted yet`), plot(one.pairs, title))));
  put("prices", fetchTable(told.fetch), pauses(told.pause));
}

function fetchTable(rates) {
  return table([["loads of", "name"], ["from"], ["rate", "right"], ["measured", "right"]], rates.map((one) =>
    [one.worker, one.tier, `${bytes(one.bytes_per_second)}/s`, one.measured_bytes ? bytes(one.measured_bytes) : "–"]), "Nothing was placed yet.");
}

function pauses(told) {
  return el("p", { class: "note" }, told.policy === "never"
    ? "Decode never stands still for a prefill (policy.pause_decode)."
    : `Decode stood still ${count(told.pauses)} times for prefills beside it, ${duration(told.seconds)} in all; a prefill takes ${told.slowdown.toFixed(1)} times as long beside a decoding batch.`);
}

function hotTable(chains) {
  return table([["prefix"], ["model", "name"], ["tokens", "right"], ["reads", "right"], ["held by", "text"]],
    chains.map((one) => [el("span", { class: "key", title: one.key }, `${one.key.slice(0, 8)}…`), one.model, count(one.tokens),
      `${one.reads_per_second.toFixed(2)}/s`, one.nodes.join(", ")]), "No prefix is read so often that copies are worth it.");
}

function cacheTable(caches, currency) {
  const kind = { ready: "good", error: "bad" };
  return table([["cache", "name"], ["tenant"], ["status"], ["tokens", "right"], ["lives for", "right"], [`cost, ${currency}`, "right"]],
    caches.map((one) => [one.id, one.tenant, el("span", { class: kind[one.status] ?? "warn" }, one.status),
      count(one.tokens), duration(Math.max(0, one.expires_at - Date.now() / 1000)), one.cost.toFixed(4)]), "No context cache.");
}

function quotaTable(quotas) {
  const rows = Object.entries(quotas).flatMap(([tenant, windows]) => Object.entries(windows).map(([what, [used, limit]]) =>
    [tenant, what, meter(used / limit, used > 0.9 * limit ? "full" : "decode", `${count(used)} of ${count(limit)}`)]));
  return table([["tenant", "name"], ["of"], ["used", "wide-cell"]], rows, "No tenant has a quota.");
}
