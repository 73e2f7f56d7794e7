// SPDX-License-Identifier: MIT
// The lanes of threads over time: a bar for each run and wait. The reader zooms by dragging over a
// part of the time; a click on a wait shows what it was, and the lane of the thread that ended it.
"use strict";

const Lanes = (() => {
  const { data, by, element, shape, duration, fitting } = Draw;
  const LINE = 20, NAME = 150, AXIS = 22, LEAST = 0.5, TICKS = 8, DRAGGED = 4; // pixels
  const lanes = data.pictures.lanes;
  const texts = data.pictures.texts;
  const view = { from: 0, to: lanes ? lanes.ns : 0, width: 0, drag: null, chosen: null };

  const spans = [];
  if (lanes) {
    lanes.lanes.forEach(([, flat], lane) => {
      let at = 0;
      for (const [gap, ns, part, text, waker] of flat) {
        const begin = at + gap;
        at = begin + ns;
        spans.push({ lane, begin, end: at, part: texts[part], text: texts[text],
          waker: waker === undefined ? -1 : waker });
      }
    });
  }

  function x(ns) {
    return NAME + (view.width - NAME) * (ns - view.from) / (view.to - view.from || 1);
  }

  function time(pixel) {
    const part = Math.min(Math.max((pixel - NAME) / (view.width - NAME), 0), 1);
    return view.from + part * (view.to - view.from);
  }

  // A round step of time, so that there are about TICKS of them.
  function step() {
    const rough = (view.to - view.from) / TICKS;
    const scale = 10 ** Math.floor(Math.log10(rough || 1));
    return scale * [1, 2, 5, 10].find((n) => n * scale >= rough);
  }

  function axis(drawing, height) {
    const by_ns = step();
    for (let at = Math.ceil(view.from / by_ns) * by_ns; at <= view.to; at += by_ns) {
      drawing.append(
        shape("line", { x1: x(at), x2: x(at), y1: AXIS, y2: height, class: "scale" }),
        shape("text", { x: x(at) + 2, y: AXIS - 7, class: "tick" }, at ? duration(at) : "0"));
    }
  }

  function bar(span) {
    const [left, right] = [Math.max(x(span.begin), NAME), Math.min(x(span.end), view.width)];
    const width = Math.max(right - left, LEAST);
    const top = AXIS + span.lane * LINE;
    const made = shape("rect", { x: left, y: top + 2, width, height: LINE - 4,
      fill: Icicle.COLOURS[span.part] || "#d8c9a8", class: "span" });
    made.append(shape("title", {}, `${span.text}\n${duration(span.end - span.begin)}`));
    made.addEventListener("click", () => {
      view.chosen = span;
      draw();
    });
    return made;
  }

  function arrow(span) {
    const at = x(span.end);
    const [from, to] = [span.waker, span.lane].map((lane) => AXIS + lane * LINE + LINE / 2);
    return shape("path", { d: `M${at},${from} L${at},${to}`, class: "arrow" });
  }

  function draw() {
    const box = by("lanes");
    view.width = box.clientWidth || 1200;
    const height = AXIS + lanes.lanes.length * LINE;
    const drawing = shape("svg", { viewBox: `0 0 ${view.width} ${height}`, role: "img",
      "aria-labelledby": "lanes-title", height });
    axis(drawing, height);
    lanes.lanes.forEach(([name], lane) => {
      const label = shape("text", { x: 0, y: AXIS + lane * LINE + 14 }, fitting(name, NAME - 8));
      label.append(shape("title", {}, name));
      drawing.append(label);
    });
    for (const span of spans) {
      if (span.end > view.from && span.begin < view.to) drawing.append(bar(span));
    }
    const chosen = view.chosen;
    if (chosen && chosen.waker >= 0) drawing.append(arrow(chosen));
    drawing.addEventListener("pointerdown", (event) => { view.drag = event.offsetX; });
    drawing.addEventListener("pointerup", (event) => {
      const begin = view.drag;
      view.drag = null;
      if (begin === null || Math.abs(event.offsetX - begin) < DRAGGED) return;
      const ends = [time(begin), time(event.offsetX)].sort((a, b) => a - b);
      show(...ends);
    });
    box.replaceChildren(drawing);
    by("lanes-out").hidden = view.from === 0 && view.to === lanes.ns;
    by("span").textContent = chosen
      ? `${chosen.text}: ${duration(chosen.end - chosen.begin)} from ${duration(chosen.begin)} on`
      : "Click on a bar to see what it is. Drag over a part of the time to enlarge it.";
  }

  function show(from, to) {
    if (to <= from) return;
    [view.from, view.to] = [from, to];
    draw();
  }

  // The marked requests, the longest first: one is shown by choosing it.
  function requests() {
    const list = by("lanes-requests");
    list.hidden = !lanes.requests.length;
    if (list.hidden) return;
    list.append(element("option", "a request"));
    for (const [begin, ns, text] of lanes.requests) {
      const option = element("option", `${texts[text]}: ${duration(ns)}`);
      option.value = `${begin} ${ns}`;
      list.append(option);
    }
    list.addEventListener("change", () => {
      const [begin, ns] = list.value.split(" ").map(Number);
      if (ns) show(begin, begin + ns);
    });
  }

  function begin() {
    by("lanes-part").hidden = !lanes;
    if (!lanes) return;
    const more = lanes.more ? ` ${lanes.more} threads with fewer waits are left out.` : "";
    by("lanes-about").textContent = "A lane per thread, with the colours of the picture above." +
      ` Where a thread has too many short spans, several are drawn as one.${more}`;
    requests();
    by("lanes-out").addEventListener("click", () => show(0, lanes.ns));
    window.addEventListener("resize", draw);
    draw();
  }

  return { begin };
})();
