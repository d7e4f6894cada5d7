// The prefix tree of one namespace, opened node by node: a namespace may have a million blocks, a page has fifty.
// Only where a chain forks it moves to the right: a prompt has hundreds of blocks in a row.

import { children, path } from "./api.js";
import { chips, count, duration, el, key, size } from "./show.js";

export class Tree {
  constructor(box, namespaceOf, complain) {
    this.box = box;
    this.namespaceOf = namespaceOf;
    this.complain = complain;
    this.chosen = "";
    box.addEventListener("click", (event) => this.#clicked(event.target.closest("button")));
  }

  async roots() {
    this.chosen = "";
    await this.#showBelow(this.box, "");
  }

  // Shows one chain from its beginning to `chosen`, and what continues it.
  async open(chosen) {
    await this.#guarded(async () => {
      const answer = await path(this.namespaceOf(), chosen);
      this.chosen = chosen;
      let box = this.box;
      box.replaceChildren();
      for (const node of answer.nodes) {
        const [line, below] = this.#node(node);
        box.append(line, below);
        line.querySelector(".twist").textContent = "▾";
        below.hidden = false;
        box = below;
      }
      if (answer.nodes.at(-1)?.children) await this.#showBelow(box, chosen);
      this.box.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
    });
  }

  async #clicked(button) {
    if (!button) return;
    if (button.dataset.more !== undefined) {
      const box = button.parentElement;
      button.remove();
      await this.#append(box, button.dataset.parent, button.dataset.more);
    } else if (button.dataset.key) {
      const below = button.closest(".node").nextElementSibling;
      const opens = below.hidden;
      below.hidden = !opens;
      button.textContent = opens ? "▾" : "▸";
      button.setAttribute("aria-expanded", String(opens));
      if (opens && !below.hasChildNodes()) await this.#showBelow(below, button.dataset.key);
    }
  }

  async #showBelow(box, parent) {
    box.replaceChildren();
    await this.#append(box, parent, "");
  }

  async #append(box, parent, after) {
    await this.#guarded(async () => {
      const answer = await children(this.namespaceOf(), parent, after);
      for (const node of answer.nodes) box.append(...this.#node(node));
      if (answer.more) box.append(el("button", { type: "button", "data-parent": parent, "data-more": answer.nodes.at(-1).key }, "More"));
      if (!answer.nodes.length && !after) box.append(el("p", { class: "empty" }, parent ? "Nothing continues it." : "No chain here."));
    });
  }

  #node(node) {
    const below = node.blocks_below > 1 ? `${count(node.blocks_below)} blocks` : "1 block";
    const age = Date.now() / 1000 - node.created_seconds;
    const line = el("div", { class: node.key === this.chosen ? "node chosen" : "node" },
      el("button", { type: "button", class: "twist", "data-key": node.key, "aria-expanded": "false",
        "aria-label": `what continues ${node.key}`, disabled: !node.children }, node.children ? "▸" : "·"),
      key(node.key), el("span", {}, ...chips(node.tiers)),
      el("span", { class: "soft" }, `block ${node.depth} · ${count(node.tokens)} tokens · ${size(node.size_bytes)} · ${count(node.hits)} hits · ${below} · ${duration(Math.max(0, age))} old`));
    return [line, el("div", { class: node.children > 1 ? "below" : "below run", hidden: true })];
  }

  async #guarded(work) {
    try {
      await work();
    } catch (error) {
      this.complain(error);
    }
  }
}
