// SPDX-License-Identifier: MIT
// The page of a report. All text goes in by textContent, never as markup: names come from programs.
"use strict";

(() => {
  const STEP = 200; // rows that are shown at once, and more on request
  const PLOTTED = 30; // bars of a plot
  const RELATED = 30; // rows of other sections beneath a row's details
  const COLOURS = {
    usr: "#2e8540", lat: "#d9822b", mutex: "#b3261e", rwlock: "#d65745", cond: "#7a4fb5",
    sem: "#a678d8", join: "#5b5ea6", io: "#2f7fb8", poll: "#67a9cf", accept: "#9ccbe3",
    sleep: "#9aa5b0", in_call: "#c3b091",
    useful: "#2e8540", lost_race: "#b3261e", false_: "#d9822b", early: "#e0b050",
    timeout: "#5b5ea6", cancelled: "#9aa5b0", unrecorded: "#d0d5da",
  };
  const data = Draw.data;
  const { by, element, shape, place: placeElement } = Draw;
  const view = { section: null, sort: -1, down: true, shown: STEP };

  function pairs(list, found) {
    for (const [name, text] of found) list.append(element("dt", name), element("dd", text));
  }

  function place(section, key) {
    return section.columns.findIndex((column) => column.key === key);
  }

  function text(section, row, key) {
    const at = place(section, key);
    return at < 0 ? "" : row.text[at];
  }

  function value(section, row, key) {
    const at = place(section, key);
    return at < 0 ? 0 : row.sort[at] ?? 0;
  }

  function visible() {
    const wanted = by("filter").value.trim().toLowerCase();
    const idle = by("idle").checked;
    const rows = view.section.rows.filter(
      (row) => (idle || !row.idle) &&
        (!wanted || row.text.some((cell) => cell.toLowerCase().includes(wanted))));
    if (view.sort >= 0) {
      const turn = view.down ? -1 : 1;
      rows.sort((a, b) => turn * compare(a, b));
    }
    return rows;
  }

  function compare(a, b) {
    const [left, right] = [a.sort[view.sort], b.sort[view.sort]];
    if (left === null || right === null) return (left === null ? 0 : 1) - (right === null ? 0 : 1);
    return typeof left === "number" ? left - right : left < right ? -1 : left > right ? 1 : 0;
  }

  function isFigure(column) {
    return column.kind !== "text";
  }

  function drawHead() {
    const line = element("tr");
    view.section.columns.forEach((column, at) => {
      const cell = element("th", undefined, isFigure(column) ? "figure" : "");
      const button = element("button", column.title);
      button.title = column.about || "sort by this column";
      const order = view.sort === at ? (view.down ? "descending" : "ascending") : "none";
      cell.setAttribute("aria-sort", order);
      button.addEventListener("click", () => {
        view.down = view.sort === at ? !view.down : isFigure(column);
        view.sort = at;
        drawTable();
      });
      cell.append(button);
      line.append(cell);
    });
    by("table").tHead.replaceChildren(line);
  }

  function drawTable() {
    drawHead();
    const rows = visible();
    const lines = rows.slice(0, view.shown).map((row) => {
      const line = element("tr", undefined, row.idle ? "idle" : "");
      line.tabIndex = 0;
      row.text.forEach((cell, at) => {
        line.append(element("td", cell, isFigure(view.section.columns[at]) ? "figure" : ""));
      });
      line.addEventListener("click", () => openDetail(view.section, row));
      line.addEventListener("keydown", (event) => {
        if (event.key === "Enter") openDetail(view.section, row);
      });
      return line;
    });
    by("table").tBodies[0].replaceChildren(...lines);
    by("more").hidden = rows.length <= view.shown;
    by("shown").textContent = told(rows);
  }

  function told(rows) {
    const section = view.section;
    const idle = section.rows.filter((row) => row.idle).length;
    let line = `${rows.length} of ${section.rows.length} rows`;
    if (idle && !by("idle").checked) line += `, ${idle} of idle waits hidden`;
    if (section.more) line += `; ${section.more} more were left out of this page`;
    return `${line}.`;
  }

  // Which rows of other sections have to do with this one: the same site, lock or thread.
  function related(section, row) {
    const found = [];
    for (const other of data.sections) {
      if (other === section) continue;
      for (const candidate of other.rows) {
        if (candidate.keys.some((key) => row.keys.includes(key))) found.push([other, candidate]);
        if (found.length === RELATED) return found;
      }
    }
    return found;
  }

  function openDetail(section, row) {
    by("detail-title").textContent = section.title;
    const body = by("detail-body");
    const list = element("dl");
    pairs(list, section.columns.map((column, at) => [column.title, row.text[at]]));
    body.replaceChildren(list);
    for (const [role, site] of row.sites) {
      body.append(element("h3", role));
      const frames = data.frames[site] || [];
      if (!frames.length) {
        body.append(element("p", "not known, or the runtime itself", "about"));
        continue;
      }
      const stack = element("ol");
      for (const frame of frames) stack.append(placeElement("li", frame));
      body.append(stack);
    }
    const others = related(section, row);
    if (others.length) body.append(element("h3", "See also"));
    for (const [other, candidate] of others) {
      const names = other.columns.map((column, at) => isFigure(column) ? "" : candidate.text[at]);
      const words = names.filter((name) => name && name !== "-").join(", ");
      const button = element("button", `${other.title}: ${words}`);
      button.addEventListener("click", () => {
        choose(other);
        openDetail(other, candidate);
      });
      body.append(element("br"), button);
    }
    if (!by("detail").open) by("detail").showModal();
  }

  function short(name) {
    return name.length > 48 ? `${name.slice(0, 23)}…${name.slice(-24)}` : name;
  }

  const states = ["usr", "lat", "mutex", "rwlock", "cond", "sem", "join", "io", "poll", "accept",
    "sleep", "in_call"].map((key) => ({ key: `${key}_share`, name: key.toUpperCase(), scale: 100 }));
  const verdicts = ["useful", "lost_race", "false_", "early", "timeout", "cancelled", "unrecorded"]
    .map((key) => ({ key, name: key.replace("_", "-").replace(/-$/, ""), scale: 1 }));
  // By section: the column with the bars' names, the parts of a bar, and the unit of its length.
  const one = (key, name, scale) => [{ key, name, scale }];
  const PLOTS = {
    groups: ["label", states, "percent of the threads' lives"],
    threads: ["label", states, "percent of the thread's life"],
    wakes: ["wait_label", verdicts, "wake-ups"],
    waits: ["wait_label", one("wait_ns", "waited", 1e-9), "seconds waited"],
    sides: ["site_label", one("wait_ns", "waited", 1e-9), "seconds waited"],
    locks: ["name", one("wait_total_ns", "wait_total", 1e-9), "seconds waited, all waiters"],
    origins: ["name", one("wait_total_ns", "wait_total", 1e-9), "seconds waited, all waiters"],
    spins: ["site_label", one("spin_ns", "spun", 1e-9), "seconds spun"],
    accepts: ["label", one("accepted", "accepted", 1), "connections"],
    lateness: ["late_from_ns", one("count", "timers", 1), "timers, by how late they were"],
    herds: ["size_from", one("count", "times", 1), "times, by threads woken at once"],
    calls: ["kind", one("completed", "completed", 1), "calls completed"],
  };
  const LINE = 22, LABELS = 360, LENGTH = 560, EDGE = 10; // of the plot, in its own units

  function figure(number) {
    return Number(number.toPrecision(3)).toLocaleString("en");
  }

  function bar(section, row, at, label, series, scale) {
    const group = shape("g", { class: "bar", tabindex: 0 });
    const middle = at * LINE + LINE / 2;
    const name = text(section, row, label);
    group.append(shape("text", { x: LABELS - 6, y: middle + 4, "text-anchor": "end" }, short(name)));
    let left = LABELS;
    for (const part of series) {
      const width = Math.max(value(section, row, part.key) * part.scale * scale, 0);
      if (!width) continue;
      const colour = COLOURS[part.key.replace(/_share$/, "")] || COLOURS.io;
      const box = shape("rect", { x: left, y: middle - 8, width, height: 16, fill: colour });
      box.append(shape("title", {}, `${name}\n${part.name}: ${text(section, row, part.key)}`));
      group.append(box);
      left += width;
    }
    group.addEventListener("click", () => openDetail(section, row));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter") openDetail(section, row);
    });
    return group;
  }

  function legend(series) {
    const list = element("p", undefined, "legend");
    for (const part of series) {
      const mark = element("span", part.name);
      mark.style.setProperty("--colour", COLOURS[part.key.replace(/_share$/, "")] || COLOURS.io);
      list.append(mark);
    }
    return list;
  }

  function drawPlot() {
    const target = by("plot");
    target.replaceChildren();
    const plot = PLOTS[view.section.key];
    const rows = plot && place(view.section, plot[0]) >= 0 ? visible().slice(0, PLOTTED) : [];
    target.hidden = !rows.length;
    if (!rows.length) return;
    const [label, series, unit] = plot;
    const lengths = rows.map((row) => series.reduce(
      (sum, part) => sum + Math.max(value(view.section, row, part.key) * part.scale, 0), 0));
    const most = Math.max(...lengths) || 1;
    const height = rows.length * LINE;
    const box = `0 0 ${LABELS + LENGTH + 2 * EDGE} ${height + 40}`;
    const drawing = shape("svg", { viewBox: box, role: "img", "aria-label": unit });
    rows.forEach((row, at) => {
      drawing.append(bar(view.section, row, at, label, series, LENGTH / most));
    });
    for (const part of [0, 0.5, 1]) {
      const x = LABELS + part * LENGTH;
      drawing.append(shape("line", { x1: x, x2: x, y1: 0, y2: height + 4, class: "scale" }));
      const word = { x, y: height + 18, "text-anchor": "middle" };
      drawing.append(shape("text", word, figure(part * most)));
    }
    const title = { x: LABELS + LENGTH / 2, y: height + 35, "text-anchor": "middle" };
    drawing.append(shape("text", title, unit));
    if (series.length > 1) target.append(legend(series));
    target.append(drawing);
  }

  function draw() {
    drawTable();
    drawPlot();
  }

  function choose(section) {
    Object.assign(view, { section, sort: -1, down: true, shown: STEP });
    for (const tab of by("tabs").children) {
      tab.setAttribute("aria-selected", String(tab.dataset.key === section.key));
    }
    by("title").textContent = section.title;
    by("about").textContent = section.about;
    by("filter").value = "";
    by("idle-label").hidden = !section.rows.some((row) => row.idle);
    draw();
  }

  function begin() {
    by("verdict").hidden = !data.verdict.length;
    by("verdict").append(...data.verdict.map((line) => element("p", line)));
    pairs(by("facts"), data.facts);
    by("notes").hidden = !data.notes.length;
    by("notes").append(...data.notes.map((note) => element("li", note)));
    Icicle.begin();
    WaitGraph.begin();
    Lanes.begin();
    const full = data.sections.filter((section) => section.rows.length || section.more);
    for (const section of full) {
      const rows = section.rows.length + section.more;
      const tab = element("button", section.summary ? section.title : `${section.title} (${rows})`);
      tab.dataset.key = section.key;
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => choose(section));
      by("tabs").append(tab);
    }
    by("filter").addEventListener("input", draw);
    by("idle").addEventListener("change", draw);
    by("more").addEventListener("click", () => {
      view.shown += STEP;
      drawTable();
    });
    const empty = data.sections.filter((section) => !full.includes(section));
    by("empty").hidden = !empty.length;
    pairs(by("empty-sections"), empty.map((section) => [section.title, section.empty]));
    by("tables").hidden = !full.length;
    if (full.length) choose(full.find((section) => section.key === "locks") || full[0]);
    document.body.dataset.ready = "yes";
  }

  begin();
})();
