// SPDX-License-Identifier: Apache-2.0
// What was under way between the tiers, and who waited: a lane for each.

function movesPanel(run, device) {
  const found = device.moves;
  if (!found.lanes.length) {
    return panel("moves", "Moves between tiers",
      "Nothing moved, and nobody waited for memory.");
  }
  const end = device.timeline.end;
  const lanes = el("figure");
  const marks = device.timeline.marks;
  const spans = [["whole", 0, end, "the whole run"]];
  marks.slice(0, -1).forEach(([ns, name], i) => spans.push([i, ns,
    marks[i + 1][0], `${name} to ${marks[i + 1][1]}`]));

  function draw(from, to) {
    empty(lanes).append(...found.lanes.map((one) => lane(one, from, to)),
      el("div", {class: "lane muted"}, el("span"), el("span", {},
        `${time(from)} to ${time(to)}`), el("span")));
  }

  draw(0, end);
  return panel("moves", "Moves between tiers",
    `${bytes(found.left)} left the device, ${bytes(found.returned)} came back; a `
    + `thread waited for ${time(found.stalled_ns)}, ${share(found.stalled_ns,
      run.recording.duration_ns)} of the time.`,
    spans.length > 1 ? el("div", {class: "controls"}, choice("Show",
      spans.map(([key, , , said]) => [key, said]), (key) => {
        const one = spans.find((span) => String(span[0]) === key);
        draw(one[1], one[2]);
      }, "whole")) : null,
    lanes, lateTable(found),
    asTable("Lanes", [{title: "Lane", text: true}, {title: "Size", show: bytes},
      {title: "How many", show: count}, {title: "Under way", show: time},
      {title: "Per second", show: bytes}], found.lanes.map((one) =>
      [one.name, one.bytes, one.count, one.took_ns, one.rate])));
}

function lane(one, from, to) {
  const bars = el("div", {class: "bars", role: "group",
    "aria-label": `${one.name}; arrow keys go from bar to bar`},
  one.bars.filter(([begin, end]) => end >= from && begin <= to)
    .map(([begin, end, size, many]) => {
      const low = Math.max(begin, from);
      return shape({kind: one.kind, label: `${one.name}: ${time(begin)} to `
        + `${time(end)}, ${bytes(size)}, ${count(many)} together`,
      place: {left: `${100 * (low - from) / (to - from)}%`,
        width: `${100 * (Math.min(end, to) - low) / (to - from)}%`}});
    }));
  const waits = one.kind === "stall" || one.kind === "late";
  return el("div", {class: "lane"}, el("span", {}, one.name), roving(bars),
    el("span", {class: "muted"}, waits ? `${plural(one.count, "time")}, `
      + time(one.took_ns) : `${bytes(one.bytes)} in ${time(one.took_ns)}`
      + (one.rate ? `, ${bytes(one.rate)}/s` : "")));
}

function lateTable(found) {
  if (!found.late_in_all) {
    return el("p", {}, "No prefetch was late.");
  }
  return el("div", {}, el("h3", {}, "Late prefetches"),
    table(`${plural(found.late_in_all, "late prefetch").replace(/hs$/, "hes")}; `
      + "those that were waited for longest", [{title: "Layer", text: true},
      {title: "When", show: time}, {title: "Size", show: bytes},
      {title: "Waited", show: time}], found.late.map(([ns, name, size, took]) =>
      [name, ns, size, took]), {tall: true, sorted: 3}));
}
