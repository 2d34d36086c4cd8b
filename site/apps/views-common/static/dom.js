/* Small parts that every result view is made of: elements, controls, a table, keyboard, state.
   Classic script, no framework: a page opened from disk may load neither modules nor data. */
(function () {
  "use strict";
  var CBV = (window.CBV = window.CBV || {});
  var SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    Object.keys(attributes || {}).forEach(function (name) {
      var value = attributes[name];
      if (name === "text") node.textContent = value;
      else if (name.slice(0, 2) === "on") node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false)
        node.setAttribute(name, value === true ? "" : String(value));
    });
    [].concat(children || []).forEach(function (child) {
      if (child) node.append(child);
    });
    return node;
  }
  CBV.el = (tag, attributes, children) => fill(document.createElement(tag), attributes, children);
  CBV.svg = (tag, attributes, children) => fill(document.createElementNS(SVG, tag), attributes, children);
  var el = CBV.el;

  /* Numbers: three significant digits, a real minus sign, no exponent where a reader can count. */
  CBV.number = function (value, digits) {
    if (value === 0) return "0";
    var size = Math.abs(value),
      wanted = digits || 3;
    var text =
      size >= 1e-3 && size < 1e6
        ? value.toFixed(Math.max(0, wanted - 1 - Math.floor(Math.log10(size))))
        : value.toExponential(wanted - 1);
    return text.replace(/-/g, "−");
  };
  CBV.percent = (share) => (share === 0 ? "0 %" : CBV.number(100 * share, 2) + " %");
  CBV.count = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

  /* Line breaks ⏎, tabs ⇥; any other control character by its number, as few fonts draw it. */
  function plain(text) {
    return text
      .replace(/\n/g, "⏎")
      .replace(/\t/g, "⇥")
      .replace(
        /[\u0000-\u001f\u007f-\u009f]/g,
        (c) => "U+" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")
      );
  }
  /* A token made visible, as in the notebooks: blanks at the ends ␣, and what `plain` says. */
  CBV.visible = function (text) {
    var inner = text.replace(/^ +| +$/g, "");
    if (!inner) return "␣".repeat(text.length);
    var left = text.length - text.replace(/^ +/, "").length;
    var right = text.length - text.replace(/ +$/, "").length;
    return "␣".repeat(left) + plain(inner) + "␣".repeat(right);
  };

  /* What is chosen stands behind the # of the address, so that a link shows the same view. */
  var chosen = new URLSearchParams(location.hash.slice(1));
  CBV.recall = function (key, fallback, allowed) {
    var value = chosen.get(key);
    return value !== null && (!allowed || allowed.indexOf(value) >= 0) ? value : fallback;
  };
  CBV.remember = function (key, value) {
    chosen.set(key, value);
    history.replaceState(null, "", "#" + chosen.toString());
  };

  /* A token inside running text: blanks stay blanks there, so that the text can be read. */
  CBV.inText = (text) => plain(text).replace(/ {4,}/g, "   ");

  var made = 0;
  CBV.id = function (stem) {
    made += 1;
    return "cbv-" + stem + "-" + made;
  };

  /* A labelled <select>. options: [value, text] or {label, options: [[value, text], …]}. */
  CBV.select = function (label, key, options, value, change) {
    var id = CBV.id(key);
    function option(pair) {
      return el("option", { value: pair[0], text: pair[1], selected: pair[0] === value });
    }
    var box = el(
      "select",
      {
        id: id,
        onchange: function () {
          CBV.remember(key, box.value);
          change(box.value);
        },
      },
      options.map((o) =>
        Array.isArray(o) ? option(o) : el("optgroup", { label: o.label }, o.options.map(option))
      )
    );
    return el("div", { class: "cbv-field" }, [el("label", { for: id, text: label }), box]);
  };
  CBV.checkbox = function (label, key, on, change) {
    var id = CBV.id(key);
    var box = el("input", {
      id: id,
      type: "checkbox",
      checked: on,
      onchange: function () {
        CBV.remember(key, box.checked ? "1" : "0");
        change(box.checked);
      },
    });
    return el("div", { class: "cbv-field cbv-check" }, [box, el("label", { for: id, text: label })]);
  };

  /* Where the value under the pointer or the focus is said; polite, so screen readers say it too. */
  CBV.readout = function (hint) {
    var line = el("p", { class: "cbv-readout", "aria-live": "polite", text: hint });
    return {
      node: line,
      say: function (text) {
        line.textContent = text;
      },
      rest: function () {
        line.textContent = hint;
      },
    };
  };

  /* Of many items one is a tab stop; arrows, Home and End move among them. `columns` makes a grid.
     tell(item) is called on hover and on focus. */
  CBV.roving = function (items, tell, columns) {
    var step = columns || items.length;
    items.forEach(function (item, i) {
      item.setAttribute("tabindex", i ? "-1" : "0");
      item.addEventListener("mouseenter", function () {
        tell(item, i);
      });
      item.addEventListener("focus", function () {
        items.forEach(function (other) {
          other.setAttribute("tabindex", "-1");
        });
        item.setAttribute("tabindex", "0");
        tell(item, i);
      });
      item.addEventListener("keydown", function (event) {
        var moves = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: items.length - 1 };
        moves.ArrowDown = columns ? i + step : i + 1;
        moves.ArrowUp = columns ? i - step : i - 1;
        if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
        event.preventDefault();
        var target = items[moves[event.key]];
        if (target) target.focus();
      });
    });
  };

  /* A plain table. Cells are strings, numbers or nodes; the first cell of a row is its header. */
  CBV.table = function (caption, header, rows) {
    return el("table", { class: "cbv-table" }, [
      el("caption", { text: caption }),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          header.map((h) => el("th", { scope: "col", text: h }))
        )
      ),
      el(
        "tbody",
        {},
        rows.map(function (row) {
          return el(
            "tr",
            {},
            row.map(function (cell, i) {
              var inner = cell instanceof Node ? cell : document.createTextNode(cell);
              return el(i ? "td" : "th", i ? {} : { scope: "row" }, inner);
            })
          );
        })
      ),
    ]);
  };
  CBV.scroll = (label, child) =>
    el("div", { class: "cbv-scroll", tabindex: "0", role: "region", "aria-label": label }, child);
  /* The text alternative: what a view draws, as a table that opens on demand. */
  CBV.details = (summary, children) =>
    el("details", { class: "cbv-details" }, [el("summary", { text: summary })].concat(children));

  CBV.dark = () => document.documentElement.getAttribute("data-theme") === "dark";
  /* Run `draw` now and whenever the theme changes: colours that are mixed need mixing again. */
  CBV.withTheme = function (draw) {
    new MutationObserver(draw).observe(document.documentElement, {
      attributes: true,
      attributeFilter: ["data-theme"],
    });
    draw();
  };

  /* The width that a chart may take: text keeps its size on a phone. */
  CBV.width = (place, most) => Math.max(300, Math.min(most || 760, place.clientWidth || 760));
  CBV.onResize = function (draw) {
    var last = window.innerWidth;
    window.addEventListener("resize", function () {
      if (window.innerWidth !== last) draw();
      last = window.innerWidth;
    });
  };

  /* The line below every view: what it was measured on. */
  CBV.provenance = function (made, more) {
    var weights = Object.keys(made.weights).map(
      (role) => role + " (sha256 " + made.weights[role].slice(0, 12) + "…)"
    );
    return el("p", {
      class: "cbv-source",
      text: "Measured on " + weights.join(", ") + "." + (more || ""),
    });
  };
  CBV.textRead = (read) =>
    " Read: " +
    CBV.count(read.positions) +
    " positions in " +
    read.windows +
    " held-out windows of " +
    read["window length"] +
    " tokens, from " +
    read.documents +
    " documents (token ids: sha256 " +
    read.tokens_sha256.slice(0, 12) +
    "…).";

  /* Start a view: its place on the page and its data, or a sentence that says what is missing. */
  CBV.start = function (name, show) {
    var place = document.getElementById(name),
      data = (window.CB_DATA || {})[name];
    if (!data) {
      place.replaceChildren(
        el("p", {
          text: "The data of this view was not found beside the page. Build the site again: make site.",
        })
      );
      return;
    }
    place.replaceChildren();
    show(place, data);
  };
})();
