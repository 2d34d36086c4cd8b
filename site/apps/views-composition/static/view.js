/* Q-, K- and V-composition of every pair of heads, with what random pairs reach taken away or not. */
(function () {
  "use strict";
  var CBV = window.CBV,
    el = CBV.el;
  var KINDS = [
    ["Q", "query"],
    ["K", "key"],
    ["V", "value"],
  ];

  CBV.start("views-composition", function (place, data) {
    var minus = CBV.recall("minus", "0", ["0", "1"]) === "1",
      out = el("div");
    var told = CBV.readout(
      "Point at a cell, or reach a table with Tab and move with the arrow keys: the pair's numbers are said here."
    );
    var n = data.scores[0].length;

    function value(kind, w, r) {
      return data.scores[kind][w][r] - (minus ? data.baseline.mean[kind][w][r] : 0);
    }
    function limits() {
      var values = [];
      KINDS.forEach(function (_, kind) {
        for (var w = 0; w < n; w++) for (var r = 0; r < n; r++) values.push(value(kind, w, r));
      });
      return { low: Math.min.apply(null, values), high: Math.max.apply(null, values) };
    }
    function sentence(kind, w, r) {
      var s = data.scores[kind][w][r],
        b = data.baseline.mean[kind][w][r],
        e = data.effects;
      var cut =
        "cutting this edge raises the held-out loss by " +
        CBV.number(e.loss[kind][w][r], 2) +
        " ± " +
        CBV.number(e.loss_se[kind][w][r], 2) +
        " nats";
      if (kind < 2)
        cut += " and moves " + CBV.number(100 * e.pattern[kind][w][r], 2) + " % of the reader's attention";
      return (
        KINDS[kind][0] +
        ": head 0." +
        w +
        " into the " +
        KINDS[kind][1] +
        " of 1." +
        r +
        ". Score " +
        CBV.number(s) +
        "; random pairs " +
        CBV.number(b) +
        " in the mean, " +
        CBV.number(data.baseline.high[kind][w][r]) +
        " at the 97.5 % point; difference " +
        CBV.number(s - b) +
        ". Intervention: " +
        cut +
        "."
      );
    }
    function heat(kind, colour) {
      var heads = data.scores[kind].map((_, h) => h);
      var made = CBV.heat({
        caption: KINDS[kind][0] + "-composition (" + KINDS[kind][1] + ")",
        name: KINDS[kind][0],
        columns: heads.map((r) => "1." + r),
        rows: heads.map((w) => "0." + w),
        values: heads.map((w) => heads.map((r) => value(kind, w, r))),
        words: (v) => (100 * v).toFixed(0).replace("-", "−").replace(/^−0$/, "0"),
        colour: colour,
      });
      made.cells[data.pair[0] * n + data.pair[1]].setAttribute("aria-current", "true");
      CBV.roving(
        made.cells,
        function (cell, i) {
          told.say(sentence(kind, Math.floor(i / n), i % n));
        },
        n
      );
      return el("div", { class: "cbv-scroll" }, made.table);
    }
    function draw() {
      var ends = limits(),
        most = Math.max(Math.abs(ends.low), ends.high);
      var colour = minus ? (v) => CBV.signed(v, most) : (v) => CBV.sequential(v, most);
      out.replaceChildren(
        CBV.legend(minus ? "score minus random mean:" : "score:", colour, minus ? -most : 0, most, ""),
        el(
          "div",
          { class: "cbv-panels" },
          KINDS.map((_, kind) => heat(kind, colour))
        ),
        el("p", {
          class: "cbv-note",
          text:
            "Rows write, columns read; cells are in hundredths. The outlined cell is the pair that the course follows, 0." +
            data.pair[0] +
            " → 1." +
            data.pair[1] +
            ".",
        }),
        CBV.details(
          "As a table: the highest scores",
          CBV.scroll(
            "Highest scores",
            CBV.table(
              "The 24 pairs that stand out most against their random mean",
              [
                "pair and input",
                "score",
                "random mean",
                "random 97.5 % point",
                "difference",
                "loss rises by (nats)",
              ],
              ranked()
            )
          )
        )
      );
    }
    function ranked() {
      var rows = [];
      KINDS.forEach(function (k, kind) {
        for (var w = 0; w < n; w++)
          for (var r = 0; r < n; r++)
            rows.push([kind, w, r, data.scores[kind][w][r] - data.baseline.mean[kind][w][r]]);
      });
      rows.sort((a, b) => b[3] - a[3]);
      return rows.slice(0, 24).map(function (x) {
        var at = (t) => t[x[0]][x[1]][x[2]];
        return [
          "0." + x[1] + " → 1." + x[2] + ", " + KINDS[x[0]][1],
          CBV.number(at(data.scores)),
          CBV.number(at(data.baseline.mean)),
          CBV.number(at(data.baseline.high)),
          CBV.number(x[3]),
          CBV.number(at(data.effects.loss), 2) + " ± " + CBV.number(at(data.effects.loss_se), 2),
        ];
      });
    }
    place.append(
      el("div", { class: "cbv-controls" }, [
        CBV.checkbox("subtract what random pairs reach (mean)", "minus", minus, function (on) {
          minus = on;
          told.rest();
          draw();
        }),
      ]),
      told.node,
      out,
      CBV.provenance(data.made_with, "")
    );
    draw();
  });
})();
