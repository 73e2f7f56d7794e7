// SPDX-License-Identifier: MIT
// The icicle of the threads' time. A box lies below its caller, and its width is its time. Only
// boxes that are wide enough to be seen are drawn: the reader zooms into the others.
"use strict";

const Icicle = (() => {
  const { data, by, element, shape, duration, share, fitting } = Draw;
  const LINE = 22, LEAST = 1, EDGE = 4; // pixels
  const SIDES_SHOWN = 8;
  const FOR_WORK = "waits for work";
  const COLOURS = {
    running: "#7fc08c", queued: "#eeb36b", locks: "#ee8a80", conditions: "#c3a3e6",
    joins: "#a9aede", "I/O": "#86bbe4", accept: "#b5daf1", timers: "#b9c2cb",
    unexplained: "#d8c9a8", [FOR_WORK]: "#dde2e6",
  };
  const SIDES = {
    held: "held from", released: "released from", woke: "woken from", "not yet": "not woken yet",
  };
  const texts = data.pictures.texts;
  const root = boxOf(data.pictures.icicle, null, "");
  const isDifference = root.before !== undefined;
  const view = { zoomed: root, at: root, width: 0 };
  let groups = new Map(); // of boxes that are drawn

  function boxOf([label, ns, boxes, sides, before], parent, part) {
    const box = { label: texts[label], ns, parent, sides, before };
    box.part = part || (parent ? box.label : "");
    box.boxes = boxes.map((child) => boxOf(child, box, box.part));
    return box;
  }

  function isShown(box) {
    return box.part !== FOR_WORK || by("for-work").checked;
  }

  function shown(box) {
    return box.boxes.filter(isShown);
  }

  // The time of a box; of the whole, that of its parts which are shown.
  function time(box) {
    return box === root ? shown(root).reduce((sum, part) => sum + part.ns, 0) : box.ns;
  }

  function callers(box) {
    return box ? [...callers(box.parent), box] : [];
  }

  // The boxes that are drawn, each with its place: [box, depth, left, width].
  function laidOut() {
    const found = [];
    const above = callers(view.zoomed);
    above.forEach((box, depth) => found.push([box, depth, 0, view.width]));
    const scale = view.width / (time(view.zoomed) || 1);
    const below = (box, depth, left) => {
      for (const child of shown(box)) {
        const width = child.ns * scale;
        if (width >= LEAST) {
          found.push([child, depth, left, width]);
          below(child, depth + 1, left);
        }
        left += width;
      }
    };
    below(view.zoomed, above.length, 0);
    return found;
  }

  function wanted() {
    return by("search").value.trim().toLowerCase();
  }

  function isFound(box) {
    return box.label.toLowerCase().includes(wanted());
  }

  // The time of a box in words; of a difference, that of both recordings.
  function figures(box) {
    if (isDifference) {
      const [before, after] = [box.before, box.ns - box.before];
      return `${duration(before)} before, ${duration(after)} after`;
    }
    return `${duration(time(box))}, ${share(time(box) / (time(root) || 1))} of the time`;
  }

  function told(box) {
    return `${box.label}\n${figures(box)}`;
  }

  // By its part of the time; of a difference, red if the time grew, blue if it shrank.
  function colour(box) {
    if (!isDifference) return COLOURS[box.part] || COLOURS[FOR_WORK];
    const grown = (box.ns - 2 * box.before) / (box.ns || 1); // from -1 to 1
    return `hsl(${grown > 0 ? 5 : 210} 80% ${94 - 28 * Math.abs(grown)}%)`;
  }

  function drawn([box, depth, left, width]) {
    const group = shape("g", { class: "box", role: "treeitem", "aria-label": told(box) });
    const y = depth * LINE;
    const frame = shape("rect", { x: left, y, width, height: LINE, fill: colour(box) });
    frame.append(shape("title", {}, told(box)));
    group.append(frame);
    const label = fitting(box.label, width - 2 * EDGE);
    if (label) group.append(shape("text", { x: left + EDGE, y: y + LINE - 7 }, label));
    group.classList.toggle("above", callers(view.zoomed.parent).includes(box));
    group.classList.toggle("dim", Boolean(wanted()) && !isFound(box));
    group.tabIndex = box === view.at ? 0 : -1;
    group.setAttribute("tabindex", group.tabIndex);
    group.addEventListener("click", () => zoom(box));
    group.addEventListener("keydown", (event) => press(event, box));
    groups.set(box, group);
    return group;
  }

  function draw() {
    view.width = by("icicle").clientWidth || 1000;
    const boxes = laidOut();
    const height = LINE * (1 + Math.max(...boxes.map(([, depth]) => depth)));
    const drawing = shape("svg", { viewBox: `0 0 ${view.width} ${height}`, height });
    groups = new Map();
    drawing.append(...boxes.map(drawn));
    by("icicle").replaceChildren(drawing);
    by("zoom-out").hidden = view.zoomed === root;
    by("found").textContent = search();
  }

  function zoom(box) {
    view.zoomed = view.at = box;
    draw();
    groups.get(box).focus();
    describe(box);
  }

  function move(box) {
    if (!box || !groups.has(box)) return;
    groups.get(view.at)?.setAttribute("tabindex", -1);
    view.at = box;
    groups.get(box).setAttribute("tabindex", 0);
    groups.get(box).focus();
    describe(box);
  }

  function press(event, box) {
    const beside = box.parent ? shown(box.parent) : [box];
    const at = beside.indexOf(box);
    const steps = {
      ArrowDown: () => move(shown(box)[0]),
      ArrowUp: () => move(box.parent),
      ArrowRight: () => move(beside[at + 1]),
      ArrowLeft: () => move(beside[at - 1]),
      Enter: () => zoom(box),
      " ": () => zoom(box),
      Escape: () => zoom(view.zoomed.parent || root),
    };
    if (!Object.hasOwn(steps, event.key)) return;
    event.preventDefault();
    steps[event.key]();
  }

  // Adds up the boxes that are found, without those below one that is found.
  function search() {
    if (!wanted()) return "";
    const top = [];
    const look = (box) => {
      if (isFound(box)) top.push(box);
      else shown(box).forEach(look);
    };
    look(root);
    const ns = top.reduce((sum, box) => sum + time(box), 0);
    const count = `${top.length} ${top.length === 1 ? "box" : "boxes"}`;
    return `${count}: ${duration(ns)}, ${share(ns / (time(root) || 1))} of the time`;
  }

  // The other sides of the waits in a box and below it, the longest first: [role, place, ns].
  function sidesOf(box) {
    const sums = new Map();
    const add = (one) => {
      for (const [role, at, ns] of one.sides) {
        const key = `${role} ${at}`;
        const known = sums.get(key) || [texts[role], texts[at], 0];
        known[2] += ns;
        sums.set(key, known);
      }
      shown(one).forEach(add);
    };
    add(box);
    return [...sums.values()].sort((a, b) => b[2] - a[2]);
  }

  function describe(box) {
    const target = by("box");
    const head = element("p");
    head.append(Draw.place("strong", box.label),
      `: ${figures(box)}`);
    target.replaceChildren(head);
    const above = callers(box.parent).slice(2); // without the whole and its part
    if (above.length) {
      const calls = element("p", "called from ", "about");
      above.reverse().forEach((caller, at) => {
        calls.append(at ? ", " : "", Draw.place("span", caller.label));
      });
      target.append(calls);
    }
    const sides = sidesOf(box);
    if (!sides.length) return;
    const table = element("table");
    const line = table.createTHead().insertRow();
    for (const title of ["the other side", "at", "time", "share"]) {
      line.append(element("th", title, ["time", "share"].includes(title) ? "figure" : ""));
    }
    const body = table.createTBody();
    for (const [role, at, ns] of sides.slice(0, SIDES_SHOWN)) {
      const row = body.insertRow();
      row.append(element("td", SIDES[role] || role), Draw.place("td", at),
        element("td", duration(ns), "figure"), element("td", share(ns / (time(box) || 1)), "figure"));
    }
    target.append(table);
    const more = sides.slice(SIDES_SHOWN);
    if (!more.length) return;
    const rest = more.reduce((sum, side) => sum + side[2], 0);
    target.append(element("p", `${more.length} more: ${duration(rest)}`, "about"));
  }

  function about() {
    const left = data.pictures.left_out;
    const bounded = left ? ` ${left.toLocaleString("en")} small boxes are summed up.` : "";
    if (isDifference) {
      return "A box's width is its time in both recordings together, callers are above. Red: it" +
        " grew; blue: it shrank. A click or Enter zooms; arrow keys move, Escape zooms" +
        ` out.${bounded}`;
    }
    return "A box's width is its time, callers are above. A click or Enter zooms, and shows who" +
      ` held the lock or woke the thread; arrow keys move, Escape zooms out.${bounded}`;
  }

  function begin() {
    by("time").hidden = !root.ns;
    if (!root.ns) return;
    const hasWork = root.boxes.some((part) => part.part === FOR_WORK);
    by("for-work-label").hidden = !hasWork;
    by("for-work").checked = root.boxes.every((part) => part.part === FOR_WORK);
    by("time-about").textContent = about();
    by("search").addEventListener("input", draw);
    by("for-work").addEventListener("change", () => zoom(root));
    by("zoom-out").addEventListener("click", () => zoom(view.zoomed.parent || root));
    window.addEventListener("resize", draw);
    draw();
    describe(root);
  }

  return { begin, COLOURS };
})();
