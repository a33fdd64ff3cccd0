// SPDX-License-Identifier: Apache-2.0
// On which tier each layer's bytes were: a treemap, larger is more.

const TIERS = [["device", "var(--device)"], ["host", "var(--host)"],
  ["disk", "var(--disk)"]];

function tiersPanel(device) {
  const box = el("div", {class: "drawing", role: "group",
    style: {height: "340px"},
    "aria-label": "Treemap of layers by tier; arrow keys go from layer to layer"});
  const sums = el("ul", {class: "legend"});
  const told = el("div");
  let when = "peak", what = "parameter";

  function draw() {
    const rows = device.residency[when].filter((row) => what === "all"
      || row[1] === what);
    const total = rows.reduce((sum, row) => sum + row[2] + row[3] + row[4], 0);
    empty(sums).append(...TIERS.map(([name, color], i) => el("li", {},
      swatch(color), `${name}: ${bytes(rows.reduce((sum, row) =>
        sum + row[2 + i], 0))}`)));
    empty(box);
    const sized = rows.map((row) => ({row, size: row[2] + row[3] + row[4]}))
      .filter((one) => one.size > 0);
    for (const {row, rect} of squares(sized, total)) {
      box.append(cell(row, rect, total));
    }
    box.style.display = total ? "" : "none";
    roving(box);
    empty(told).append(total ? "" : el("p", {}, what === "all"
      ? "Nothing was there." : "No parameters were there."),
    asTable("Bytes of each layer by tier", [{title: "Layer", text: true},
      {title: "Category", text: true, show: (name) =>
        name.replaceAll("_", " ")},
      ...TIERS.map(([name]) => ({title: name, show: bytes}))], rows));
  }

  function cell(row, rect, total) {
    const size = row[2] + row[3] + row[4];
    const stops = [];
    let at = 0;
    TIERS.forEach(([, color], i) => {
      const part = 100 * row[2 + i] / size;
      if (part) stops.push(`${color} ${at}% ${at + part}%`);
      at += part;
    });
    const where = TIERS.map(([name], i) => (row[2 + i]
      ? `${bytes(row[2 + i])} on the ${name}` : "")).filter(Boolean).join(", ");
    return shape({
      label: `${row[0]}, ${row[1].replaceAll("_", " ")}: ${where}, `
        + `${share(size, total)} of all`,
      kind: "tier",
      text: rect.width > 4 && rect.height > 5 ? row[0].split(".").slice(-3)
        .join(".") : "",
      color: stops.length > 1 ? `linear-gradient(to right, ${stops.join(", ")})`
        : stops.length ? TIERS.find((_, i) => row[2 + i])[1] : null,
      place: {left: `${rect.left}%`, top: `${rect.top}%`,
        width: `${rect.width}%`, height: `${rect.height}%`}});
  }

  draw();
  return panel("tiers", "Layers by tier",
    "Each rectangle is a layer, as large as its bytes, coloured by where they "
    + "were.",
    el("div", {class: "controls"},
      choice("When", [["peak", "at the peak"], ["end", "at the end"]],
        (value) => { when = value; draw(); }, when),
      choice("What", [["parameter", "parameters"], ["all", "everything"]],
        (value) => { what = value; draw(); }, what)),
    sums, el("figure", {}, box), told);
}

// Rectangles in percent, as near to squares as rows of them can be.
function squares(items, total) {
  const found = [];
  let left = 0, top = 0, width = 100, height = 100;
  let rest = total;
  let from = 0;
  const ratio = 3.4; // of the drawing
  while (from < items.length && rest > 0) {
    const down = width * ratio >= height; // a column at the left side
    const side = down ? height : width;
    let to = from, sum = 0, worst = Infinity;
    while (to < items.length) {
      const next = sum + items[to].size;
      const thick = (down ? width : height) * next / rest;
      let worse = 0;
      for (let i = from; i <= to; i += 1) {
        const long = side * items[i].size / next;
        const a = down ? thick * ratio : thick;
        const b = down ? long : long * ratio;
        worse = Math.max(worse, a / b, b / a);
      }
      if (worse > worst) break;
      worst = worse;
      sum = next;
      to += 1;
    }
    const thick = (down ? width : height) * sum / rest;
    let at = down ? top : left;
    for (let i = from; i < to; i += 1) {
      const long = side * items[i].size / sum;
      found.push({row: items[i].row, rect: down
        ? {left, top: at, width: thick, height: long}
        : {left: at, top, width: long, height: thick}});
      at += long;
    }
    if (down) { left += thick; width -= thick; } else {
      top += thick; height -= thick;
    }
    rest -= sum;
    from = to;
  }
  return found;
}
