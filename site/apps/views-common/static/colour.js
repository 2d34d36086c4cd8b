/* Colours for every kind of sight: cividis for sizes, red and blue centred on zero for signs. */
(function () {
  "use strict";
  var CBV = (window.CBV = window.CBV || {});
  var CIVIDIS = [
    "#00224e",
    "#083370",
    "#35456c",
    "#4f576c",
    "#666970",
    "#7d7c78",
    "#948e77",
    "#aea371",
    "#c8b866",
    "#e5cf52",
    "#fee838",
  ];
  var SIGNED = [
    "#053061",
    "#2065ab",
    "#4393c3",
    "#90c4dd",
    "#d1e5f0",
    "#f7f6f6",
    "#fddbc7",
    "#f3a481",
    "#d6604d",
    "#b1182b",
    "#67001f",
  ];

  function parts(hex) {
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  }
  function mix(a, b, share) {
    var one = parts(a),
      two = parts(b);
    return (
      "#" +
      one
        .map((x, i) =>
          Math.round(x + (two[i] - x) * share)
            .toString(16)
            .padStart(2, "0")
        )
        .join("")
    );
  }
  function along(stops, share) {
    var at = Math.min(1, Math.max(0, share)) * (stops.length - 1),
      low = Math.floor(at);
    return low === stops.length - 1 ? stops[low] : mix(stops[low], stops[low + 1], at - low);
  }
  function luminance(hex) {
    var linear = parts(hex).map(function (x) {
      x /= 255;
      return x <= 0.04045 ? x / 12.92 : Math.pow((x + 0.055) / 1.055, 2.4);
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  }
  /* Black or white, whichever is easier to read; one of them always has a contrast of 4.5. */
  function ink(hex) {
    return luminance(hex) > 0.179 ? "#000000" : "#ffffff";
  }
  function both(hex) {
    return { back: hex, ink: ink(hex) };
  }

  CBV.sequential = (value, limit) => both(along(CIVIDIS, limit ? value / limit : 0));
  CBV.signed = (value, limit) => both(along(SIGNED, limit ? 0.5 + value / limit / 2 : 0.5));
  /* Behind text: nothing near zero, blue or (below zero) orange at the limit. */
  CBV.shade = function (value, limit) {
    if (!limit || Math.abs(value) < 0.05 * limit) return null;
    var page = CBV.dark() ? "#121212" : "#ffffff";
    var full = value > 0 ? (CBV.dark() ? "#56b4e9" : "#0072b2") : CBV.dark() ? "#e69f00" : "#d55e00";
    return both(mix(page, full, Math.min(1, Math.abs(value) / limit)));
  };
  CBV.paint = function (node, colours) {
    if (colours) node.style.cssText += "background:" + colours.back + ";color:" + colours.ink;
  };
  /* A strip with its two or three numbers, so that a colour can be read as a value. */
  CBV.legend = function (label, of, low, high, unit) {
    var n = 25,
      cells = [];
    for (var i = 0; i < n; i++) {
      var cell = CBV.el("span");
      cell.style.background = (of(low + ((high - low) * i) / (n - 1)) || { back: "transparent" }).back;
      cells.push(cell);
    }
    return CBV.el("div", { class: "cbv-legend" }, [
      CBV.el("span", { text: label }),
      CBV.el("span", { text: CBV.number(low, 2) }),
      CBV.el("span", { class: "cbv-strip", "aria-hidden": "true" }, cells),
      CBV.el("span", { text: CBV.number(high, 2) + (unit ? " " + unit : "") }),
    ]);
  };
})();
