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
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const view = { section: null, sort: -1, down: true, shown: STEP };

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  // Plotly reads some markup in its texts.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

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
    if (!section.rows.length) return `None: ${section.empty}.`;
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
      for (const frame of frames) stack.append(element("li", frame));
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

  function bars(section, rows, label, series) {
    const shown = rows.slice(0, PLOTTED).reverse();
    // Two rows may have one name: the position tells them apart, the name is its label.
    const ticks = shown.map((row) => plain(short(text(section, row, label))));
    const places = shown.map((_, at) => at);
    const traces = series.map(({ key, name, scale }) => ({
      type: "bar", orientation: "h", name: plain(name), y: places,
      x: shown.map((row) => value(section, row, key) * scale),
      marker: { color: COLOURS[key.replace(/_share$/, "")] },
      hovertemplate: shown.map((row) => `${plain(text(section, row, label))}<br>${plain(name)}: ` +
        `${plain(text(section, row, key))}<extra></extra>`),
    }));
    const rise = { yaxis: { tickvals: places, ticktext: ticks, automargin: true } };
    return { traces, layout: { ...rise, height: 90 + 22 * shown.length }, rows: shown };
  }

  function short(name) {
    return name.length > 48 ? `${name.slice(0, 23)}…${name.slice(-24)}` : name;
  }

  function columns(section, rows, label, key) {
    return {
      traces: [{
        type: "bar", x: rows.map((row) => plain(text(section, row, label))),
        y: rows.map((row) => value(section, row, key)), marker: { color: COLOURS.io },
      }],
      layout: { height: 300, xaxis: { type: "category", automargin: true } },
      rows,
    };
  }

  const states = ["usr", "lat", "mutex", "rwlock", "cond", "sem", "join", "io", "poll", "accept",
    "sleep", "in_call"].map((key) => ({ key: `${key}_share`, name: key.toUpperCase(), scale: 100 }));
  const verdicts = ["useful", "lost_race", "false_", "early", "timeout", "cancelled", "unrecorded"]
    .map((key) => ({ key, name: key.replace("_", "-").replace(/-$/, ""), scale: 1 }));
  const PLOTS = {
    threads: [(s, r) => bars(s, r, "label", states), "percent of the thread's life"],
    wakes: [(s, r) => bars(s, r, "wait_label", verdicts), "wake-ups"],
    waits: [(s, r) => bars(s, r, "wait_label", [{ key: "wait_ns", name: "waited", scale: 1e-9 }]),
      "seconds waited"],
    sides: [(s, r) => bars(s, r, "site_label", [{ key: "wait_ns", name: "waited", scale: 1e-9 }]),
      "seconds waited"],
    locks: [(s, r) => bars(s, r, "name", [{ key: "wait_total_ns", name: "wait_total", scale: 1e-9 }]),
      "seconds waited, all waiters"],
    origins: [(s, r) => bars(s, r, "name",
      [{ key: "wait_total_ns", name: "wait_total", scale: 1e-9 }]), "seconds waited, all waiters"],
    spins: [(s, r) => bars(s, r, "site_label", [{ key: "spin_ns", name: "spun", scale: 1e-9 }]),
      "seconds spun"],
    accepts: [(s, r) => bars(s, r, "label", [{ key: "accepted", name: "accepted", scale: 1 }]),
      "connections"],
    lateness: [(s, r) => columns(s, r, "late_from_ns", "count"), "late from (timers)"],
    herds: [(s, r) => columns(s, r, "size_from", "count"), "threads from (times)"],
    calls: [(s, r) => columns(s, r, "kind", "completed"), "calls completed"],
  };

  function drawPlot() {
    const target = by("plot");
    Plotly.purge(target);
    target.replaceChildren();
    const plot = PLOTS[view.section.key];
    const rows = plot ? visible() : [];
    target.hidden = !rows.length;
    if (!rows.length) return;
    const { traces, layout, rows: shown } = plot[0](view.section, rows);
    const style = getComputedStyle(document.body);
    Plotly.newPlot(target, traces, {
      barmode: "stack", margin: { l: 10, r: 20, t: 10, b: 50 }, ...layout,
      font: { color: style.color }, paper_bgcolor: "transparent", plot_bgcolor: "transparent",
      xaxis: { title: { text: plot[1], standoff: 8 }, automargin: true, ...layout.xaxis }, showlegend: traces.length > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal" },
    }, { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
    target.on("plotly_click", (event) => {
      openDetail(view.section, shown[event.points[0].pointNumber]);
    });
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
    pairs(by("facts"), data.facts);
    by("notes").hidden = !data.notes.length;
    by("notes").append(...data.notes.map((note) => element("li", note)));
    for (const section of data.sections) {
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
    choose(data.sections.find((section) => section.key === "locks" && section.rows.length) ||
      data.sections[0]);
    document.body.dataset.ready = "yes";
  }

  begin();
})();
