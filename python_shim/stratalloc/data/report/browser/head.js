// SPDX-License-Identifier: Apache-2.0
// What stands above the panels: the verdict, numbers, what reserved memory was.

const GRAVE = {out_of_memory: "bad", disk_bound: "bad", bus_bound: "warn",
  growing: "warn", fragmented: "warn", near_edge: "warn",
  not_known: "warn", moving: "good",
  fits: "good", peaked: "good", nothing: "warn"};

function verdictBox(run) {
  const one = run.verdict;
  return el("div", {class: `verdict ${GRAVE[one.kind] || ""}`},
    el("span", {class: "badge"}, one.kind.replaceAll("_", " ")),
    el("p", {}, one.sentence),
    one.others.length ? el("ul", {}, one.others.map(([, said]) =>
      el("li", {}, said))) : null);
}

function tile(title, value, small) {
  return el("div", {}, el("dt", {}, title),
    el("dd", {}, value, small ? el("small", {}, small) : null));
}

function tiles(run, device) {
  const said = run.recording;
  const found = [];
  if (device) {
    const peak = device.peak;
    const card = device.capacity;
    found.push(
      tile(device.exact ? "Peak allocated" : "Recorded peak, allocated",
        bytes(device.most.allocated),
        `at ${time(peak.time_ns)}${card ? `, ${share(
          device.most.allocated, card)} of the card` : ""}`),
      tile(device.exact ? "Peak reserved" : "Recorded peak, reserved",
        bytes(device.most.reserved),
        card ? `${share(device.most.reserved, card)} of the card` : null),
      tile("Card", card ? bytes(card) : "size not recorded",
        device.name || `device ${device.index}`),
      tile("Stranded at the peak", bytes(peak.parts.stranded),
        `${share(peak.parts.stranded, peak.parts.total)} of what was reserved`),
      tile("Left the device", bytes(device.left),
        `${bytes(device.returned)} came back`),
      tile("A thread waited", time(device.stalled_ns),
        `${share(device.stalled_ns, said.duration_ns)} of the time`));
  }
  found.push(
    tile("Recorded", `${count(said.events)} events`,
      `${time(said.duration_ns)}, level ${said.level}, from ${said.source}`),
    tile("Events missing", count(said.dropped_events),
      said.exact ? "nothing was lost" : "see below"),
    tile("Cost of recording", time(said.overhead_ns),
      said.overhead_ns ? `${share(said.overhead_ns, said.duration_ns)} of the `
        + "time, as far as it was measured" : "not measured"));
  return el("dl", {class: "tiles"}, found);
}

const PARTS = [
  ["asked", "asked for", "var(--c-parameter)"],
  ["rounding", "rounding of blocks", "var(--c-optimizer_state)"],
  ["pending", "freed, waiting for streams", "var(--c-gradient)"],
  ["releasable", "free, can be given back", "var(--c-activation)"],
  ["stranded", "free, stranded beside blocks", "var(--c-temporary)"]];

function fragmentation(device) {
  const parts = {...device.peak.parts};
  parts.asked = parts.allocated - parts.rounding;
  const shown = PARTS.map(([key, title, color]) => [title, parts[key], color]);
  const bar = el("div", {class: "split", "aria-hidden": "true"},
    shown.filter((one) => one[1] > 0).map(([, size, color]) => el("i", {
      style: {width: `${100 * size / Math.max(1, parts.total)}%`,
        background: color}})));
  return panel("reserved", "What reserved memory was at the peak",
    "Parts add up to what was reserved then. Stranded memory is free and "
    + "cannot be given back, since something lives in the same unit.", bar,
    table(`${bytes(parts.total)} reserved at the peak`, [
      {title: "Part", show: (title, row) => [swatch(row[2]), title], text: true},
      {title: "Size", show: bytes},
      {title: "Share", show: (_, row) => share(row[1], parts.total)}],
    shown.map(([title, size, color]) => [title, size, color]), {still: true}));
}

function settings(run) {
  const rows = [...Object.entries(run.recording),
    ...Object.entries(run.settings).map(([key, value]) =>
      [`setting ${key}`, value])].map(([key, value]) => [key, String(value)]);
  return panel("settings", "Recording and settings", null,
    el("details", {}, el("summary", {}, plural(rows.length, "value")),
      table("As recorded: bytes and ns", [{title: "Name", text: true},
        {title: "Value", text: true}], rows, {still: true})));
}
