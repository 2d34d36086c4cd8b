// Arithmetic on Float32Arrays in row-major order: half precision, products of matrices, softmax.
//
// This file and those below it (model, reading, desk) are "parts": functions that add to one plain
// object, `core`. A page opened from disk may start no worker from a file, so worker.js hands the
// source text of the parts to a worker. Where even that is refused, they run in the page itself.
(window.Explorer = window.Explorer || { parts: [] }).parts.push(function math(core) {
  "use strict";

  function half(bits) {
    const sign = bits & 0x8000 ? -1 : 1, e = (bits >> 10) & 31, f = bits & 1023;
    if (e === 0) return sign * f * 2 ** -24;
    return e === 31 ? (f ? NaN : sign * Infinity) : sign * (1 + f / 1024) * 2 ** (e - 15);
  }

  // Numbers of half precision (their 16 bits) as Float32Array; 65,536 values are looked up.
  let table = null;
  core.decodeHalf = function decodeHalf(bits) {
    table = table || Float32Array.from({ length: 65536 }, (_, i) => half(i));
    const out = new Float32Array(bits.length);
    for (let i = 0; i < bits.length; i++) out[i] = table[bits[i]];
    return out;
  };

  // C [n, m] = A [n, k] B [k, m], in tiles of four rows and four columns: sixteen sums stay in
  // registers while k is walked once. At the edges the last row or column is simply done again.
  core.matmul = function matmul(A, B, n, k, m) {
    const C = new Float32Array(n * m);
    for (let j = 0; j < m; j += 4) {
      const j1 = Math.min(j + 1, m - 1), j2 = Math.min(j + 2, m - 1), j3 = Math.min(j + 3, m - 1);
      for (let i = 0; i < n; i += 4) {
        const i1 = Math.min(i + 1, n - 1), i2 = Math.min(i + 2, n - 1), i3 = Math.min(i + 3, n - 1);
        const p = i * k, q = i1 * k, r = i2 * k, s = i3 * k;
        let p0 = 0, p1 = 0, p2 = 0, p3 = 0, q0 = 0, q1 = 0, q2 = 0, q3 = 0;
        let r0 = 0, r1 = 0, r2 = 0, r3 = 0, s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (let l = 0, at = 0; l < k; l++, at += m) {
          const b0 = B[at + j], b1 = B[at + j1], b2 = B[at + j2], b3 = B[at + j3];
          const ap = A[p + l], aq = A[q + l], ar = A[r + l], as = A[s + l];
          p0 += ap * b0; p1 += ap * b1; p2 += ap * b2; p3 += ap * b3;
          q0 += aq * b0; q1 += aq * b1; q2 += aq * b2; q3 += aq * b3;
          r0 += ar * b0; r1 += ar * b1; r2 += ar * b2; r3 += ar * b3;
          s0 += as * b0; s1 += as * b1; s2 += as * b2; s3 += as * b3;
        }
        const row = (at, x0, x1, x2, x3) => {
          C[at * m + j] = x0;
          C[at * m + j1] = x1;
          C[at * m + j2] = x2;
          C[at * m + j3] = x3;
        };
        row(i, p0, p1, p2, p3);
        row(i1, q0, q1, q2, q3);
        row(i2, r0, r1, r2, r3);
        row(i3, s0, s1, s2, s3);
      }
    }
    return C;
  };

  // Rows of B [k, m] against one vector: out [k] = B v.
  core.matvec = function matvec(B, v, k, m) {
    const out = new Float32Array(k);
    for (let l = 0; l < k; l++) {
      let s = 0;
      for (let j = 0; j < m; j++) s += B[l * m + j] * v[j];
      out[l] = s;
    }
    return out;
  };

  core.dot = function dot(a, b) {
    let s = 0;
    for (let i = 0; i < a.length; i++) s += a[i] * b[i];
    return s;
  };

  core.softmax = function softmax(logits) {
    let most = -Infinity, sum = 0;
    for (const x of logits) if (x > most) most = x;
    const p = logits.map((x) => Math.exp(x - most));
    for (const x of p) sum += x;
    return p.map((x) => x / sum);
  };

  // Places of the `count` largest values, the largest first; equal values in the order of places.
  core.largest = function largest(values, count) {
    const best = [];
    for (let i = 0; i < values.length; i++) {
      if (best.length === count && values[i] <= values[best[count - 1]]) continue;
      let at = best.length;
      while (at > 0 && values[i] > values[best[at - 1]]) at--;
      best.splice(at, 0, i);
      if (best.length > count) best.pop();
    }
    return best;
  };

  // erf by Abramowitz and Stegun 7.1.26, off by at most 1.5e-7.
  function erf(x) {
    const t = 1 / (1 + 0.3275911 * Math.abs(x));
    const poly = (((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t;
    const y = 1 - (poly + 0.254829592) * t * Math.exp(-x * x);
    return x < 0 ? -y : y;
  }
  core.gelu = (z) => 0.5 * z * (1 + erf(z / Math.SQRT2));
});
