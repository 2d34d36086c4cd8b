// The course's small models: one forward pass, and the same pass with parts of it cut.
//
// Rows, as in the course: x W. No norm, no attention biases; positions are added to the inputs of
// queries and keys only. build.py refuses any other model.
window.Explorer.parts.push(function model(core) {
  "use strict";

  function sinusoid(cfg) {
    const d = cfg.d_model, W = new Float32Array(cfg.n_ctx * d);
    for (let t = 0; t < cfg.n_ctx; t++)
      for (let i = 0; i < d; i += 2) {
        const angle = t * cfg.pos_base ** (-i / d);
        W[t * d + i] = cfg.pos_amplitude * Math.sin(angle);
        W[t * d + i + 1] = cfg.pos_amplitude * Math.cos(angle);
      }
    return W;
  }

  // W_U minus its mean over the vocabulary: no probability changes, and a logit can be attributed.
  function centre(W, rows, columns) {
    for (let i = 0; i < rows; i++) {
      let sum = 0;
      for (let j = 0; j < columns; j++) sum += W[i * columns + j];
      for (let j = 0; j < columns; j++) W[i * columns + j] -= sum / columns;
    }
  }

  function plus(x, y, n) {
    const out = new Float32Array(x.length);
    for (let i = 0; i < n; i++) out[i] = x[i] + y[i];
    return out;
  }

  core.Model = class Model {
    // header: {config, tensors: {name: {shape, offset}}}; bits: Uint16Array of half-precision numbers
    constructor(header, bits) {
      this.cfg = header.config;
      this.W = {};
      for (const [name, { shape, offset }] of Object.entries(header.tensors)) {
        const size = shape.reduce((a, b) => a * b, 1);
        this.W[name] = core.decodeHalf(bits.subarray(offset, offset + size));
      }
      centre(this.W["unembed.W_U"], this.cfg.d_model, this.cfg.d_vocab);
      this.W_pos = sinusoid(this.cfg);
      this.grams = {};
    }

    all(name, layer) {
      return this.W[`blocks.${layer}.attn.${name}`];
    }

    // One head's matrix; all four of them have d_model * d_head entries.
    head(name, layer, h) {
      const size = this.cfg.d_model * this.cfg.d_head;
      return this.all(name, layer).subarray(h * size, (h + 1) * size);
    }

    embedding(id) {
      const d = this.cfg.d_model;
      return this.W["embed.W_E"].subarray(id * d, (id + 1) * d);
    }

    // One pass over ids. options:
    //   off      ["0.3", ...] heads whose write is taken away (zero)
    //   edges    [{from: "0.3", to: "1.6", into: "k"}] writes taken out of one input of one head only
    //   patterns [layer] Float32Array [head, n, n] to use in place of what the scores say
    // Returns {ids, n, patterns, sizes, z, mlp, stream}: patterns[layer] [head, n, n];
    // sizes[layer] [head, n], the length of each value once W_O has moved it; z[layer] [n, head, e];
    // mlp[layer] [n, d_model] without its output bias; stream [n, d_model].
    run(ids, options = {}) {
      const { cfg } = this, n = ids.length, d = cfg.d_model;
      if (n < 1 || n > cfg.n_ctx)
        throw new RangeError(`${n} tokens; this model reads 1 to ${cfg.n_ctx}`);
      const out = { ids: ids.slice(), n, patterns: [], sizes: [], z: [], mlp: [] };
      let x = new Float32Array(n * d);
      ids.forEach((id, t) => x.set(this.embedding(id), t * d));
      const written = {}; // "layer.head" -> [n, d], kept where a cut edge starts
      for (let l = 0; l < cfg.n_layers; l++) {
        this.attend(x, l, n, options, written, out);
        const write = core.matmul(out.z[l], this.all("W_O", l), n, cfg.n_heads * cfg.d_head, d);
        for (let i = 0; i < x.length; i++) x[i] += write[i];
        if (cfg.d_mlp) this.think(x, l, n, out);
      }
      out.stream = x;
      return out;
    }

    // The heads of one layer: fills patterns, sizes and z, and `written` for the edges cut later.
    attend(x, l, n, options, written, out) {
      const { d_model: d, d_head: e, n_heads: H } = this.cfg, edges = options.edges || [];
      const A = new Float32Array(H * n * n), sizes = new Float32Array(H * n);
      const z = new Float32Array(n * H * e), placed = plus(x, this.W_pos, n * d);
      const given = options.patterns && options.patterns[l];
      for (let h = 0; h < H; h++) {
        const name = `${l}.${h}`;
        const input = (into, from) => {
          const cut = edges.filter((c) => c.to === name && c.into === into);
          if (!cut.length) return from;
          const y = Float32Array.from(from);
          for (const c of cut) for (let i = 0; i < y.length; i++) y[i] -= written[c.from][i];
          return y;
        };
        const project = (W, y) => core.matmul(y, this.head(W, l, h), n, d, e);
        const pattern = A.subarray(h * n * n, (h + 1) * n * n);
        if (given) pattern.set(given.subarray(h * n * n, (h + 1) * n * n));
        else scoresToPattern(
          project("W_Q", input("q", placed)), project("W_K", input("k", placed)), n, e, pattern);
        const V = project("W_V", input("v", x));
        this.lengths(V, l, h, n, sizes);
        if (!(options.off || []).includes(name)) mix(pattern, V, n, e, H, h, z);
        if (edges.some((c) => c.from === name)) written[name] = this.write(z, l, h, n);
      }
      out.patterns.push(A);
      out.sizes.push(sizes);
      out.z.push(z);
    }

    // What one head writes at all positions, [n, d_model].
    write(z, l, h, n) {
      const { d_model: d, d_head: e, n_heads: H } = this.cfg, own = new Float32Array(n * e);
      for (let t = 0; t < n; t++)
        own.set(z.subarray((t * H + h) * e, (t * H + h + 1) * e), t * e);
      return core.matmul(own, this.head("W_O", l, h), n, e, d);
    }

    // |v W_O| for each position, by the small table W_O W_O^T: its square is v (W_O W_O^T) v.
    lengths(V, l, h, n, sizes) {
      const { d_model: d, d_head: e } = this.cfg, W_O = this.head("W_O", l, h);
      const name = `${l}.${h}`;
      if (!this.grams[name]) {
        const G = (this.grams[name] = new Float32Array(e * e));
        for (let a = 0; a < e; a++)
          for (let b = 0; b < e; b++)
            G[a * e + b] = core.dot(W_O.subarray(a * d, (a + 1) * d), W_O.subarray(b * d, (b + 1) * d));
      }
      const moved = core.matmul(V, this.grams[name], n, e, e);
      for (let t = 0; t < n; t++) {
        let s = 0;
        for (let c = 0; c < e; c++) s += moved[t * e + c] * V[t * e + c];
        sizes[h * n + t] = Math.sqrt(Math.max(0, s));
      }
    }

    think(x, l, n, out) {
      const { d_model: d, d_mlp: m, act } = this.cfg;
      const W = (name) => this.W[`blocks.${l}.mlp.${name}`];
      const post = core.matmul(x, W("W_in"), n, d, m), b_in = W("b_in"), b_out = W("b_out");
      for (let t = 0; t < n; t++)
        for (let j = 0; j < m; j++) {
          const pre = post[t * m + j] + b_in[j];
          post[t * m + j] = act === "gelu" ? core.gelu(pre) : Math.max(0, pre);
        }
      const write = core.matmul(post, W("W_out"), n, m, d);
      for (let t = 0; t < n; t++)
        for (let i = 0; i < d; i++) x[t * d + i] += write[t * d + i] + b_out[i];
      out.mlp.push(write);
    }

    // The centred logits at one position of a pass.
    logits(pass, at) {
      const d = this.cfg.d_model, x = pass.stream.subarray(at * d, (at + 1) * d);
      return core.matmul(x, this.W["unembed.W_U"], 1, d, this.cfg.d_vocab);
    }
  };

  // A = softmax(Q K^T / sqrt(d_head)), causal, written into A.
  function scoresToPattern(Q, K, n, e, A) {
    const scale = 1 / Math.sqrt(e);
    for (let i = 0; i < n; i++) {
      let most = -Infinity, sum = 0;
      for (let j = 0; j <= i; j++) {
        let s = 0;
        for (let c = 0; c < e; c++) s += Q[i * e + c] * K[j * e + c];
        A[i * n + j] = s * scale;
        if (A[i * n + j] > most) most = A[i * n + j];
      }
      for (let j = 0; j <= i; j++) sum += A[i * n + j] = Math.exp(A[i * n + j] - most);
      for (let j = 0; j <= i; j++) A[i * n + j] /= sum;
    }
  }

  // z = A V of one head, into its own columns of z [n, head, e].
  function mix(A, V, n, e, H, h, z) {
    for (let i = 0; i < n; i++) {
      const at = (i * H + h) * e;
      for (let j = 0; j <= i; j++) {
        const a = A[i * n + j];
        for (let c = 0; c < e; c++) z[at + c] += a * V[j * e + c];
      }
    }
  }
});
