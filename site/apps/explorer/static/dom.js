// Small helpers: elements, numbers and tokens as a reader should see them, and colours.
(function () {
  "use strict";

  const STOPS =
    "00224e 002e6a 1a386f 32436d 434e6c 535a6d 61656f 6f7073 7d7c78 8c8878 9b9476 aba072 bcae6c " +
    "cdbb63 dec958 f0d846 fee838"; // cividis, as in the figures of the course
  const CIVIDIS = STOPS.split(" ").map((hex) =>
    [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16))
  );

  // A colour of cividis for a number from 0 to 1, as [red, green, blue].
  Explorer.cividis = function cividis(x) {
    const at = Math.min(1, Math.max(0, x)) * (CIVIDIS.length - 1), i = Math.floor(at);
    const a = CIVIDIS[i], b = CIVIDIS[Math.min(i + 1, CIVIDIS.length - 1)];
    return a.map((v, c) => Math.round(v + (at - i) * (b[c] - v)));
  };

  // Relative luminance, as the accessibility guidelines define it.
  function luminance(rgb) {
    const [r, g, b] = rgb.map((v) =>
      v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4
    );
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  // Black or white, whichever stands out more: its contrast is never below 4.5 to 1.
  Explorer.ink = function ink(rgb) {
    const y = luminance(rgb);
    return (y + 0.05) / 0.05 >= 1.05 / (y + 0.05) ? "#000" : "#fff";
  };

  // el("button", {type: "button", onclick: f, "aria-pressed": true}, "text", child, ...)
  Explorer.el = function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true && !name.startsWith("aria-")) node.setAttribute(name, "");
      else if (value !== false || name.startsWith("aria-")) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  };

  Explorer.byId = (id) => document.getElementById(`cx-${id}`);

  // A table with a heading for each column; cells are texts or elements, the first one heads its row.
  Explorer.table = function table(caption, heads, rows, attributes) {
    const { el } = Explorer;
    const line = (cells) =>
      el("tr", {}, ...cells.map((x, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, x)));
    return el("table", attributes || {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...heads.map((x) => el("th", { scope: "col" }, x)))),
      el("tbody", {}, ...rows.map(line)));
  };

  const SIGNS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" };
  // Signs that cannot be seen, or that turn the text around, are spelled as their code points.
  const HIDDEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]/g;

  Explorer.shown = function shown(text, bos) {
    if (text === bos) return "start";
    return text.replace(/[ \n\t\r]/g, (x) => SIGNS[x]).replace(HIDDEN, (x) => {
      return `U+${x.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    });
  };

  Explorer.signed = (x, digits = 2) => {
    const text = Math.abs(x).toFixed(digits);
    if (Number(text) === 0) return Number(0).toFixed(digits);
    return (x < 0 ? "−" : "+") + text;
  };
  Explorer.share = (p) => (p > 0 && p < 0.0005 ? "<0.001" : p.toFixed(3));
})();
