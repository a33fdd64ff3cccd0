// SPDX-License-Identifier: Apache-2.0
// Allocated memory over time, by category, with lines for what was reserved and
// what was on the tiers below, and a slider that reads all of them.

const WIDE = 1160, HIGH = 330, LEFT = 74, BELOW = 34, STEPS = 1000;

function timelinePanel(device) {
  const line = device.timeline;
  const names = Object.keys(line.categories).filter((name) =>
    line.categories[name].some((value) => value > 0));
  const tiers = Object.entries(line.tiers);
  const top = Math.max(1, ...line.reserved, ...line.allocated,
    ...tiers.flatMap(([, values]) => values));
  const withCard = device.capacity && device.capacity <= 1.6 * top;
  const most = 1.05 * (withCard ? Math.max(top, device.capacity) : top);
  const x = (ns) => LEFT + (WIDE - LEFT - 8) * ns / line.end;
  const y = (size) => (HIGH - BELOW) * (1 - size / most) + 4;
  const drawing = svg("svg", {viewBox: `0 0 ${WIDE} ${HIGH + 4}`, role: "img",
    "aria-label": `Allocated memory by category over ${time(line.end)}: at most `
      + `${bytes(device.most.allocated)} at ${time(device.peak.time_ns)}. The `
      + "slider and the table below read it."});
  axes(drawing, x, y, most, line.end);
  areas(drawing, names, line, x, y);
  drawing.append(steps(line.times, line.reserved, x, y, "line", line.end));
  tiers.forEach(([name, values]) => drawing.append(steps(line.times, values, x,
    y, "halo", line.end), steps(line.times, values, x, y,
    `line ${name}-line`, line.end)));
  if (withCard) {
    drawing.append(svg("line", {class: "capacity-line", x1: LEFT, x2: WIDE - 8,
      y1: y(device.capacity), y2: y(device.capacity)}));
  }
  instants(drawing, line, x);
  const cursor = svg("line", {class: "cursor", y1: 4, y2: HIGH - BELOW + 4});
  drawing.append(cursor);
  const reading = el("div");
  const at = el("input", {type: "range", min: 0, max: STEPS,
    "aria-label": "Moment that is read",
    oninput: () => read(placeAt(line, Number(at.value)))});
  drawing.addEventListener("click", (event) => {
    const box = drawing.getBoundingClientRect();
    const part = ((event.clientX - box.left) / box.width * WIDE - LEFT)
      / (WIDE - LEFT - 8);
    read(placeAt(line, Math.round(STEPS * Math.min(1, Math.max(0, part)))));
  });

  function read(place) {
    at.value = Math.round(STEPS * line.times[place] / line.end);
    cursor.setAttribute("x1", x(line.times[place]));
    cursor.setAttribute("x2", x(line.times[place]));
    at.setAttribute("aria-valuetext", `${time(line.times[place])}: `
      + `${bytes(line.allocated[place])} allocated`);
    empty(reading).append(legend(device, names, tiers, place, withCard));
  }

  read(peakPlace(device));
  return panel("timeline", "Memory over time",
    "Areas are what was allocated, by category. Click, or move the slider, to "
    + "read a moment; it begins at the peak."
    + (line.marks_in_all ? ` ${plural(line.marks_in_all, "mark")} of the program`
      + " stand at the bottom." : ""),
    el("figure", {}, drawing, at, reading), marksTable(line));
}

// The place of the largest of what falls into a step of the slider, or of what
// was last before it.
function placeAt(line, step) {
  const end = (step + .5) * line.end / STEPS;
  let place = 0;
  line.times.forEach((ns, i) => {
    if (ns > end) return;
    const inside = line.times[place] >= end - line.end / STEPS;
    if (!inside || line.allocated[i] >= line.allocated[place]) place = i;
  });
  return place;
}

function peakPlace(device) {
  return Math.max(0, device.timeline.allocated.indexOf(device.peak.allocated));
}

function axes(drawing, x, y, most, end) {
  const step = niceBytes(most / 4);
  for (let size = 0; size <= most; size += step) {
    drawing.append(svg("line", {class: "grid", x1: LEFT, x2: WIDE - 8,
      y1: y(size), y2: y(size)}),
    svg("text", {x: LEFT - 8, y: y(size) + 4, "text-anchor": "end"},
      bytes(size)));
  }
  for (let i = 0; i <= 8; i += 1) {
    drawing.append(svg("text", {x: x(end * i / 8), y: HIGH,
      "text-anchor": i === 8 ? "end" : i ? "middle" : "start"},
    end >= 1e9 ? `${(end * i / 8e9).toFixed(2)} s`
      : time(Math.round(end * i / 8))));
  }
}

function niceBytes(size) {
  let step = 2 ** Math.floor(Math.log2(Math.max(1, size)));
  if (size > 1.5 * step) step *= 2;
  return step;
}

function areas(drawing, names, line, x, y) {
  const below = line.times.map(() => 0);
  for (const name of names) {
    const values = line.categories[name];
    const up = [], down = [];
    values.forEach((value, i) => {
      const right = x(i + 1 < values.length ? line.times[i + 1] : line.end);
      const left = x(line.times[i]);
      up.push(`${left.toFixed(1)},${y(below[i] + value).toFixed(1)}`,
        `${right.toFixed(1)},${y(below[i] + value).toFixed(1)}`);
      down.push(`${left.toFixed(1)},${y(below[i]).toFixed(1)}`,
        `${right.toFixed(1)},${y(below[i]).toFixed(1)}`);
      below[i] += value;
    });
    const area = svg("path", {class: "area",
      d: `M${up.join("L")}L${down.reverse().join("L")}Z`});
    area.style.fill = category(name);
    drawing.append(area);
  }
}

function steps(times, values, x, y, kind, end) {
  const points = values.map((value, i) => `${x(times[i]).toFixed(1)},${
    y(value).toFixed(1)}H${x(i + 1 < times.length ? times[i + 1]
    : end).toFixed(1)}`);
  return svg("path", {class: kind, d: `M${points.join("L")}`});
}

function instants(drawing, line, x) {
  for (const [ns] of line.marks) {
    const at = x(ns), up = HIGH - BELOW + 5;
    drawing.append(svg("path", {class: "mark",
      d: `M${at},${up}l4,8h-8z`}));
  }
  for (const [ns] of line.ooms) {
    drawing.append(svg("line", {class: "oom", x1: x(ns), x2: x(ns), y1: 4,
      y2: HIGH - BELOW + 4}));
  }
}

function legend(device, names, tiers, place, withCard) {
  const line = device.timeline;
  const rows = names.map((name) => [name, line.categories[name][place],
    category(name)]).reverse();
  rows.push(["reserved (line)", line.reserved[place], "var(--ink)"]);
  for (const [name, values] of tiers) {
    rows.push([`on the ${name} (dashed line)`, values[place], `var(--${name})`]);
  }
  if (withCard) rows.push(["card (dashed)", device.capacity, "var(--bad)"]);
  return table(`${time(line.times[place])} after the beginning: `
    + `${bytes(line.allocated[place])} allocated`, [
    {title: "What", show: (name, row) => [swatch(row[2]),
      name.replaceAll("_", " ")], text: true},
    {title: "Size", show: bytes},
    {title: "Share of allocated", show: (_, row) => (names.includes(row[0])
      ? share(row[1], line.allocated[place]) : "")}],
  rows.map((row) => row), {still: true});
}

function marksTable(line) {
  const rows = [...line.marks.map(([ns, name]) => [name, ns, "mark"]),
    ...line.ooms.map(([ns, size]) => [`${bytes(size)} refused`, ns,
      "out of memory"])];
  if (!rows.length) return null;
  return asTable("Marks and refused requests", [
    {title: "What", text: true}, {title: "When", show: time},
    {title: "Kind", text: true}], rows, {sorted: -1});
}
