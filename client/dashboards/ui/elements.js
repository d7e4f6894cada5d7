// What all views are made of: elements, tables, numbers as people read them.
// Text from a server always becomes text nodes: a key may contain anything.

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

// Replaces what a scrolling box shows and leaves it scrolled where it was.
export function put(id, ...children) {
  const box = document.getElementById(id);
  const { scrollTop, scrollLeft } = box;
  box.replaceChildren(...children);
  box.scrollTop = scrollTop;
  box.scrollLeft = scrollLeft;
}

export const count = (number) => Math.round(number).toLocaleString("en");
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
