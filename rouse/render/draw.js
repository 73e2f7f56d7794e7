// SPDX-License-Identifier: MIT
// Shared by all parts of the page: the data, and elements to draw with. All text goes in by textContent,
// never as markup: names come from programs.
"use strict";

const Draw = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const LETTER = 6.7; // the usual width of a letter of pictures, in pixels

  const by = (id) => document.getElementById(id);

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  // An element of SVG with its attributes.
  function shape(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // An element with a frame of a stack. Its place in the source is a link if an editor was named.
  function place(name, frame) {
    const made = element(name, frame);
    const at = frame.lastIndexOf(" ") + 1;
    const found = frame.slice(at);
    if (!Object.hasOwn(data.links, found)) return made;
    const link = element("a", found);
    link.href = data.links[found];
    made.replaceChildren(frame.slice(0, at), link);
    return made;
  }

  function duration(ns) {
    const [scale, unit] = UNITS.find(([least]) => ns >= least * 0.9995) || UNITS[3];
    return ns ? `${Number((ns / scale).toPrecision(3)).toLocaleString("en")} ${unit}` : "0";
  }

  function share(part) {
    const percent = 100 * part;
    return `${percent.toFixed(percent < 9.95 ? 1 : 0)} %`;
  }

  // As much of a text as a width has room for. Empty: nothing.
  function fitting(text, width) {
    const room = Math.floor(width / LETTER);
    if (text.length <= room) return text;
    return room < 4 ? "" : `${text.slice(0, room - 1)}…`;
  }

  return { data, by, element, shape, place, duration, share, fitting };
})();
