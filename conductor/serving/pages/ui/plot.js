// The calibration plot: what was predicted against what happened, both on one logarithmic scale.

const SIZE = 220;
const LEFT = 42;
const BELOW = 26;
const NAMESPACE = "http://www.w3.org/2000/svg";

function svg(tag, attributes, text) {
  const node = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function label(seconds) {
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds} s`;
}

// Powers of ten around all values, at least one decade.
function decades(values) {
  const least = Math.floor(Math.log10(Math.min(...values)));
  const most = Math.ceil(Math.log10(Math.max(...values)));
  return [Math.max(-4, least), Math.max(most, least + 1)];
}

export function plot(pairs, title) {
  const known = pairs.filter(([predicted, happened]) => predicted > 0 && happened > 0);
  const picture = svg("svg", { viewBox: `0 0 ${SIZE + LEFT + 22} ${SIZE + BELOW + 10}`, role: "img", class: "plot", "aria-label": title });
  if (!known.length) return picture;
  const [low, high] = decades(known.flat());
  const along = (seconds) => (Math.log10(Math.max(seconds, 10 ** low)) - low) / (high - low) * SIZE;
  for (let power = low; power <= high; power += 1) {
    const at = along(10 ** power);
    picture.append(
      svg("line", { x1: LEFT + at, y1: 4, x2: LEFT + at, y2: 4 + SIZE, class: "grid" }),
      svg("line", { x1: LEFT, y1: 4 + SIZE - at, x2: LEFT + SIZE, y2: 4 + SIZE - at, class: "grid" }),
      svg("text", { x: LEFT + at, y: SIZE + 18, class: "tick middle" }, label(10 ** power)),
      svg("text", { x: LEFT - 5, y: 8 + SIZE - at, class: "tick end" }, label(10 ** power)));
  }
  picture.append(svg("line", { x1: LEFT, y1: 4 + SIZE, x2: LEFT + SIZE, y2: 4, class: "exact" }));
  for (const [predicted, happened] of known)
    picture.append(svg("circle", { cx: LEFT + along(predicted), cy: 4 + SIZE - along(happened), r: 2.5, class: "dot" }));
  return picture;
}
