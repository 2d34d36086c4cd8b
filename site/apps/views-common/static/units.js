/* A dashboard for one unit (a neuron or a latent): where it fires, and the words beside it. */
(function () {
  "use strict";
  var CBV = (window.CBV = window.CBV || {});
  var el = CBV.el,
    svg = CBV.svg;

  /* One excerpt: every token coloured by the activation on it, which is said on hover and focus.
     back: how far before the strongest token the one stands that gets a frame; null for none. */
  function excerpt(context, texts, limit, told, back) {
    var words = context.ids.map(function (id, i) {
      var value = context.values[i];
      var word = el("span", {
        class: [i === context.at && "peak", back !== null && i === context.at - back && "counted"]
          .filter(Boolean)
          .join(" "),
        text: CBV.inText(texts[id]),
        "data-value": value,
      });
      CBV.paint(word, CBV.shade(value, limit));
      return word;
    });
    CBV.roving(words, function (word, i) {
      told.say(
        "“" + CBV.visible(texts[context.ids[i]]) + "”: activation " + CBV.number(context.values[i]) + "."
      );
    });
    return el("li", { class: "cbv-context" }, [
      el("div", { class: "cbv-words" }, words),
      el("div", {
        class: "cbv-where",
        text:
          CBV.number(context.values[context.at]) +
          " on “" +
          CBV.visible(texts[context.ids[context.at]]) +
          "”, " +
          context.source,
      }),
    ]);
  }
  function list(contexts, texts, limit, told, none, back) {
    return contexts.length
      ? el(
          "ol",
          { class: "cbv-list" },
          contexts.map((c) => excerpt(c, texts, limit, told, back))
        )
      : el("p", { class: "cbv-note", text: none });
  }

  /* Bars on a logarithmic count axis: without it only the bar next to zero could be seen. */
  function bins(h) {
    var width = (h.to - h.from) / h.counts.length;
    return h.counts.map((n, i) => [h.from + i * width, h.from + (i + 1) * width, n]);
  }
  function histogram(place, h, told) {
    if (!h.counts.length)
      return el("p", { class: "cbv-note", text: "It never fires on the text that was read." });
    var most = Math.max.apply(null, h.counts),
      top = Math.log10(most * 1.5) + 1,
      powers = [];
    for (var p = 0; Math.pow(10, p) <= most * 1.5; p++) powers.push([p + 1, CBV.count(Math.pow(10, p))]);
    var f = CBV.frame(
      { width: CBV.width(place, 520), height: 220 },
      { from: h.from, to: h.to, ticks: CBV.axis(h.from, h.to, 5), label: "activation" },
      { from: 0, to: top, ticks: powers, label: "positions (log)" },
      "Histogram of activations"
    );
    f.svg.setAttribute("role", "group");
    f.plot.setAttribute("class", "cbv-bars");
    var bars = [],
      full = bins(h).filter((b) => b[2] > 0);
    full.forEach(function (b) {
      var y = f.y(Math.log10(b[2]) + 1);
      var bar = svg("rect", {
        x: f.x(b[0]) + 0.5,
        width: Math.max(1, f.x(b[1]) - f.x(b[0]) - 1),
        y: y,
        height: f.bottom - y,
        role: "img",
        "aria-label": CBV.number(b[0]) + " to " + CBV.number(b[1]) + ": " + CBV.count(b[2]) + " positions",
      });
      f.plot.append(bar);
      bars.push(bar);
    });
    CBV.roving(bars, function (bar, i) {
      var b = full[i];
      told.say(
        "Activation from " +
          CBV.number(b[0]) +
          " to " +
          CBV.number(b[1]) +
          ": " +
          CBV.count(b[2]) +
          " positions."
      );
    });
    return f.svg;
  }

  function facts(pairs) {
    return el(
      "dl",
      { class: "cbv-facts" },
      pairs.map((pair) => el("div", {}, [el("dt", { text: pair[0] }), el("dd", { text: pair[1] })]))
    );
  }
  function words(unit, texts, names) {
    var w = unit.writes,
      r = unit.reads;
    var limit = CBV.largest([w["top values"], w["low values"]]),
      drive = CBV.largest([r["top values"], r["low values"] || []]);
    return el("div", { class: "cbv-panels" }, [
      el("div", {}, [
        el("h3", { text: names.writes }),
        CBV.wordTable("raises most", names.writesUnit, w.top, w["top values"], texts, limit),
        CBV.wordTable("lowers most", names.writesUnit, w.low, w["low values"], texts, limit),
      ]),
      el("div", {}, [
        el("h3", { text: names.reads }),
        r.top.length
          ? CBV.wordTable("excite it most", names.readsUnit, r.top, r["top values"], texts, drive)
          : el("p", { class: "cbv-note", text: names.nothing }),
        r.low
          ? CBV.wordTable("inhibit it most", names.readsUnit, r.low, r["low values"], texts, drive)
          : null,
      ]),
    ]);
  }
  function contextRows(unit, texts) {
    var groups = [["strongest", unit.contexts]].concat(unit.bands.map((b) => [b.band + " band", b.contexts]));
    return groups.flatMap(function (g) {
      return g[1].map(function (c) {
        var plain = c.ids
          .map((id, i) => (i === c.at ? "⟦" + texts[id] + "⟧" : texts[id]))
          .join("")
          .replace(/\s+/g, " ");
        return [g[0], CBV.number(c.values[c.at]), plain, c.source];
      });
    });
  }

  /* names: how the page speaks of its units; see the two view.js that call this. */
  CBV.units = function (page, names) {
    CBV.start(page, function (place, all) {
      var data = all.data,
        texts = data.texts,
        units = data.units,
        out = el("div");
      function key(u) {
        return names.key(u);
      }
      var keys = units.map(key),
        at = Math.max(0, keys.indexOf(CBV.recall("unit", keys[0], keys)));
      var groups = [];
      units.forEach(function (u, i) {
        var label = names.group(u),
          group = groups.find((g) => g.label === label);
        if (!group) groups.push((group = { label: label, options: [] }));
        group.options.push([key(u), names.title(u) + " · " + CBV.percent(u.share)]);
      });
      var field = CBV.select(names.choose, "unit", groups, keys[at], function (value) {
        at = keys.indexOf(value);
        draw();
      });
      var box = field.querySelector("select");
      function step(by) {
        return function () {
          at = (at + by + units.length) % units.length;
          box.value = keys[at];
          CBV.remember("unit", keys[at]);
          draw();
        };
      }
      function draw() {
        var u = units[at],
          limit = u.maximum,
          counted = names.counted ? names.counted(u, all) : null,
          back = counted ? (counted.place === "token" ? 0 : 1) : null;
        var told = CBV.readout(
          "Point at a token or a bar, or reach one with Tab and the arrow keys: its value is said here."
        );
        out.replaceChildren(
          el("h2", { text: names.title(u), id: page + "-title" }),
          el("p", { text: u.why.charAt(0).toUpperCase() + u.why.slice(1) + "." }),
          names.told ? el("p", { id: page + "-counted", text: names.told(u, all) }) : "",
          facts(
            [
              ["fires on", CBV.percent(u.share) + " of positions"],
              ["in documents", u.documents + " of " + data.read.documents],
              ["maximum", CBV.number(u.maximum)],
            ].concat(names.facts(u, data))
          ),
          told.node,
          el("h3", { text: "Strongest contexts, one from each document" }),
          CBV.legend("activation:", (v) => CBV.shade(v, limit), Math.min(0, u.histogram.from), limit, ""),
          list(u.contexts, texts, limit, told, "None: it never fires on the text that was read.", back),
          u.bands.length ? el("h3", { text: "Drawn at random from each third of its range" }) : "",
          el(
            "div",
            { class: "cbv-panels" },
            u.bands.map((b) =>
              el("div", {}, [
                el("h4", {
                  text:
                    b.band.charAt(0).toUpperCase() +
                    b.band.slice(1) +
                    ": " +
                    CBV.number(b.from, 2) +
                    " to " +
                    CBV.number(b.to, 2),
                }),
                el("p", { class: "cbv-note", text: CBV.count(b.positions) + " positions" }),
                list(b.contexts, texts, limit, told, "None.", back),
              ])
            )
          ),
          el("h3", { text: "Histogram of activations" }),
          histogram(place, u.histogram, told),
          el("p", { class: "cbv-note", text: names.zero(u) }),
          words(u, texts, names),
          CBV.details("As tables", [
            CBV.scroll(
              "Contexts",
              CBV.table(
                "Contexts of " + names.title(u),
                ["where from", "activation", "text, the token in ⟦ ⟧", "source"],
                contextRows(u, texts)
              )
            ),
            CBV.scroll(
              "Histogram",
              CBV.table(
                "Histogram of " + names.title(u),
                ["from", "to", "positions"],
                bins(u.histogram).map((b) => [CBV.number(b[0]), CBV.number(b[1]), CBV.count(b[2])])
              )
            ),
          ])
        );
      }
      place.append(
        el("div", { class: "cbv-controls" }, [
          field,
          el("button", { type: "button", text: "← previous", onclick: step(-1) }),
          el("button", { type: "button", text: "next →", onclick: step(1) }),
        ]),
        out,
        names.after ? names.after(data) : "",
        CBV.provenance(all.made_with, CBV.textRead(data.read))
      );
      CBV.withTheme(draw);
      CBV.onResize(draw);
    });
  };
})();
