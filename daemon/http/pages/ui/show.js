// Small pieces that all views are made of: elements, tables, numbers as people read them.
// Text from the daemon always becomes text nodes: a key may contain anything.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === undefined) continue;
    if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function table(columns, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const head = columns.map(([title, kind]) => el("th", { class: kind, scope: "col" }, title));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => el("td", { class: columns[i][1] }, cell))));
  return el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

// Replaces what a scrolling box shows and leaves it scrolled where it was.
export function put(id, ...children) {
  const box = document.getElementById(id);
  const { scrollTop, scrollLeft } = box;
  box.replaceChildren(...children);
  box.scrollTop = scrollTop;
  box.scrollLeft = scrollLeft;
}

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
export const count = (number) => Math.round(number).toLocaleString("en");
export const share = (ratio) => (ratio < 0 ? "–" : `${(100 * ratio).toFixed(1)} %`);

export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

export function key(text) {
  const short = text.length > 18 ? `${text.slice(0, 8)}…${text.slice(-6)}` : text;
  return el("span", { class: "key", title: text }, short);
}

export const chips = (tiers) => tiers.flatMap((tier) => [el("span", { class: `chip ${tier}` }, tier), " "]);
