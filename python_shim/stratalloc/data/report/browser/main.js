// SPDX-License-Identifier: Apache-2.0
// The page: what is looked at, and its panels.

const json = unpacked(document.getElementById("data").textContent);
const data = JSON.parse(json);
const shown = {run: 0, device: 0};

// The JSON of what is packed: names on the first line, and on the second texts
// that begin with "@" for their places. As text, since numbers are integers that
// a double does not hold.
function unpacked(said) {
  const cut = said.indexOf("\n");
  const names = JSON.parse(said.slice(1, cut - 1)).map((one) =>
    JSON.stringify(one));
  return said.slice(cut + 1, -1).replace(/"[^"\\]*(?:\\.[^"\\]*)*"/g, (one) =>
    (one[1] === "@" ? names[Number(one.slice(2, -1))] : one));
}

// The reader's own theme, also when that changes, until the switch was used.
const theme = {
  system: window.matchMedia("(prefers-color-scheme: dark)"),
  chosen: false,
  dark() { return document.documentElement.dataset.theme === "dark"; },
  set(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.querySelector("#top [aria-pressed]")?.setAttribute(
      "aria-pressed", String(dark));
  },
};

function themeSwitch() {
  const button = el("button", {type: "button", "aria-pressed": "false",
    onclick: () => { theme.chosen = true; theme.set(!theme.dark()); }},
  "Dark theme");
  button.setAttribute("aria-pressed", String(theme.dark()));
  return button;
}

function download() {
  const button = el("button", {type: "button", onclick: () => {
    const url = URL.createObjectURL(new Blob([json], {type: "application/json"}));
    const link = el("a", {href: url, download: "stratalloc-report.json"});
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }}, "Download the data (JSON)");
  return button;
}

function header(run, device) {
  const chosen = [];
  if (data.runs.length > 1) {
    chosen.push(choice("File", data.runs.map((one, i) => [i, one.name]),
      (value) => { shown.run = Number(value); shown.device = 0; draw(); },
      shown.run));
  }
  if (run.devices.length > 1) {
    chosen.push(choice("Device", run.devices.map((one, i) => [i,
      `${one.index} ${one.name}`.trim()]), (value) => {
      shown.device = Number(value);
      draw();
    }, shown.device));
  }
  empty(document.getElementById("top")).append(
    el("div", {class: "topline"}, el("h1", {}, `Memory of ${run.command
      || run.name}`), themeSwitch()),
    chosen.length ? el("div", {class: "controls"}, chosen) : "",
    verdictBox(run), tiles(run, device),
    run.missing ? el("p", {class: "note"}, run.missing) : "",
    device && !device.anchored ? el("p", {class: "note"}, "What was there before "
      + "the recording is not known: sums are of what it tells.") : "");
}

function draw() {
  const run = data.runs[shown.run];
  const device = run.devices[shown.device];
  header(run, device);
  const panels = [];
  if (data.ranks.length > 1) panels.push(ranksPanel(data.ranks));
  if (device) {
    panels.push(timelinePanel(device), flamePanel(device), tiersPanel(device),
      fragmentation(device), addressesPanel(run, device), layersPanel(device),
      movesPanel(run, device), leaksPanel(device), histogramsPanel(device));
  } else {
    panels.push(panel("nothing", "Nothing was recorded",
      "The recording knows of no device. Record a program that uses one: "
      + "stratalloc run --record FILE program.py"));
  }
  panels.push(settings(run));
  empty(document.getElementById("main")).append(...panels);
  empty(document.getElementById("contents")).append(el("ul", {},
    panels.map((one) => el("li", {}, el("a", {href: `#${one.id}`},
      one.querySelector("h2").textContent)))));
}

theme.set(theme.system.matches);
theme.system.addEventListener("change", (event) => {
  if (!theme.chosen) theme.set(event.matches);
});
draw();
document.title = `stratalloc: ${data.runs.map((one) => one.name).join(", ")}`
  .slice(0, 120);
document.getElementById("bottom").append(
  el("p", {}, "All that this page shows is in this file; it asks no network for "
    + "anything."), download());
