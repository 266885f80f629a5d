"use strict";
(function () {
  document.documentElement.classList.add("js");
  const content = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");

  // Data sets are stored by column, each once; Vega wants rows of its own.
  function rows(columns) {
    const names = Object.keys(columns);
    const length = names.length ? columns[names[0]].length : 0;
    return Array.from({ length }, (_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
  }

  // Names in a tooltip are set as text, never as markup.
  function showTip(_, event, item, value) {
    if (value === null || value === undefined || value === "") { tip.hidden = true; return; }
    tip.replaceChildren();
    const list = document.createElement("dl");
    const entries = typeof value === "object" ? Object.entries(value) : [["", value]];
    for (const [name, text] of entries) {
      const term = document.createElement("dt");
      const definition = document.createElement("dd");
      term.textContent = name;
      definition.textContent = String(text);
      list.append(term, definition);
    }
    tip.append(list);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 14 + box.width > innerWidth;
    const below = event.clientY + 14 + box.height > innerHeight;
    tip.style.left = Math.max(4, right ? event.clientX - box.width - 10 : event.clientX + 14) + "px";
    tip.style.top = Math.max(4, below ? event.clientY - box.height - 10 : event.clientY + 14) + "px";
  }

  const views = new Map();
  function draw(plot) {
    const width = plot.clientWidth;
    if (!width) return;
    const known = views.get(plot);
    if (known) {
      if (known.drawnAt !== width) { known.drawnAt = width; known.width(width).run(); }
      return;
    }
    const specification = content.figures[plot.dataset.figure];
    specification.width = width;
    for (const source of specification.data || [])
      if (content.datasets[source.name] && !source.url) source.values = rows(content.datasets[source.name]);
    const view = new vega.View(vega.parse(specification), { renderer: "svg", container: plot, hover: true });
    view.tooltip(showTip).run();
    view.drawnAt = width;
    views.set(plot, view);
    plot.querySelector("svg")?.setAttribute("aria-hidden", "true");
  }
  const drawAll = (inside) => inside.querySelectorAll(".plot").forEach(draw);

  const folds = Array.from(document.querySelectorAll("details.fold"));
  folds.forEach((fold) => fold.addEventListener("toggle", () => { if (fold.open) drawAll(fold); }));
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawAll(document), 120); });

  // Paper has no folds: everything is opened and drawn, and closed again afterwards.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = closed.concat(folds.filter((fold) => !fold.open));
    closed.forEach((fold) => { fold.open = true; });
    drawAll(document);
  });
  addEventListener("afterprint", () => { closed.forEach((fold) => { fold.open = false; }); closed = []; });

  // A row and what stands behind it.
  for (const button of document.querySelectorAll("button.unfold")) {
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      const open = button.closest("tbody").classList.toggle("open");
      button.setAttribute("aria-expanded", String(open));
    });
  }

  // Sorting moves whole row groups, so that layers stay with their measure.
  const key = (group, column) => {
    const cell = group.rows[0].cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  for (const button of document.querySelectorAll("button.sort")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const table = head.closest("table");
      const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      const column = head.cellIndex;
      const groups = Array.from(table.tBodies);
      groups.sort((a, b) => {
        const x = key(a, column), y = key(b, column);
        if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1; // what has no number stands last
        return direction * (typeof x === "number" ? x - y : x.localeCompare(y));
      });
      table.append(...groups);
    });
  }
  for (const input of document.querySelectorAll("input[data-filter]")) {
    const table = document.getElementById(input.dataset.filter);
    const count = document.querySelector(`[data-count="${input.dataset.filter}"]`);
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let shown = 0;
      for (const group of table.tBodies) {
        const text = Array.from(group.querySelectorAll("th, tr:first-child td"), (cell) => cell.textContent).join(" ");
        group.hidden = wanted !== "" && !text.toLowerCase().includes(wanted);
        shown += !group.hidden;
      }
      count.textContent = wanted ? `${shown} of ${table.tBodies.length} rows` : "";
    });
  }
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentNode.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }

  drawAll(document);
  document.body.dataset.ready = String(Math.round(performance.now()));
})();
