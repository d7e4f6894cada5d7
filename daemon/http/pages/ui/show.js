// What this dashboard shows beside `elements.js`: sizes, keys, tiers.

import { el } from "./elements.js";

export { clock, count, el, put, table } from "./elements.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function size(bytes) {
  let unit = 0;
  let value = bytes;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && Math.abs(value) < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export const rate = (bytes) => `${size(bytes)}/s`;
export const share = (ratio) => (ratio < 0 ? "–" : `${(100 * ratio).toFixed(1)} %`);

export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function key(text) {
  const short = text.length > 18 ? `${text.slice(0, 8)}…${text.slice(-6)}` : text;
  return el("span", { class: "key", title: text }, short);
}

export const chips = (tiers) => tiers.flatMap((tier) => [el("span", { class: `chip ${tier}` }, tier), " "]);
