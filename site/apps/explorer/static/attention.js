// Numbers behind the colours: attention of one head from or to one token, plain or weighted.
(function () {
  "use strict";

  // Row `query` of a head: where it looks. Weighted: A times the length of the moved value, |v W_O|,
  // divided by the row's sum, so that a row says which share of what is moved comes from where.
  Explorer.row = function row(view, layer, head, query, weighted) {
    const { n } = view, at = (head * n + query) * n;
    const A = view.patterns[layer].subarray(at, at + n);
    if (!weighted) return A;
    const sizes = view.sizes[layer].subarray(head * n, (head + 1) * n);
    const moved = A.map((a, j) => a * sizes[j]);
    const sum = moved.reduce((a, b) => a + b, 0);
    return sum > 0 ? moved.map((x) => x / sum) : moved;
  };

  // One number for each token; NaN where causality forbids an edge. direction "out": where the
  // token looks; "in": which later tokens look at it.
  Explorer.attention = function attention(view, layer, head, token, direction, weighted) {
    const out = new Float32Array(view.n).fill(NaN);
    if (!view.patterns[layer]) return out; // another model is on its way, and this one has no such head
    if (direction === "out") {
      out.set(Explorer.row(view, layer, head, token, weighted).subarray(0, token + 1));
      return out;
    }
    for (let i = token; i < view.n; i++) out[i] = Explorer.row(view, layer, head, i, weighted)[token];
    return out;
  };

  // Places of the largest numbers, NaN left out.
  Explorer.strongest = function strongest(values, count) {
    return Array.from(values.keys())
      .filter((i) => !Number.isNaN(values[i]))
      .sort((a, b) => values[b] - values[a])
      .slice(0, count);
  };
})();
