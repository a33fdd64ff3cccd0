// SPDX-License-Identifier: Apache-2.0
// Numbers for people: IEC units that keep three digits, times, shares.

function bytes(value) {
  const sign = value < 0 ? "-" : "";
  const size = Math.abs(value);
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20],
    ["KiB", 2 ** 10]]) {
    if (size >= factor) {
      const scaled = size / factor;
      const digits = Number.isInteger(scaled) ? 0 : scaled < 100 ? 2 : 1;
      return `${sign}${scaled.toFixed(digits)} ${unit}`;
    }
  }
  return `${sign}${size} B`;
}

function time(ns) {
  if (ns < 0) return "before the recording";
  for (const [unit, factor] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (ns >= factor) {
      const scaled = ns / factor;
      return `${scaled.toFixed(scaled < 10 ? 2 : scaled < 100 ? 1 : 0)} ${unit}`;
    }
  }
  return `${ns} ns`;
}

function share(part, whole) {
  if (!whole) return "0 %";
  const percent = 100 * part / whole;
  return percent > 0 && percent < 1 ? "< 1 %" : `${percent.toFixed(0)} %`;
}

function count(value) { return value.toLocaleString("en-US"); }

function plural(value, what) {
  return `${count(value)} ${what}${value === 1 ? "" : "s"}`;
}
