// SPDX-License-Identifier: Apache-2.0
// Reserved addresses at the peak, block by block; a block tells its owner and
// its stack. Free memory that shares a unit with a block is hatched.

const STATES = ["allocated", "freed, waiting for a stream", "free", "several"];

function addressesPanel(run, device) {
  const map = device.addresses;
  const total = map.segments.reduce((sum, one) => sum + one[1], 0);
  const details = el("div", {class: "details", "aria-live": "polite"},
    "Select a block to see whose it is.");
  const box = el("div", {role: "group",
    "aria-label": "Map of reserved addresses; arrow keys go from block to block, "
      + "Enter tells of one"});
  const row = rowBytes(total);
  let pressed = null;

  function tell(button, segment, block) {
    if (pressed) pressed.setAttribute("aria-pressed", "false");
    pressed = button;
    button.setAttribute("aria-pressed", "true");
    empty(details).append(...detailsOf(run, device, segment, block));
  }

  let line = null, used = Infinity;
  for (const segment of map.segments) {
    for (let from = 0; from < segment[1]; from += row) {
      const length = Math.min(row, segment[1] - from);
      if (used + length > row) {
        line = el("div", {class: "map-row"});
        box.append(line);
        used = 0;
      }
      pieces(line, segment, from, length, used, row, tell, map);
      used += length + row * .006;
    }
  }
  roving(box);
  return panel("addresses", "Addresses at the peak",
    total ? `${plural(map.segments.length, "segment")}, ${bytes(total)} reserved; `
      + `a line is ${bytes(row)}.` + (map.not_shown.segments
        ? ` ${plural(map.not_shown.segments, "other segment")} of `
          + `${bytes(map.not_shown.bytes)} not drawn.` : "")
      : "Nothing was reserved.",
    total ? mapLegend(map) : null, el("figure", {}, box), details,
    pinnersTable(map.pinners), blocksTable(device));
}

function rowBytes(total) {
  let row = 2 ** 21;
  while (row * 28 < total && row < 2 ** 50) row *= 2;
  return row;
}

function pieces(line, segment, from, length, used, row, tell, map) {
  for (const block of segment[3]) {
    const low = Math.max(block[0], from);
    const high = Math.min(block[0] + block[1], from + length);
    if (low >= high) continue;
    const again = block[0] < from; // it began on the line above
    const button = shape({label: labelOf(map, block), kind: kindOf(block), color: block[2] < 2 ? (block[2] === 0
      ? category(map.owners[block[3]][1]) : null) : null,
    place: {left: `${100 * (used + low - from) / row}%`,
      width: `${100 * (high - low) / row}%`},
    act: () => tell(button, segment, block)});
    if (again) button.setAttribute("aria-hidden", "true");
    line.append(button);
  }
}

function kindOf(block) {
  if (block[2] === 2) return block[3] ? "stranded" : "free";
  return ["", "pending", "", "several"][block[2]];
}

function labelOf(map, block) {
  if (block[2] === 2) {
    return `${bytes(block[1])} free${block[3]
      ? `, ${bytes(block[3])} of that stranded` : ""}`;
  }
  if (block[2] === 3) {
    return `${block[3]} small blocks in ${bytes(block[1])}, ${bytes(block[4])} of `
      + "that free";
  }
  const [layer, kind] = map.owners[block[3]];
  return `${bytes(block[1])} of ${layer}, ${kind.replaceAll("_", " ")}, `
    + STATES[block[2]];
}

function detailsOf(run, device, segment, block) {
  const found = [el("strong", {}, labelOf(device.addresses, block)),
    ` at ${segment[0]} + ${bytes(block[0])}, segment of ${bytes(segment[1])}, `
      + segment[2]];
  if (block[2] > 1) return found;
  found.push(`; ${bytes(block[4])} asked for, ${block[5] < 0
    ? "there before the recording" : `since ${time(block[5])}`}`);
  if (block[6] < 0) {
    found.push(el("p", {class: "muted"}, noStack(run, block[6])));
  } else {
    const outer = device.outer[block[6]];
    found.push(el("ol", {"aria-label": "Stack, innermost first"},
      device.stacks[block[6]].map((frame) => el("li", {class: "mono"},
        device.frames[frame]))),
    outer ? el("p", {class: "muted"}, `${plural(outer, "outer frame")} more than `
      + "this page has room for.") : "");
  }
  return found;
}

function noStack(run, why) {
  if (why === -2) {
    return "This page has no room for its stack, only for those of the largest "
      + "blocks. The recording has it.";
  }
  const {source, level} = run.recording;
  return source === "stratalloc" && ["counters", "events"].includes(level)
    ? `No stack of it was recorded: level ${level} records none, callsites and `
      + "full do." : "No stack of it was recorded.";
}

function mapLegend(map) {
  const there = [...new Set(map.segments.flatMap((one) => one[3].filter((block) =>
    block[2] === 0).map((block) => map.owners[block[3]][1])))].sort();
  return el("ul", {class: "legend"}, there.map((name) => el("li", {},
    swatch(category(name)), name.replaceAll("_", " "))),
  el("li", {}, el("span", {class: "swatch free", "aria-hidden": "true"}),
    "free, can be given back"),
  el("li", {}, el("span", {class: "swatch stranded", "aria-hidden": "true"}),
    "free, stranded beside blocks"));
}

function pinnersTable(pinners) {
  if (!pinners.rows.length) {
    return el("p", {}, "No free memory was pinned.");
  }
  return el("div", {}, el("h3", {}, "Who pins free memory"),
    table(`${bytes(pinners.stranded)} stranded. Where several pin a unit, its free`
      + " bytes count for each of them.", [{title: "Layer", text: true},
      {title: "Category", text: true, show: (one) => one.replaceAll("_", " ")},
      {title: "Blocks", show: count}, {title: "Their size", show: bytes},
      {title: "Free beside them", show: bytes},
      {title: "Pinned by them alone", show: bytes}], pinners.rows,
    {tall: true, wide: true, sorted: 4}));
}

function blocksTable(device) {
  const map = device.addresses;
  const rows = map.segments.flatMap((segment) => segment[3].filter((block) =>
    block[2] < 3).map((block) => [`${segment[0]} + ${block[0]}`,
    block[2] === 2 ? "" : map.owners[block[3]][0], STATES[block[2]], block[1]]));
  rows.sort((a, b) => b[3] - a[3]);
  return asTable("The 300 largest blocks", [{title: "Address", text: true},
    {title: "Layer", text: true}, {title: "State", text: true},
    {title: "Size", show: bytes}], rows.slice(0, 300));
}
