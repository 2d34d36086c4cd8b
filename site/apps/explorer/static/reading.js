// What is read off a pass: probabilities, direct contributions, and a head's rows for one token.
window.Explorer.parts.push(function reading(core) {
  "use strict";

  const TOP = 10;

  // The column of W_U that makes one token's centred logit. [d_model]
  function column(model, token) {
    const { d_model: d, d_vocab: v } = model.cfg, U = model.W["unembed.W_U"];
    return Float32Array.from({ length: d }, (_, i) => U[i * v + token]);
  }

  // The parts of one token's centred logit at one position, in nats: they add up to the logit.
  core.contributions = function contributions(model, pass, at, token) {
    const { cfg } = model, d = cfg.d_model, e = cfg.d_head, H = cfg.n_heads;
    const u = column(model, token), parts = [];
    parts.push({ name: "embedding", value: core.dot(model.embedding(pass.ids[at]), u) });
    let bias = 0;
    for (let l = 0; l < cfg.n_layers; l++) {
      const moved = core.matvec(model.all("W_O", l), u, H * e, d);
      const z = pass.z[l].subarray(at * H * e, (at + 1) * H * e);
      for (let h = 0; h < H; h++) {
        const own = (x) => x.subarray(h * e, (h + 1) * e);
        parts.push({ name: `${l}.${h}`, value: core.dot(own(z), own(moved)) });
      }
      if (!cfg.d_mlp) continue;
      const write = pass.mlp[l].subarray(at * d, (at + 1) * d);
      parts.push({ name: `MLP ${l}`, value: core.dot(write, u) });
      bias += core.dot(model.W[`blocks.${l}.mlp.b_out`], u);
    }
    if (cfg.d_mlp) parts.push({ name: "bias", value: bias });
    return parts;
  };

  // Probabilities, the changes that the cuts made, and the parts of one token's logit, at one place.
  // `token` null: the likeliest token of the run without cuts, so that a cut does not change it.
  core.read = function read(model, now, clean, at, token) {
    const logits = model.logits(now, at), p = core.softmax(logits);
    const logits0 = now === clean ? logits : model.logits(clean, at);
    const p0 = now === clean ? p : core.softmax(logits0);
    // Whatever is likely in either run is shown, so a token that a cut pushed out stays in sight.
    const either = p.map((x, i) => Math.max(x, p0[i]));
    const rows = core.largest(either, TOP).sort((a, b) => p[b] - p[a]);
    const row = (id) => ({ id, p: p[id], p0: p0[id], logit: logits[id], logit0: logits0[id] });
    const target = token === null ? core.largest(p0, 1)[0] : token;
    const parts = core.contributions(model, now, at, target);
    const before = now === clean ? parts : core.contributions(model, clean, at, target);
    return {
      at,
      rows: rows.map(row),
      target: row(target),
      parts: parts.map((part, i) => ({ ...part, value0: before[i].value })),
    };
  };

  function ends(values) {
    const pick = (v, sign) =>
      core.largest(v, TOP).map((id) => ({ id, value: sign * v[id] }));
    return { top: pick(values, 1), bottom: pick(values.map((x) => -x), -1) };
  }

  function minusMean(values) {
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    return values.map((x) => x - mean);
  }

  // Rows of a head's two circuits for one token, straight from the embedding, without positions.
  // qk: the scores it gives to every token as key, minus their mean. ov: what it writes when it
  // reads this token, as centred logits.
  core.rows = function rows(model, layer, head, token) {
    const { d_model: d, d_head: e, d_vocab: v } = model.cfg;
    const x = model.embedding(token), at = (name) => model.head(name, layer, head);
    const q = core.matmul(x, at("W_Q"), 1, d, e);
    const wanted = core.matvec(at("W_K"), q, d, e).map((y) => y / Math.sqrt(e));
    const scores = core.matvec(model.W["embed.W_E"], wanted, v, d);
    const write = core.matmul(core.matmul(x, at("W_V"), 1, d, e), at("W_O"), 1, e, d);
    return {
      qk: ends(minusMean(scores)),
      ov: ends(core.matmul(write, model.W["unembed.W_U"], 1, d, v)),
    };
  };
});
