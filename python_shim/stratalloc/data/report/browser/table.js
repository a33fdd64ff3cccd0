// SPDX-License-Identifier: Apache-2.0
// Tables: the first column names the row, the others sort by a button in their
// head. A column: {title, show(value), text: true, bar: largest}.

function table(caption, columns, rows, options = {}) {
  const body = el("tbody");
  let sorted = options.sorted ?? -1;
  let down = true;
  const heads = columns.map((column, i) => el("th", {scope: "col",
    class: column.text ? "text" : null},
  options.still ? column.title : el("button", {type: "button",
    onclick: () => {
      down = sorted === i ? !down : !column.text;
      sorted = i;
      fill();
    }}, column.title)));

  function fill() {
    const order = rows.slice();
    if (sorted >= 0) {
      order.sort((a, b) => {
        const less = columns[sorted].text
          ? String(a[sorted]).localeCompare(String(b[sorted]))
          : a[sorted] - b[sorted];
        return down ? -less : less;
      });
    }
    heads.forEach((head, i) => {
      if (i === sorted) {
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
      } else head.removeAttribute("aria-sort");
    });
    const wanted = (options.filter || (() => true));
    body.replaceChildren(...order.filter(wanted).map(line),
      ...(options.rest ? [line(options.rest)] : []));
  }

  function line(row) {
    return el("tr", {}, columns.map((column, i) => cell(column, row[i], i,
      row)));
  }

  function cell(column, value, i, row) {
    const said = column.show ? column.show(value, row) : value;
    if (i === 0) return el("th", {scope: "row"}, said);
    if (column.bar !== undefined) {
      return el("td", {}, el("span", {class: "meter", "aria-hidden": "true"},
        el("i", {style: {width: `${100 * value / (column.bar || 1)}%`}})));
    }
    return el("td", {class: column.text ? "text" : null}, said);
  }

  fill();
  const made = el("table", {class: options.wide ? "wide" : null},
    el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), body);
  const box = el("div", {class: options.tall ? "scroll tall" : "scroll",
    tabindex: "0", role: "region", "aria-label": caption}, made);
  box.refill = fill;
  return box;
}

function asTable(caption, columns, rows, options) {
  return el("details", {}, el("summary", {}, "As a table"),
    table(caption, columns, rows, {tall: true, ...options}));
}
