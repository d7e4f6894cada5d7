// What this dashboard shows beside `elements.js`: shares, amounts, times.

export { clock, count, el, put, table } from "./elements.js";

export const share = (part, whole) => (whole ? `${(100 * part / whole).toFixed(1)} %` : "–");
export const percent = (ratio) => `${(100 * ratio).toFixed(0)} %`;

// As `4.2 GB`.
export function bytes(number) {
  const power = number < 1 ? 0 : Math.min(4, Math.floor(Math.log10(number) / 3));
  return `${(number / 1000 ** power).toFixed(power ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

export function duration(seconds) {
  if (!seconds) return "–";
  if (seconds < 1) return `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

// The middle of a sorted list, at `part` of it; 0 for an empty one.
export function quantile(values, part) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] : 0;
}
