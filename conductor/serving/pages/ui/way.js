// One request's way: candidates, choice, what broke, what came of it.

import { clock, count, duration, el, put, share, table } from "./show.js";

function candidates(told, placement) {
  if (!told.candidates.length) return null;
  const rows = [...told.candidates].sort((a, b) => a.ttft_seconds - b.ttft_seconds).map((one) => [
    one.worker === (told.inline ? told.decode_worker : told.prefill_worker) ? el("b", { class: "good" }, one.worker) : one.worker,
    one.node, duration(one.queue_seconds), count(one.held_tokens), count(one.brought_tokens), duration(one.ttft_seconds),
  ]);
  return el("div", {}, el("p", { class: "note" }, `${told.inline ? "Decode" : "Prefill"} workers that were looked at, policy ${placement}:`),
    table([["worker"], ["node"], ["queue", "right"], ["tokens held", "right"], ["brought", "right"], ["first token in", "right"]], rows, ""));
}

function choice(told) {
  if (told.rejected)
    return el("p", { class: "bad" }, `Rejected: ${told.rejected}; told to try again in ${duration(told.retry_after_seconds)}.`);
  if (told.inline)
    return el("p", {}, `No prefill: ${told.decode_worker} computes the ${count(told.prompt_tokens - told.matched_tokens)} missing tokens itself.`);
  return el("p", {}, `Prefill on ${told.prefill_worker || "nobody"}, decode on ${told.decode_worker || "nobody"}.`);
}

function outcome(told, level) {
  if (told.rejected) return null;
  const first = told.ttft ? `First token after ${duration(told.ttft)}` : "No token yet";
  const end = told.ended
    ? `; ended by ${told.ended} after ${duration(told.seconds)} with ${count(told.output_tokens)} tokens; decode loaded ${count(told.cached_tokens)} tokens of the prompt`
    : "; it is still running";
  return el("p", {}, `${first} (predicted ${duration(told.predicted_ttft)}, level ${duration(level.ttft_seconds)})${end}.`);
}

export function drawWay(page) {
  const told = page.request;
  put("way", ...[
    el("h3", {}, told.id),
    el("p", { class: "note" }, `${clock(told.at)} · model ${told.model} · tenant ${told.tenant || "default"} · class ${told.service_class || "default"}`),
    el("p", {}, `${count(told.matched_tokens)} of ${count(told.prompt_tokens)} prompt tokens (${share(told.matched_tokens, told.prompt_tokens)}) were in store when it was placed; at most ${count(told.max_tokens)} to answer.`),
    candidates(told, page.placement),
    choice(told),
    told.paused_seconds ? el("p", {}, `Decode on its node stood still for ${duration(told.paused_seconds)}, so that its prefill was in time.`) : null,
    ...told.failures.map((why, i) => el("p", { class: "warn" }, `Attempt ${i + 1} failed: ${why}`)),
    outcome(told, page.service_level),
  ].filter((part) => part !== null));
}
