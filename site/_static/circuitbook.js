// Figures become interactive when asked, and the ledger can be filtered. Without this file
// every page is whole: pictures with words, and the full table.
(() => {
  "use strict";
  const HERE = document.currentScript.src.replace(/[^/]*$/, "");
  const loaded = new Map();

  // A page on disk may not fetch, but it may add a script.
  function load(address) {
    if (!loaded.has(address)) {
      loaded.set(address, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = HERE + address;
        script.onload = resolve;
        script.onerror = () => { loaded.delete(address); reject(new Error(address)); };
        document.head.append(script);
      }));
    }
    return loaded.get(address);
  }

  function setUpFigure(button) {
    const figure = button.closest("figure");
    const picture = figure.querySelector("img");
    const chapter = location.pathname.replace(/.*\//, "").replace(/\.html$/, "");
    let plot = null;
    button.hidden = false;
    button.addEventListener("click", async () => {
      if (plot && !plot.hidden) {
        plot.hidden = true;
        picture.hidden = false;
        button.textContent = "Interactive version";
        return;
      }
      button.setAttribute("aria-busy", "true");
      try {
        await Promise.all([load("plotly/plotly.min.js"), load(`plots/${chapter}.js`)]);
      } catch (error) {
        button.textContent = `Could not load ${error.message}. Try again`;
        return;
      } finally {
        button.removeAttribute("aria-busy");
      }
      const spec = window.PLOTS[button.dataset.plot];
      const fresh = !plot;
      if (fresh) {
        plot = document.createElement("div");
        plot.className = "cb-plot";
        plot.setAttribute("role", "img");
        plot.setAttribute("aria-label", picture.alt);
        picture.after(plot);
      }
      plot.hidden = false;
      picture.hidden = true;
      button.textContent = "Back to the picture";
      if (fresh) {
        const layout = { ...spec.layout, autosize: true, paper_bgcolor: "#fff", plot_bgcolor: "#fff" };
        for (const axis of ["xaxis", "yaxis", ...Object.keys(layout).filter((k) => /^[xy]axis/.test(k))]) {
          layout[axis] = { ...layout[axis], automargin: true };  // long names must not be cut
        }
        await window.Plotly.newPlot(plot, spec.data, layout, {
          responsive: true, displaylogo: false, modeBarButtonsToRemove: ["toImage"],
        });
      }
    });
  }

  // What people type when they mean a state.
  const SAID = { holds: "held hold true", fails: "failed failing fail refuted" };

  function setUpLedger(form) {
    const bodies = [...document.querySelectorAll(".cb-ledger tbody")];
    const rows = bodies.flatMap((body) => [...body.rows].map((row) => ({
      row, body, words: `${row.textContent} ${SAID[row.dataset.holds]}`.toLowerCase(),
    })));
    const table = document.querySelector(".cb-ledger");
    const said = form.querySelector("output");
    const none = document.createElement("p");
    none.textContent = "No claim fits. Try fewer words, or press “Show all”.";
    none.hidden = true;
    table.parentElement.after(none);
    const fields = ["words", "chapter", "label", "holds"];
    function apply() {
      const want = Object.fromEntries(fields.map((name) => [name, form.elements[name].value]));
      const words = want.words.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const { row, body, words: text } of rows) {
        const fits = (!want.chapter || body.dataset.chapter === want.chapter)
          && (!want.label || row.dataset.label === want.label)
          && (!want.holds || row.dataset.holds === want.holds)
          && words.every((word) => text.includes(word));
        row.hidden = !fits;
        shown += fits;
      }
      said.textContent = `${shown} of ${rows.length} claims`;
      table.caption.textContent = said.textContent;
      table.hidden = shown === 0;
      none.hidden = shown > 0;
    }
    // A claim that the address names must be seen, whatever the filter says.
    function showNamed() {
      const id = decodeURIComponent(location.hash.slice(1));
      const named = rows.find(({ row }) => row.id === id);
      if (named?.row.hidden) {
        form.reset();
        apply();
        named.row.scrollIntoView();
      }
    }
    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(apply));
    window.addEventListener("hashchange", showNamed);
    apply();
    showNamed();
  }

  document.querySelectorAll("button[data-plot]").forEach(setUpFigure);
  document.querySelectorAll("#ledger-filter").forEach(setUpLedger);
})();
