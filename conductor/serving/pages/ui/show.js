// What all views are made of: elements, tables, numbers as people read them. Text from the Conductor becomes text nodes only.

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

// `columns`: [title, class]; a row is a list of cells.
export function table(columns, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const head = columns.map(([title, kind]) => el("th", { class: kind, scope: "col" }, title));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => el("td", { class: columns[i][1] }, cell))));
  return el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

// A box keeps its place while what is in it changes.
export function put(id, ...children) {
  const box = document.getElementById(id);
  const { scrollTop, scrollLeft } = box;
  box.replaceChildren(...children);
  box.scrollTop = scrollTop;
  box.scrollLeft = scrollLeft;
}

export const count = (number) => Math.round(number).toLocaleString("en");
export const share = (part, whole) => (whole ? `${(100 * part / whole).toFixed(1)} %` : "–");
export const percent = (ratio) => `${(100 * ratio).toFixed(0)} %`;
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

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
