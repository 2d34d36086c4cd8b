/* Eigenvalues of a head's OV circuit in the complex plane, beside what heads of random weights have. */
(function () {
  "use strict";
  var CBV = window.CBV,
    el = CBV.el,
    svg = CBV.svg,
    PASS = 0.9;

  CBV.start("views-copying", function (place, all) {
    var data = all.data,
      roles = Object.keys(data);
    var role = CBV.recall("model", "attn-only-2l", roles),
      head = CBV.recall("head", "1.7", null);
    var random = CBV.recall("random", "1", ["0", "1"]) === "1";
    var out = el("div"),
      lineUp = el("div");
    function names() {
      return Object.keys(data[role].heads);
    }
    if (names().indexOf(head) < 0) head = names()[0];

    function said(z) {
      return CBV.number(z[0]) + (z[1] < 0 ? " − " : " + ") + CBV.number(Math.abs(z[1])) + "i";
    }
    function plane(one, chance, told) {
      var side = CBV.width(place, 430),
        ends = [-1, -0.5, 0, 0.5, 1].map((v) => [v, CBV.number(v, 1)]);
      var f = CBV.frame(
        { width: side, height: side - 18 },
        { from: -1.08, to: 1.08, ticks: ends, label: "real part (largest size = 1)" },
        { from: -1.08, to: 1.08, ticks: ends, label: "imaginary part" },
        "Eigenvalues of head " + head + " of " + role + " in the complex plane"
      );
      f.svg.setAttribute("role", "group");
      f.plot.append(
        svg("ellipse", {
          cx: f.x(0),
          cy: f.y(0),
          rx: f.x(1) - f.x(0),
          ry: f.y(0) - f.y(1),
          class: "cbv-axis",
          "stroke-dasharray": "4 3",
        }),
        svg("line", { x1: f.x(-1.08), x2: f.x(1.08), y1: f.y(0), y2: f.y(0), class: "cbv-axis" }),
        svg("line", { x1: f.x(0), x2: f.x(0), y1: f.y(-1.08), y2: f.y(1.08), class: "cbv-axis" })
      );
      if (random)
        chance.values.forEach(function (z) {
          f.plot.append(CBV.mark("cross", f.x(z[0]), f.y(z[1]), 4, "random"));
        });
      var marks = one.values.map(function (z, i) {
        var mark = CBV.mark("circle", f.x(z[0]), f.y(z[1]), 5, "one");
        mark.setAttribute("role", "img");
        mark.setAttribute("aria-label", "eigenvalue " + (i + 1) + ": " + said(z));
        f.plot.append(mark);
        return mark;
      });
      CBV.roving(marks, function (mark, i) {
        told.say(
          "Eigenvalue " +
            (i + 1) +
            " of head " +
            head +
            ": " +
            said(one.values[i]) +
            " times the largest size, " +
            CBV.number(one.largest) +
            " (units of the table's entries, logits)."
        );
      });
      return f.svg;
    }
    /* All heads of the model on one axis of scores; each is a button that chooses its head. */
    function scores(told) {
      var q = data[role].random.quantiles,
        width = CBV.width(place, 470),
        list = names(),
        row = 22;
      var f = CBV.frame(
        { width: width, height: list.length * row + 62 },
        {
          from: -1,
          to: 1,
          ticks: [-1, -0.5, 0, 0.5, PASS].map((v) => [v, CBV.number(v, 1)]),
          label: "copying score (−1 to 1)",
        },
        {
          from: list.length - 0.5,
          to: -0.5,
          ticks: list.map((h, i) => [i, h]),
          label: "head",
        },
        "Copying scores of all heads of " + role
      );
      f.svg.setAttribute("role", "group");
      f.plot.append(
        svg("rect", {
          x: f.x(q[0]),
          width: f.x(q[2]) - f.x(q[0]),
          y: f.top,
          height: f.bottom - f.top,
          class: "cbv-band",
        }),
        svg("line", { x1: f.x(PASS), x2: f.x(PASS), y1: f.top, y2: f.bottom, class: "cbv-now" })
      );
      var marks = list.map(function (h, i) {
        var mark = CBV.mark("circle", f.x(data[role].heads[h].score), f.y(i), 6, h === head ? "chosen" : "");
        mark.setAttribute("role", "button");
        mark.setAttribute(
          "aria-label",
          "head " + h + ", copying score " + CBV.number(data[role].heads[h].score)
        );
        function choose() {
          pick(h, true);
        }
        mark.addEventListener("click", choose);
        mark.addEventListener("keydown", function (event) {
          if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            choose();
          }
        });
        f.plot.append(mark);
        return mark;
      });
      CBV.roving(marks, function (mark, i) {
        var one = data[role].heads[list[i]];
        told.say(
          "Head " +
            list[i] +
            ": copying score " +
            CBV.number(one.score) +
            "; " +
            CBV.percent(one.top10) +
            " of frequent words in the top-10 of their own row. Enter shows its spectrum."
        );
      });
      return { svg: f.svg, marks: marks };
    }
    var drawn;
    function draw() {
      var one = data[role].heads[head],
        chance = data[role].random;
      var told = CBV.readout(
        "Point at a mark, or reach it with Tab and the arrow keys: its value is said here."
      );
      drawn = scores(told);
      out.replaceChildren(
        el(
          "dl",
          { class: "cbv-facts", id: "views-copying-facts" },
          [
            ["copying score", CBV.number(one.score)],
            [
              "random heads, 5 % to 95 %",
              CBV.number(chance.quantiles[0]) + " to " + CBV.number(chance.quantiles[2]),
            ],
            ["frequent words on top of their own row", CBV.percent(one.top1)],
            ["frequent words in its top-10", CBV.percent(one.top10)],
          ].map((pair) => el("div", {}, [el("dt", { text: pair[0] }), el("dd", { text: pair[1] })]))
        ),
        told.node,
        el("div", { class: "cbv-panels" }, [
          el("div", {}, [
            el("h2", { text: "Spectrum of head " + head }),
            plane(one, chance.first, told),
            el("p", { class: "cbv-note" }, [
              CBV.key("circle", "one", "head " + head),
              " ",
              random
                ? CBV.key("cross", "random", "one random head (score " + CBV.number(chance.first.score) + ")")
                : "",
            ]),
          ]),
          el("div", {}, [
            el("h2", { text: "All heads of " + role }),
            drawn.svg,
            el("p", {
              class: "cbv-note",
              text:
                "Grey band: 90 % of " +
                chance.heads +
                " heads with random weights. Dotted line: the pass mark of chapter 02. A circle chooses its head.",
            }),
          ]),
        ]),
        CBV.details("As tables", [
          CBV.scroll(
            "Scores",
            CBV.table(
              "All heads of " + role,
              ["head", "copying score", "top-1 share", "top-10 share"],
              names().map(function (h) {
                var o = data[role].heads[h];
                return [h, CBV.number(o.score), CBV.percent(o.top1), CBV.percent(o.top10)];
              })
            )
          ),
          CBV.scroll(
            "Eigenvalues",
            CBV.table(
              "Eigenvalues of head " + head + " over the largest size",
              ["number", "real", "imaginary"],
              one.values.map((z, i) => [String(i + 1), CBV.number(z[0]), CBV.number(z[1])])
            )
          ),
        ])
      );
    }
    function headField() {
      return CBV.select(
        "Head",
        "head",
        names().map((h) => [h, h]),
        head,
        function (h) {
          pick(h, false);
        }
      );
    }
    var headBox = headField();
    function renew() {
      var next = headField();
      headBox.replaceWith(next);
      headBox = next;
    }
    function pick(h, fromChart) {
      head = h;
      CBV.remember("head", h);
      if (fromChart) renew();
      draw();
      if (fromChart) drawn.marks[names().indexOf(h)].focus();
    }
    place.append(
      el("div", { class: "cbv-controls" }, [
        CBV.select(
          "Model",
          "model",
          roles.map((r) => [r, r]),
          role,
          function (value) {
            role = value;
            if (names().indexOf(head) < 0) head = names()[0];
            renew();
            draw();
          }
        ),
        headBox,
        CBV.checkbox("show a random head", "random", random, function (on) {
          random = on;
          draw();
        }),
      ]),
      out,
      CBV.provenance(
        all.made_with,
        " Read from weights; the frequent words are the " +
          CBV.count(all.config.frequent) +
          " most frequent of the training text."
      )
    );
    draw();
    CBV.onResize(draw);
  });
})();
