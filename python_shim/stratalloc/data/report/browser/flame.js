// SPDX-License-Identifier: Apache-2.0
// Who held memory at the peak: layers, in them categories, in them lines.

const ROW = 22;

function flamePanel(device) {
  const box = el("div", {class: "drawing", role: "group",
    "aria-label": "Flame graph of the peak; arrow keys go from part to part, "
      + "Enter goes into one"});
  const trail = el("p", {"aria-live": "polite"});
  const whole = device.flame.b;

  function draw(path, focus) {
    const node = path[path.length - 1];
    empty(trail).append(...path.flatMap((one, i) => [i ? " › " : "",
      i + 1 < path.length ? el("button", {type: "button",
        onclick: () => draw(path.slice(0, i + 1), true)}, one.n || "all")
        : el("strong", {}, one.n || "all")]),
    ` ${bytes(node.b)} in ${plural(node.c, "block")}, ${share(node.b, whole)} `
      + "of the peak");
    empty(box);
    let deepest = 0;
    const place = (one, parents, left, width, level) => {
      deepest = Math.max(deepest, level);
      const here = [...parents, one];
      box.append(shape({
        label: `${one.n || "all"}: ${bytes(one.b)}, ${share(one.b, whole)} of `
          + `the peak, ${plural(one.c, "block")}`,
        text: (one.k === 1 ? one.n.replaceAll("_", " ") : one.n) || "all",
        kind: one.k === 1 ? "" : "plain",
        color: one.k === 1 ? category(one.n) : null,
        place: {left: `${left}%`, width: `${width}%`, top: `${level * ROW}px`,
          height: `${ROW}px`},
        act: () => draw(one.in ? here : parents, true)}));
      let at = left;
      for (const child of one.in || []) {
        const part = width * child.b / Math.max(1, one.b);
        if (part > .08) place(child, here, at, part, level + 1);
        at += part;
      }
    };
    place(node, path.slice(0, -1), 0, 100, 0);
    box.style.height = `${(deepest + 1) * ROW}px`;
    roving(box);
    if (focus) box.querySelector("button").focus();
  }

  if (whole) draw([device.flame], false);
  const rows = [];
  const walk = (one, prefix) => {
    for (const child of one.in || []) {
      const path = prefix ? `${prefix} › ${child.n}` : child.n;
      rows.push([path, child.b, child.c]);
      walk(child, path);
    }
  };
  walk(device.flame, "");
  return panel("flame", "Who held the peak",
    whole ? `${bytes(whole)} at ${time(device.peak.time_ns)}: layer by layer, `
      + "then category and line. Select a part to go into it."
      : "Nothing was allocated.", trail, el("figure", {}, box),
    asTable("Who held the peak, level by level", [{title: "Part", text: true},
      {title: "Size", show: bytes}, {title: "Blocks", show: count}], rows,
    {sorted: -1}));
}
