/* Axes, lines and ticks in SVG. Sizes are in units of the viewBox; the page scales them. */
(function () {
  "use strict";
  var CBV = (window.CBV = window.CBV || {});

  CBV.scale = (from, to, low, high) => (value) =>
    from === to ? (low + high) / 2 : low + ((value - from) / (to - from)) * (high - low);
  /* About n round numbers between two ends: steps of 1, 2 or 5 times a power of ten. */
  CBV.ticks = function (from, to, n) {
    var rough = (to - from) / n || 1,
      power = Math.pow(10, Math.floor(Math.log10(rough)));
    var step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    var out = [];
    for (var i = Math.ceil(from / step - 1e-9); i * step <= to + 1e-9 * step; i++)
      out.push(Number((i * step).toPrecision(12)));
    return out;
  };
  /* Ticks with their words: all with as many decimals as the step between them needs. */
  CBV.axis = function (from, to, n) {
    var at = CBV.ticks(from, to, n),
      step = at.length > 1 ? at[1] - at[0] : 1;
    var decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    return at.map((v) => [v, v === 0 ? "0" : v.toFixed(decimals).replace("-", "−")]);
  };
  function text(x, y, words, anchor, more) {
    return CBV.svg("text", Object.assign({ x: x, y: y, "text-anchor": anchor, text: words }, more || {}));
  }

  /* A frame with both axes. box: {width, height}; x, y: {from, to, ticks: [[value, words], …],
     label, at: scale or null}. Gives the svg, the plot group and the two scales. */
  CBV.frame = function (box, x, y, label) {
    var left = 62,
      right = box.width - 14,
      top = 14,
      bottom = box.height - 44;
    var atX = x.at ? (v) => left + x.at(v) * (right - left) : CBV.scale(x.from, x.to, left, right);
    var atY = CBV.scale(y.from, y.to, bottom, top);
    var svg = CBV.svg("svg", {
      viewBox: "0 0 " + box.width + " " + box.height,
      class: "cbv-chart",
      role: "img",
      "aria-label": label,
    });
    svg.style.maxWidth = box.width + "px";
    x.ticks.forEach(function (t) {
      svg.append(
        CBV.svg("line", { x1: atX(t[0]), x2: atX(t[0]), y1: top, y2: bottom, class: "cbv-grid" }),
        text(atX(t[0]), bottom + 16, t[1], "middle")
      );
    });
    y.ticks.forEach(function (t) {
      svg.append(
        CBV.svg("line", { x1: left, x2: right, y1: atY(t[0]), y2: atY(t[0]), class: "cbv-grid" }),
        text(left - 6, atY(t[0]) + 4, t[1], "end")
      );
    });
    svg.append(
      text((left + right) / 2, box.height - 8, x.label, "middle"),
      text(0, 0, y.label, "middle", {
        transform: "translate(14 " + (top + bottom) / 2 + ") rotate(-90)",
      })
    );
    var plot = CBV.svg("g");
    svg.append(plot);
    return {
      svg: svg,
      plot: plot,
      x: atX,
      y: atY,
      left: left,
      right: right,
      top: top,
      bottom: bottom,
    };
  };
  CBV.path = function (xs, ys, atX, atY, kind) {
    var d = xs.map((x, i) => (i ? "L" : "M") + atX(x).toFixed(1) + " " + atY(ys[i]).toFixed(1)).join("");
    return CBV.svg("path", { d: d, class: "cbv-line " + kind });
  };
  /* Markers repeat what colours say: circle, square, triangle, diamond. */
  CBV.mark = function (shape, x, y, size, kind) {
    var s = size,
      d = {
        square:
          "M" +
          [
            [-s, -s],
            [s, -s],
            [s, s],
            [-s, s],
          ].join("L") +
          "Z",
        triangle:
          "M" +
          [
            [0, -s * 1.2],
            [s * 1.1, s],
            [-s * 1.1, s],
          ].join("L") +
          "Z",
        diamond:
          "M" +
          [
            [0, -s * 1.3],
            [s * 1.3, 0],
            [0, s * 1.3],
            [-s * 1.3, 0],
          ].join("L") +
          "Z",
        cross: "M" + -s + " " + -s + "L" + s + " " + s + "M" + s + " " + -s + "L" + -s + " " + s,
      }[shape];
    var at = "translate(" + x.toFixed(1) + " " + y.toFixed(1) + ")";
    return d
      ? CBV.svg("path", { d: d, transform: at, class: "cbv-mark " + kind })
      : CBV.svg("circle", { r: s, transform: at, class: "cbv-mark " + kind });
  };
  /* A mark and what it stands for. */
  CBV.key = function (shape, kind, words) {
    var box = { viewBox: "-12 -8 24 16", "aria-hidden": "true" };
    return CBV.el("span", { class: "cbv-key" }, [CBV.svg("svg", box, CBV.mark(shape, 0, 0, 5, kind)), words]);
  };
})();
