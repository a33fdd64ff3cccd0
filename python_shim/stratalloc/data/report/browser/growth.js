// SPDX-License-Identifier: Apache-2.0
// Who kept growing, how long blocks stayed, and how large they were.

function leaksPanel(device) {
  const found = device.leaks;
  const about = `What was compared: ${found.at}.`;
  if (!found.rows.length) {
    return panel("leaks", "Leak suspects", found.enough
      ? `Nothing keeps growing. ${about}`
      : `Too few steps to tell what grows: 12 marks, or entries of one scope, are
        needed. ${about}`.replace(/\s+/g, " "));
  }
  return panel("leaks", "Leak suspects",
    `Who held more in each quarter of the last two thirds of the steps. ${about}`
    + (found.in_all > found.rows.length ? ` ${plural(found.in_all,
      "suspect")} in all; the fastest are shown.` : ""),
    table("Leak suspects, the fastest first", [{title: "Layer", text: true},
      {title: "Category", text: true, show: (one) => one.replaceAll("_", " ")},
      {title: "A step", show: bytes}, {title: "Gained", show: bytes},
      {title: "Blocks", show: count}], found.rows.map(([name, kind, size, many,
      step]) => [name, kind, step, size, many]), {tall: true, wide: true,
      sorted: 2}));
}

function histogram(title, found, show, said) {
  const bars = found.bars;
  const most = Math.max(1, ...bars.map((one) => one[2]));
  return el("div", {}, el("h3", {}, title), el("p", {class: "muted"}, said),
    bars.length ? table(title, [
      {title: "Range", show: (_, row) => `${show(row[0])} to ${show(row[4])}`,
        text: true},
      {title: "Blocks", show: count}, {title: "", bar: most},
      {title: "Bytes in all", show: bytes}],
    bars.map(([low, high, many, size]) => [low, many, many, size, high]),
    {still: true}) : el("p", {}, "None."));
}

function histogramsPanel(device) {
  return panel("blocks", "Blocks by lifetime and size", null,
    el("div", {class: "pair"},
      histogram("How long blocks stayed", device.lifetimes, time,
        `On the device, of those that came and went; ${plural(
          device.lifetimes.others, "other")} were there before or at the end.`),
      histogram("What was asked for", device.sizes, bytes,
        "Each block once, by the bytes that were asked for.")));
}
