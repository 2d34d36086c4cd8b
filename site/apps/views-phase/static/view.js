/* A training run with a slider over its snapshots: curves, and every head's scores at that step. */
(function () {
  "use strict";
  var CBV = window.CBV,
    el = CBV.el,
    svg = CBV.svg;
  var CHARTS = [
    { key: "loss", label: "loss (nats a token)", title: "Held-out loss", error: "loss_se" },
    {
      key: "icl",
      label: "late − early loss (nats)",
      title: "In-context score (lower is better)",
      error: "icl_se",
      zero: true,
    },
    {
      key: "previous_token",
      label: "share of attention",
      title: "Previous-token score of every head",
      heads: true,
      from: 0,
      to: 1,
    },
    {
      key: "prefix_matching",
      label: "share of attention",
      title: "Prefix matching of every head",
      heads: true,
      from: 0,
    },
    {
      key: "k_composition",
      label: "score (0 to 1)",
      title: "K-composition of every pair of heads",
      pairs: true,
      from: 0,
    },
  ];

  CBV.start("views-phase", function (place, data) {
    var logarithmic = CBV.recall("log", "0", ["0", "1"]) === "1";
    var roles = Object.keys(data.runs),
      role = CBV.recall("run", roles[0], roles),
      run,
      at,
      first,
      second;
    var charts = el("div", { class: "cbv-panels wide" }),
      now = el("div"),
      tables = el("div"),
      markers = [];
    var told = el("p", { class: "cbv-readout", "aria-live": "polite", id: "views-phase-told" });
    var picks = el("div", { class: "cbv-controls" });

    function best(key, step, layer) {
      var row = run[key][step][layer];
      return layer + "." + row.indexOf(Math.max.apply(null, row));
    }
    /* The two heads that are followed: at the end, first layer's best and last layer's best. */
    function start() {
      run = data.runs[role];
      var last = run.steps.length - 1,
        top = run.previous_token[last].length - 1;
      first = best("previous_token", last, 0);
      second = best("prefix_matching", last, top);
      var asked = Number(CBV.recall("snapshot", String(middle()), null));
      at = Math.min(last, Math.max(0, Math.round(asked) || 0));
    }
    /* Where the view opens: the first snapshot inside the phase change, or the middle one. */
    function middle() {
      if (!run.window.length) return Math.floor(run.steps.length / 2);
      return run.tokens.findIndex((t) => t >= run.window[0]);
    }
    function heads() {
      return run.previous_token[0].flatMap((row, layer) => row.map((_, h) => layer + "." + h));
    }
    function of(key, step, head) {
      var p = head.split(".").map(Number);
      return run[key][step][p[0]][p[1]];
    }
    function ordered() {
      // writer in layer 0, reader in layer 1, or null
      return run.k_composition && first[0] === "0" && second[0] === "1"
        ? [Number(first.slice(2)), Number(second.slice(2))]
        : null;
    }
    function million(i) {
      return CBV.number(run.tokens[i] / 1e6, 2) + " million tokens";
    }

    /* Million tokens, 0 to 1 along the axis; on the logarithmic one step 0 stands four times before 1. */
    function along(tokens) {
      var last = run.tokens[run.tokens.length - 1] / 1e6,
        unit = run.tokens[1] / 1e6;
      if (!logarithmic) return tokens / last;
      return tokens ? Math.log((4 * tokens) / unit) / Math.log((4 * last) / unit) : 0;
    }
    function ticks() {
      var last = run.tokens[run.tokens.length - 1] / 1e6;
      return logarithmic
        ? [
            [0, "0"],
            [0.01, "0.01"],
            [0.1, "0.1"],
            [1, "1"],
            [10, "10"],
          ]
        : CBV.axis(0, last, 5);
    }
    function series(chart) {
      if (chart.heads)
        return heads().map((h) => ({
          name: h,
          kind: h === first ? "one" : h === second ? "two" : "",
          values: run.steps.map((_, i) => of(chart.key, i, h)),
        }));
      if (!chart.pairs) return [{ name: chart.title, kind: "one", values: run[chart.key] }];
      var pair = ordered();
      return run[chart.key][0].flatMap((row, w) =>
        row.map((_, r) => ({
          name: "0." + w + " → 1." + r,
          kind: pair && w === pair[0] && r === pair[1] ? "one" : "",
          values: run[chart.key].map((t) => t[w][r]),
        }))
      );
    }
    function one(chart) {
      if (!run[chart.key])
        return el("div", {}, [
          el("h2", { text: chart.title }),
          el("p", {
            class: "cbv-note",
            text: "None: " + role + " has one layer, and K-composition takes two.",
          }),
        ]);
      var lines = series(chart).sort((a, b) => a.kind.length - b.kind.length);
      var low = CBV.phase.ends(data, chart)[0],
        high = CBV.phase.ends(data, chart)[1];
      var room = (high - low) * 0.06,
        y = {
          from: chart.from === undefined ? low - room : low,
          to: high + room,
          label: chart.label,
        };
      y.ticks = CBV.axis(y.from, y.to, 5);
      var f = CBV.frame(
        { width: CBV.width(place, 480), height: 250 },
        { ticks: ticks(), at: along, label: "tokens seen (millions)" },
        y,
        chart.title + " against tokens seen"
      );
      if (run.window.length) {
        var a = f.x(run.window[0] / 1e6),
          b = f.x(run.window[1] / 1e6);
        f.plot.append(
          svg("rect", { x: a, width: b - a, y: f.top, height: f.bottom - f.top, class: "cbv-band" })
        );
      }
      var seen = run.tokens.map((t) => t / 1e6);
      if (chart.error) f.plot.append(CBV.phase.ribbon(run, chart, seen, f));
      if (chart.zero) CBV.phase.score(data, run, seen, f);
      lines.forEach(function (l) {
        f.plot.append(CBV.path(seen, l.values, f.x, f.y, l.kind));
      });
      var line = svg("line", { y1: f.top, y2: f.bottom, class: "cbv-now" });
      var dots = lines
        .filter((l) => l.kind)
        .map((l) => ({
          node: CBV.mark(l.kind === "two" ? "square" : "circle", 0, 0, 6, l.kind),
          line: l,
        }));
      f.plot.append(line);
      dots.forEach(function (d) {
        f.plot.append(d.node);
      });
      markers.push({ frame: f, line: line, dots: dots });
      f.svg.dataset.key = chart.key;
      var note = CBV.phase.aside(data, run, chart);
      return el("div", {}, [
        el("h2", { text: chart.title }),
        f.svg,
        note ? el("p", { class: "cbv-note", text: note }) : null,
      ]);
    }
    function move() {
      var x = run.tokens[at] / 1e6;
      markers.forEach(function (m) {
        m.line.setAttribute("x1", m.frame.x(x));
        m.line.setAttribute("x2", m.frame.x(x));
        m.dots.forEach(function (d) {
          d.node.setAttribute(
            "transform",
            "translate(" + m.frame.x(x).toFixed(1) + " " + m.frame.y(d.line.values[at]).toFixed(1) + ")"
          );
        });
      });
      var pair = ordered();
      told.textContent =
        "Step " +
        CBV.count(run.steps[at]) +
        ", " +
        million(at) +
        ": loss " +
        CBV.phase.pm(run.loss[at], run.loss_se[at]) +
        ", in-context score " +
        CBV.phase.pm(run.icl[at], run.icl_se[at]) +
        "; head " +
        first +
        " previous-token " +
        CBV.number(of("previous_token", at, first)) +
        "; head " +
        second +
        " prefix matching " +
        CBV.number(of("prefix_matching", at, second)) +
        (pair
          ? "; K-composition " +
            first +
            " → " +
            second +
            " " +
            CBV.number(run.k_composition[at][pair[0]][pair[1]])
          : "") +
        ".";
      slider.setAttribute("aria-valuetext", "step " + run.steps[at] + ", " + million(at));
      shown();
    }
    function heat(key, title, rowName, limit) {
      var values = run[key][at];
      var made = CBV.heat({
        caption: title,
        name: key,
        columns: values[0].map((_, h) => String(h)),
        rows: values.map((_, i) => rowName + i),
        values: values,
        words: (v) => v.toFixed(2).replace(/^0/, ""),
        colour: (v) => CBV.sequential(v, limit),
      });
      return CBV.scroll(title, made.table);
    }
    function shown() {
      var most = run.k_composition ? CBV.largest(run.k_composition.flat()) : 0;
      now.replaceChildren(
        el("h2", { text: "Every head at step " + CBV.count(run.steps[at]) }),
        el("div", { class: "cbv-panels" }, [
          el("div", {}, [
            heat("previous_token", "previous-token score of head …", "layer ", 1),
            heat("prefix_matching", "prefix matching of head …", "layer ", 1),
            CBV.legend("share of attention:", (v) => CBV.sequential(v, 1), 0, 1, ""),
          ]),
          most
            ? el("div", {}, [
                heat("k_composition", "K-composition into the key of 1. …", "0.", most),
                CBV.legend("score:", (v) => CBV.sequential(v, most), 0, most, ""),
              ])
            : null,
        ])
      );
    }
    var slider = el("input", {
      type: "range",
      id: "views-phase-slider",
      min: "0",
      step: "1",
      oninput: function () {
        at = Number(slider.value);
        CBV.remember("snapshot", String(at));
        move();
      },
    });
    var legend = el("p", { class: "cbv-legend" });
    function draw() {
      markers = [];
      charts.replaceChildren.apply(charts, CHARTS.map(one));
      legend.replaceChildren(
        CBV.key(
          "circle",
          "one",
          "head " +
            first +
            (ordered() ? "; in the last chart the pair " + first + " → " + second : "") +
            "; in the first two the model"
        ),
        CBV.key("square", "two", "head " + second),
        "grey lines: all other heads or pairs; " +
          (run.window.length
            ? "grey band: phase change, as chapter 06 finds it"
            : "no grey band: " +
              (run["why no window"]
                ? "chapter 06 finds no phase change here: " + run["why no window"]
                : "chapter 06 does not look for a phase change in this run")) +
          ". Axes are the same for every run."
      );
      tables.replaceChildren(
        CBV.details(
          "As a table",
          CBV.scroll(
            "Curves",
            CBV.table(
              "Snapshots of " + role,
              [
                "step",
                "million tokens",
                "loss (nats)",
                "in-context score (nats)",
                first + " previous token",
                second + " prefix matching",
              ],
              run.steps.map((s, i) => [
                CBV.count(s),
                CBV.number(run.tokens[i] / 1e6),
                CBV.number(run.loss[i]),
                CBV.number(run.icl[i]),
                CBV.number(of("previous_token", i, first)),
                CBV.number(of("prefix_matching", i, second)),
              ])
            )
          )
        )
      );
      slider.max = String(run.steps.length - 1);
      slider.value = String(at);
      move();
    }
    function field(label, key, value, change) {
      return CBV.select(
        label,
        key,
        heads().map((h) => [h, h]),
        value,
        function (v) {
          change(v);
          draw();
        }
      );
    }
    var fields = [el("div"), el("div")];
    function renew() {
      var next = [
        field("● Blue head", "first", first, function (v) {
          first = v;
        }),
        field("■ Orange head", "second", second, function (v) {
          second = v;
        }),
      ];
      fields.forEach(function (old, i) {
        old.replaceWith(next[i]);
      });
      fields = next;
    }
    start();
    first = CBV.recall("first", first, heads());
    second = CBV.recall("second", second, heads());
    picks.append(
      CBV.select(
        "Training run",
        "run",
        roles.map((r) => [r, r]),
        role,
        function (value) {
          role = value;
          start();
          CBV.remember("first", first);
          CBV.remember("second", second);
          renew();
          draw();
        }
      ),
      fields[0],
      fields[1],
      CBV.checkbox("logarithmic axis", "log", logarithmic, function (on) {
        logarithmic = on;
        draw();
      }),
      el("div", { class: "cbv-field cbv-slider" }, [
        el("label", { for: slider.id, text: "Snapshot (arrow keys move it)" }),
        slider,
      ])
    );
    renew();
    place.append(
      el("div", { class: "cbv-sticky" }, [picks, told]),
      legend,
      charts,
      now,
      tables,
      CBV.provenance(data.made_with, " The curves are in weights/curves/.")
    );
    CBV.withTheme(draw);
    CBV.onResize(draw);
  });
})();
