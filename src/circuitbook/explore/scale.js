// Numbers to colours and words. The patterns come as two base-64 digits for each entry.
"use strict";
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const CIVIDIS = ["00224e", "083370", "35456c", "4f576c", "666970", "7d7c78", "948e77", "aea371",
  "c8b866", "e5cf52", "fee838"].map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));

// The lower triangle, row by row: rows[query][key], with key <= query.
function unpack(text, n) {
  const value = new Map([...DIGITS].map((digit, i) => [digit, i]));
  const rows = [];
  let at = 0;
  for (let q = 0; q < n; q++) {
    const row = [];
    for (let k = 0; k <= q; k++, at += 2) {
      row.push((64 * value.get(text[at]) + value.get(text[at + 1])) / 4095);
    }
    rows.push(row);
  }
  return rows;
}

// Each key's share of the sum of A * |v W_O| over the row, so that rows still sum to one.
function weighted(rows, size) {
  return rows.map((row) => {
    const moved = row.map((a, k) => a * size[k]);
    const sum = moved.reduce((a, b) => a + b, 0);
    return moved.map((x) => (sum ? x / sum : 0));
  });
}

function colour(x) {
  const at = Math.min(1, Math.max(0, x)) * (CIVIDIS.length - 1);
  const i = Math.min(CIVIDIS.length - 2, Math.floor(at));
  return CIVIDIS[i].map((c, j) => Math.round(c + (at - i) * (CIVIDIS[i + 1][j] - c)));
}

// Black or white, whichever stands out more against this colour.
function ink(rgb) {
  const [r, g, b] = rgb.map((c) => {
    const s = c / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

function short(x) {
  return x < 0.0005 ? "0" : x.toFixed(x < 0.0995 ? 3 : 2);
}

function percent(p) {
  return p < 0.001 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`;
}

function signed(x) {
  return (x < 0 ? "−" : "+") + Math.abs(x).toFixed(2);
}

// A new element: attributes by name, and children that are text or elements. Never HTML.
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
