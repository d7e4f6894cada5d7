// What the overview and the events look like. Each view draws one answer and keeps nothing.

import { chips, clock, count, duration, el, key, put, rate, share, size, table } from "./show.js";

export function drawOverview(now) {
  document.getElementById("node").textContent = now.node;
  document.getElementById("version").textContent = `version ${now.version}`;
  document.getElementById("window").textContent = Math.round(now.window_seconds);
  drawNumbers(now);
  put("tiers", ...now.tiers.map((tier) => tierRow(tier, now.flows)));
  put("flows", flowTable(now.flows));
  put("hot", hotTable(now.hot_chains));
  put("namespaces", namespaceTable(now.namespaces));
  put("clients", clientTable(now.clients));
  put("what-if", whatIfTable(now));
  put("peers", peerTable(now.peers));
}

function peerTable(peers) {
  const rows = peers.map((p) => [
    el("span", { title: p.incarnation ? `incarnation ${p.incarnation}` : undefined }, p.name),
    el("span", { class: p.state === "failing" ? "bad" : p.state === "linked" ? "good" : undefined, title: p.problem || undefined }, p.state),
    p.address, p.transport || "–", count(p.blocks_pulled), size(p.bytes_pulled), p.rate_bytes ? rate(p.rate_bytes) : "–",
    count(p.blocks_pushed), p.round_trip_seconds ? `${(1000 * p.round_trip_seconds).toFixed(1)} ms` : "–",
    count(p.failures), count(p.wrong), p.seen_seconds >= 0 ? duration(p.seen_seconds) : "–",
  ]);
  return table([["peer", "name"], ["state"], ["address", "text"], ["transport"], ["blocks pulled", "right"], ["bytes", "right"],
    ["a second", "right"], ["pushed", "right"], ["round trip", "right"], ["failures", "right"], ["wrong", "right"], ["seen", "right"]],
  rows, "This node is alone: no peers are configured.");
}

function drawNumbers(now) {
  const leased = now.clients.reduce((sum, client) => sum + client.leases, 0);
  const figures = [
    [share(now.hit_rate), "hit rate, in tokens of prefixes"],
    [now.requests_rate.toFixed(1), "look-ups a second"],
    [count(now.tiers.reduce((most, tier) => Math.max(most, tier.blocks), 0)), "blocks in the fullest tier"],
    [count(leased), "leases held"],
    [size(now.dirty_bytes), "not yet on NVMe"],
    [count(now.waiting_for_room), "requests waiting for room"],
  ];
  put("numbers", ...figures.map(([value, text]) => el("div", { class: "number" }, el("b", {}, value), el("span", {}, text))));
}

function tierRow(tier, flows) {
  const of = (part) => `width:${tier.capacity_bytes ? Math.min(100, (100 * part) / tier.capacity_bytes) : 0}%`;
  const held = tier.pinned_bytes + tier.leased_bytes + tier.reserved_bytes;
  const moving = flows.filter((flow) => flow.tier === tier.tier && flow.rate_bytes >= 1);
  const flowing = moving.length ? ` · ${moving.map((flow) => `${flow.kind} ${rate(flow.rate_bytes)}`).join(" · ")}` : "";
  const good = tier.state === "ok";
  return el("div", { class: "tier" },
    el("strong", { class: tier.tier }, tier.tier.toUpperCase()),
    el("div", { class: `bar-of ${tier.tier}`, role: "img",
      "aria-label": `${tier.tier}: ${size(tier.used_bytes)} of ${size(tier.capacity_bytes)} used` },
      el("i", { style: of(tier.used_bytes) }), el("i", { class: "held", style: of(held) })),
    el("div", { class: "says" }, el("b", {}, `${size(tier.used_bytes)} of ${size(tier.capacity_bytes)}`),
      ` · ${count(tier.blocks)} blocks · ${tier.policy} · `,
      el("span", { class: good ? "good" : "bad" }, tier.state),
      ` · pinned ${size(tier.pinned_bytes)}, leased ${size(tier.leased_bytes)}, reserved ${size(tier.reserved_bytes)}${flowing}`));
}

function flowTable(flows) {
  const rows = flows.map((f) => [f.kind, el("span", { class: f.tier }, f.tier), rate(f.rate_bytes), count(f.total), size(f.total_bytes)]);
  return table([["flow"], ["tier"], ["now", "right"], ["blocks since start", "right"], ["bytes", "right"]], rows, "Nothing has flowed yet.");
}

function hotTable(chains) {
  const rows = chains.map((chain) => [
    el("button", { type: "button", class: "link", "data-namespace": chain.namespace, "data-key": chain.key }, key(chain.key)),
    chain.namespace, count(chain.tokens), `${chain.rate.toFixed(2)}/s`, count(chain.hits), el("span", {}, ...chips(chain.tiers)),
  ]);
  return table([["chain"], ["namespace", "name"], ["tokens", "right"], ["reads", "right"], ["hits", "right"], ["tiers"]], rows,
    "No chain has been read yet.");
}

function namespaceTable(namespaces) {
  const rows = namespaces.map((n) => [n.name, n.kind, n.mode, count(n.blocks), size(n.size_bytes), share(n.hit_rate)]);
  return table([["namespace", "name"], ["kind"], ["mode"], ["blocks", "right"], ["size", "right"], ["hit rate", "right"]], rows,
    "No namespace yet: an engine makes one when it connects.");
}

function clientTable(clients) {
  const rows = clients.map((c) => [count(c.pid), c.name, c.tenant, count(c.connections), count(c.leases), size(c.leased_bytes)]);
  return table([["pid", "right"], ["name", "text"], ["tenant"], ["connections", "right"], ["leases", "right"], ["leased", "right"]], rows,
    "No process is connected.");
}

function whatIfTable(now) {
  const rows = now.what_if.map((w) => [w.text || w.name, w.policy, size(w.capacity_bytes), share(w.hit_rate), count(w.sampled_accesses)]);
  return table([["if", "text"], ["policy"], ["capacity", "right"], ["hit rate", "right"], ["sampled", "right"]], rows,
    "Ghost caches have seen nothing yet.");
}

export function drawEvents(events) {
  put("misses", table([["when"], ["namespace", "name"], ["hit", "right"], ["why", "text"]],
    events.misses.map((m) => [clock(m.time_seconds), m.namespace, `${m.hit_blocks} of ${m.asked_blocks}`,
      el("span", { title: m.key }, m.text || m.verdict)]), "No look-up has missed lately."));
  put("departures", table([["when"], ["block"], ["reason"], ["from"], ["size", "right"]],
    events.departures.map((d) => [clock(d.time_seconds), key(d.key), d.policy ? `${d.reason} by ${d.policy}` : d.reason,
      el("span", { class: d.tier }, d.tier), size(d.size_bytes)]), "No block has left since the start."));
}

export function drawWhy(why) {
  const miss = why.first_miss;
  const strip = why.chain.slice(0, 512).map((block) => {
    const kind = block.verdict === "hit" ? (miss && block.index > miss.index ? "later" : "hit") : miss && block.index === miss.index ? "first" : "";
    return el("i", { class: kind, title: `block ${block.index}: ${block.text || block.verdict}` });
  });
  const whole = !miss;
  put("why", ...[
    el("p", { class: `verdict ${whole ? "good" : "bad"}` }, whole
      ? `All ${why.blocks} blocks are here: ${count(why.hit_tokens)} tokens.`
      : `${why.hit_blocks} of ${why.blocks} blocks hit (${count(why.hit_tokens)} tokens); block ${miss.index} missed: ${miss.text || miss.verdict}.`),
    el("div", { class: "strip", "aria-hidden": "true" }, ...strip),
    why.later_hits ? el("p", {}, `${why.later_hits} blocks behind it are here and can't be used without it.`) : null,
    why.tail_tokens ? el("p", { class: "note" }, `${why.tail_tokens} tokens behind the last whole block are never stored.`) : null,
    ...why.elsewhere.map((e) => el("p", { class: "warn" }, `${e.namespace} has ${e.blocks} blocks of it; it differs in ${e.differs.join(", ")}.`)),
    why.advice ? el("p", {}, why.advice) : null,
    why.log_since_seconds ? el("p", { class: "note" }, `The log of departures reaches back ${duration(Date.now() / 1000 - why.log_since_seconds)}.`) : null,
  ].filter((part) => part !== null));
}
