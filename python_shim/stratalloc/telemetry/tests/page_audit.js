// SPDX-License-Identifier: Apache-2.0
// What is wrong with a page for whoever cannot see it, or sees little: a list of
// texts. Names of controls and drawings, headings, tables, contrast of text.
(() => {
  const wrong = [];
  const seen = (node) => node.checkVisibility
    && node.checkVisibility({visibilityProperty: true})
    && node.getClientRects().length > 0;
  const said = (node) => `${node.tagName.toLowerCase()}.${
    node.getAttribute("class") || ""} "${(node.textContent || "").slice(0, 30)}"`;

  const name = (node) => {
    const by = node.getAttribute("aria-labelledby");
    if (by) {
      return by.split(/\s+/).map((id) => document.getElementById(id)?.textContent
        || "").join(" ").trim();
    }
    const label = node.getAttribute("aria-label");
    if (label !== null) return label.trim();
    if (node.labels?.length) return node.labels[0].textContent.trim();
    return ["SELECT", "INPUT"].includes(node.tagName) ? ""
      : node.textContent.trim();
  };
  for (const node of document.querySelectorAll(
    "button, a, select, input, summary, svg, section, nav, [role], [tabindex]")) {
    if (node.getAttribute("aria-hidden") === "true" || node.id === "main") continue;
    if (!name(node)) wrong.push(`no name: ${said(node)}`);
  }
  for (const node of document.querySelectorAll("svg, canvas")) {
    if (!node.getAttribute("role")) wrong.push(`no role: ${said(node)}`);
  }
  const roles = new Set(["img", "group", "region"]);
  for (const node of document.querySelectorAll("[role]")) {
    if (!roles.has(node.getAttribute("role"))) {
      wrong.push(`role ${node.getAttribute("role")}: ${said(node)}`);
    }
  }

  let level = 0;
  const heads = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")];
  for (const node of heads) {
    const now = Number(node.tagName[1]);
    if (now > level + 1) wrong.push(`heading skips a level: ${said(node)}`);
    level = now;
  }
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  if (document.querySelectorAll("main").length !== 1) wrong.push("not one main");
  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.title) wrong.push("no title");

  for (const node of document.querySelectorAll("table")) {
    if (!node.caption?.textContent) wrong.push(`no caption: ${said(node)}`);
    for (const cell of node.querySelectorAll("th")) {
      if (!cell.scope) wrong.push(`no scope: ${said(cell)}`);
    }
  }
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) =>
    wrong.push(`id twice: ${id}`));
  for (const node of document.querySelectorAll("[tabindex]")) {
    if (node.tabIndex > 0) wrong.push(`out of order: ${said(node)}`);
  }
  for (const node of document.querySelectorAll('[aria-hidden="true"]')) {
    if ([node, ...node.querySelectorAll("*")].some((one) => one.tabIndex >= 0)) {
      wrong.push(`hidden, and a stop: ${said(node)}`);
    }
  }

  // Contrast, as WCAG counts it: of each text that is seen, on whatever colour is
  // behind it.
  const light = (color) => {
    const [r, g, b] = color.map((one) => {
      const part = one / 255;
      return part <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4;
    });
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const colors = (text) => [...text.matchAll(/rgba?\(([^)]+)\)/g)].map((one) =>
    one[1].split(/[ ,/]+/).filter(Boolean).map(Number));
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      const image = colors(style.backgroundImage);
      if (image.length) return image;
      const [color] = colors(style.backgroundColor);
      if (color && (color[3] === undefined || color[3] > 0)) return [color];
    }
    return [[255, 255, 255]];
  };
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(node)
      || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName)) continue;
    texts += 1;
    const style = getComputedStyle(node);
    const [ink] = colors(node instanceof SVGElement ? style.fill : style.color);
    for (const ground of behind(node)) {
      const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
      const contrast = (a + .05) / (b + .05);
      if (contrast < 4.5) {
        wrong.push(`contrast ${contrast.toFixed(2)}: ${said(node)}`);
      }
    }
  }
  if (texts < 20) wrong.push(`only ${texts} texts were seen`);
  return [...new Set(wrong)];
})()
