// SPDX-License-Identifier: Apache-2.0
// Several runs, or devices, side by side.

function ranksPanel(ranks) {
  const most = Math.max(1, ...ranks.map((one) => one.reserved));
  return panel("ranks", "Side by side",
    `${plural(ranks.length, "device")}. ${compared(ranks)}`,
    el("div", {"aria-hidden": "true"}, ranks.map((one) => el("div",
      {class: "lane"}, el("span", {}, `${one.run} ${one.device}`),
      el("div", {class: "split"}, Object.entries(one.categories)
        .filter(([, size]) => size > 0).map(([name, size]) => el("i", {style: {
          width: `${100 * size / most}%`, background: category(name)}}))),
      el("span", {class: "muted"}, bytes(one.allocated))))),
    table("Each device at its peak", [{title: "File and device", text: true},
      {title: "Verdict", text: true}, {title: "Peak allocated", show: bytes},
      {title: ranks.length === 2 ? "From the smaller" : "From the middle",
        show: percent},
      {title: "Peak reserved", show: bytes}, {title: "Stranded", show: bytes},
      {title: "Left the device", show: bytes},
      {title: "Waited", show: time},
      {title: "Of the time", show: (_, row) => share(row[7], row[8])}],
    ranks.map((one) => [`${one.run}, device ${one.device}${one.exact ? ""
      : " (recorded part)"}`,
      one.kind.replaceAll("_", " "), one.allocated, one.off, one.reserved,
      one.stranded, one.left, one.stalled_ns, one.duration_ns]),
    {tall: true, wide: true}));
}

// From what is 0 B nothing is a share away.
function percent(tenths) {
  return tenths === null ? "" : `${tenths > 0 ? "+" : ""}${
    (tenths / 10).toFixed(1)} %`;
}

function compared(ranks) {
  const odd = ranks.filter((one) => one.off === null
    || Math.abs(one.off) >= 100);
  const names = odd.map((one) => `${one.run} device ${one.device}`).join(", ");
  if (ranks.length > 2) {
    return odd.length
      ? `Peaks that are a tenth or more away from the middle one: ${names}.`
      : "No peak is a tenth or more away from the middle one.";
  }
  if (!odd.length) return "The larger peak is less than a tenth above the other.";
  return `The peak of ${names} is ${odd[0].off === null ? ""
    : `${(odd[0].off / 10).toFixed(1)} % `}above the other, which is ${bytes(
    Math.min(...ranks.map((one) => one.allocated)))}.`;
}
