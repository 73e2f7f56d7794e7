// SPDX-License-Identifier: MIT
// The graph of waits: functions that waited at the left, what they waited for in the middle, and
// the functions that held or woke at the right. An edge's width is the time waited.
"use strict";

const WaitGraph = (() => {
  const { data, by, shape, duration, fitting } = Draw;
  const WIDTH = 1200, COLUMN = 340, GAP = 10, LEAST = 3, MOST = 180, NODE = 24, EDGE = 6;
  const COLOURS = { held: "#ee8a80", released: "#ee8a80", woke: "#c3a3e6" };
  const ROLES = { held: "held from", released: "released from", woke: "woken from" };
  const LEFT = [0, (WIDTH - COLUMN) / 2, WIDTH - COLUMN];

  const texts = data.pictures.texts;
  const edges = data.pictures.edges.map(([waiter, object, role, other, ns]) => ({
    ends: [texts[waiter], texts[object], texts[other]], role: texts[role], ns,
  }));

  // The nodes of a column by label, from top to bottom, each as high as its edges.
  function column(at, thick) {
    const nodes = new Map();
    for (const edge of edges) {
      const label = edge.ends[at];
      if (!nodes.has(label)) nodes.set(label, { label, ns: 0, high: 0, used: [0, 0] });
      const node = nodes.get(label);
      node.ns += edge.ns;
      node.high += thick(edge);
    }
    let top = 0;
    for (const node of nodes.values()) {
      node.top = top;
      node.room = Math.max(node.high, NODE);
      node.first = top + (node.room - node.high) / 2; // where its edges begin
      top += node.room + GAP;
    }
    return { nodes, height: top - GAP };
  }

  function nodeShape(node, at) {
    const group = shape("g", { class: "node" });
    const frame = shape("rect",
      { x: LEFT[at], y: node.top, width: COLUMN, height: node.room, fill: "#dde2e6", rx: 3 });
    frame.append(shape("title", {}, `${node.label}\n${duration(node.ns)}`));
    const middle = node.top + node.room / 2 + 4;
    const time = duration(node.ns);
    const label = fitting(node.label, COLUMN - 2 * EDGE - 7 * (time.length + 2));
    group.append(frame, shape("text", { x: LEFT[at] + EDGE, y: middle }, label),
      shape("text", { x: LEFT[at] + COLUMN - EDGE, y: middle, "text-anchor": "end" }, time));
    return group;
  }

  // One half of an edge: from a node of a column to one of the next.
  function half(edge, thick, from, to, at) {
    const wide = thick(edge);
    const ends = [from, to].map((node, side) => {
      const y = node.first + node.used[side] + wide / 2;
      node.used[side] += wide;
      return y;
    });
    const [left, right] = [LEFT[at] + COLUMN, LEFT[at + 1]];
    const middle = (left + right) / 2;
    const d = `M${left},${ends[0]} C${middle},${ends[0]} ${middle},${ends[1]} ${right},${ends[1]}`;
    const colour = COLOURS[edge.role] || COLOURS.woke;
    const made = shape("path",
      { d, class: "edge", fill: "none", stroke: colour, "stroke-width": wide });
    const [waiter, object, other] = edge.ends;
    const role = ROLES[edge.role] || edge.role;
    const words = `${waiter} waited ${duration(edge.ns)} for ${object}, ${role} ${other}`;
    made.append(shape("title", {}, words));
    return made;
  }

  function begin() {
    by("waits").hidden = !edges.length;
    if (!edges.length) return;
    const whole = edges.reduce((sum, edge) => sum + edge.ns, 0);
    const thick = (edge) => Math.max(MOST * edge.ns / whole, LEAST);
    const columns = [0, 1, 2].map((at) => column(at, thick));
    const height = Math.max(...columns.map((one) => one.height));
    const drawing = shape("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
      "aria-labelledby": "waits-title" });
    for (const edge of edges) {
      const nodes = columns.map((one, at) => one.nodes.get(edge.ends[at]));
      drawing.append(half(edge, thick, nodes[0], nodes[1], 0),
        half(edge, thick, nodes[1], nodes[2], 1));
    }
    columns.forEach((one, at) => {
      for (const node of one.nodes.values()) drawing.append(nodeShape(node, at));
    });
    by("wait-graph").replaceChildren(drawing);
    const [more, moreNs] = data.pictures.more_edges;
    const rest = more ? ` ${more.toLocaleString("en")} shorter ones are left out: in all` +
      ` ${duration(moreNs)}.` : "";
    by("waits-about").textContent = "Left: where threads waited. Middle: for what. Right: where" +
      ` it was held, or they were woken. A band's width is the time waited.${rest}`;
  }

  return { begin };
})();
