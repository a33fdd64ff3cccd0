// SPDX-License-Identifier: Apache-2.0
// A row for each layer.

function layersPanel(device) {
  const {columns, rows, rest} = device.layers;
  const at = Object.fromEntries(columns.map((name, i) => [name, i]));
  let wanted = "";
  const peak = device.peak.allocated;
  const heads = [["name", "Layer"], ["at_peak", "Held at the peak", bytes],
    ["at_peak", "Share", (value) => share(value, peak)],
    ["most", "Most of its own", bytes],
    ["allocated", "Allocated in all", bytes], ["count", "Blocks", count],
    ["left", "Left the device", bytes], ["returned", "Came back", bytes],
    ["stalls", "Waits", count], ["stalled_ns", "Waited", time],
    ["inside_ns", "Time inside", time]];
  const pick = (row) => heads.map(([key]) => row[at[key]]);
  const made = table("Layers, whoever held most at the peak first",
    heads.map(([, title, show], i) => ({title, show, text: i === 0})),
    rows.map(pick), {tall: true, wide: true, sorted: 1,
      rest: rest && pick(rest),
      filter: (row) => String(row[0]).toLowerCase().includes(wanted)});
  const input = el("input", {type: "search", oninput: () => {
    wanted = input.value.toLowerCase();
    made.refill();
  }});
  return panel("layers", "Layers",
    "Sort by a column's head. Waits of several threads add up.",
    el("div", {class: "controls"}, el("label", {}, "Layers with", input)), made);
}
