// SPDX-License-Identifier: Apache-2.0
// Elements, made without markup: whatever a name is, it stays text.

function put(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(node.style, value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

function el(tag, attributes, ...children) {
  return put(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return put(document.createElementNS("http://www.w3.org/2000/svg", tag),
    attributes, children);
}

let lastId = 0;
function newId() { return `n${lastId += 1}`; }

function empty(node) { node.replaceChildren(); return node; }

function swatch(color) {
  return el("span", {class: "swatch", "aria-hidden": "true",
    style: {background: color}});
}

function category(name) { return `var(--c-${name}, var(--c-unknown))`; }

// A note beside the pointer; what it says is in the shape's own label as well.
const tip = {
  node: null,
  show(event, text) {
    if (!this.node) {
      this.node = el("div", {id: "tip", "aria-hidden": "true"});
      document.body.append(this.node);
    }
    this.node.textContent = text;
    this.node.style.display = "block";
    const box = this.node.getBoundingClientRect();
    this.node.style.left = `${Math.max(4, Math.min(event.clientX + 12,
      window.innerWidth - box.width - 8))}px`;
    this.node.style.top = `${event.clientY + 18 + box.height
      > window.innerHeight ? event.clientY - box.height - 8
      : event.clientY + 18}px`;
  },
  hide() { if (this.node) this.node.style.display = "none"; },
};

// Shapes of a drawing as one stop of the Tab key; arrows go from shape to shape.
// A shape: {label, color, place: {left, top, width, height} in percent, kind,
// text, act}.
function shape(one) {
  const tiny = one.place.width !== undefined && parseFloat(one.place.width) < 1.2;
  return el("button", {type: "button", "aria-label": one.label, tabindex: "-1",
    class: [one.kind || "", tiny ? "tiny" : ""].join(" ").trim() || null,
    style: {...one.place, ...(one.color ? {background: one.color} : {})},
    onclick: one.act,
    onmousemove: (event) => tip.show(event, one.label),
    onmouseleave: () => tip.hide()}, tiny ? "" : one.text || "");
}

function roving(box) {
  const shapes = () => [...box.querySelectorAll("button:not([aria-hidden])")];
  const first = shapes()[0];
  if (first) first.tabIndex = 0;
  box.onkeydown = (event) => {
    const all = shapes();
    const at = all.indexOf(document.activeElement);
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[
      event.key];
    let next = step === undefined ? -1 : at + step;
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = all.length - 1;
    if (at < 0 || next < 0 || next >= all.length) return;
    event.preventDefault();
    all[at].tabIndex = -1;
    all[next].tabIndex = 0;
    all[next].focus();
  };
  return box;
}

function choice(label, options, act, chosen) {
  const select = el("select", {onchange: () => act(select.value)},
    options.map(([value, text]) => el("option", {value,
      selected: String(value) === String(chosen)}, text)));
  return el("label", {}, label, select);
}

function panel(id, title, said, ...children) {
  return el("section", {id, "aria-labelledby": `${id}-title`},
    el("h2", {id: `${id}-title`}, title),
    said ? el("p", {class: "muted"}, said) : null, ...children);
}
