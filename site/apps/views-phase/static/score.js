/* Errors of the curves, axes that all runs share, and what the in-context score needs to be read. */
(function () {
  "use strict";
  var CBV = (window.CBV = window.CBV || {}),
    svg = CBV.svg;

  /* The ends of an axis: the same for every run, so that two runs can be compared by eye. */
  function ends(data, chart) {
    var all = Object.values(data.runs).flatMap(function (r) {
      var values = (r[chart.key] || []).flat(2),
        errors = chart.error ? r[chart.error] : values.map(() => 0);
      var found = values.flatMap((v, i) => [v - errors[i], v + errors[i]]);
      return chart.zero && r.final
        ? found.concat(0, r.final.mean - r.final.se, r.final.mean + r.final.se)
        : found;
    });
    return [
      chart.from === undefined ? Math.min.apply(null, all) : chart.from,
      chart.to || Math.max.apply(null, all),
    ];
  }
  /* One standard error to both sides of a curve. */
  function ribbon(run, chart, seen, f) {
    var values = run[chart.key],
      errors = run[chart.error];
    function side(sign) {
      return seen.map((x, i) => f.x(x).toFixed(1) + " " + f.y(values[i] + sign * errors[i]).toFixed(1));
    }
    return svg("path", {
      class: "cbv-ribbon",
      d: "M" + side(1).concat(side(-1).reverse()).join("L") + "Z",
    });
  }
  /* What the score needs to be read: zero, both directions, no attention, and chapter 00's value. */
  function score(data, run, seen, f) {
    function words(value, text, shift) {
      return svg("text", { x: f.left + 6, y: f.y(value) + shift, text: text });
    }
    f.plot.append(
      svg("line", { x1: f.left, x2: f.right, y1: f.y(0), y2: f.y(0), class: "cbv-zero" }),
      words(0, "below 0: late tokens are easier", 18),
      CBV.path(seen, data.bare.icl, f.x, f.y, "bare")
    );
    if (!run.final) return;
    var x = f.right - 5,
      low = f.y(run.final.mean - run.final.se),
      high = f.y(run.final.mean + run.final.se);
    f.plot.append(
      svg("line", { x1: x, x2: x, y1: low, y2: high, class: "cbv-error" }),
      CBV.mark("diamond", x, f.y(run.final.mean), 6, "one")
    );
  }
  function aside(data, run, chart) {
    if (chart.error && !chart.zero)
      return "Shaded: one standard error, over " + data.windows + " windows, by document.";
    if (!chart.zero) return "";
    var other = data["chapter 00"],
      last = run.icl.length - 1;
    return (
      "Shaded: one standard error. Every snapshot reads the same " +
      data.windows +
      " held-out windows: few, so the score is noisy. Chapter 00 reads another draw of " +
      other.windows +
      " windows from " +
      other.documents +
      " documents. " +
      (run.final
        ? "There the trained model scores " +
          pm(run.final.mean, run.final.se) +
          " (diamond); here its last snapshot scores " +
          pm(run.icl[last], run.icl_se[last]) +
          ". The level depends on the windows. "
        : "It does not read this run. ") +
      "Green dots: " +
      data.bare.role +
      ", which has no attention and sees one token, scores " +
      CBV.number(data.bare.icl[last]) +
      " at the end on these windows: here late tokens are harder for it. That the curve rises early is no loss of skill: read its distance from the dots."
    );
  }
  function pm(mean, se) {
    return CBV.number(mean) + " ± " + CBV.number(se, 2) + " nats";
  }
  CBV.phase = { ends: ends, ribbon: ribbon, score: score, aside: aside, pm: pm };
})();
