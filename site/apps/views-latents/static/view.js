/* Latents of the sparse autoencoder on gelu-1l's neurons. */
(function () {
  "use strict";
  var CBV = window.CBV,
    el = CBV.el;

  CBV.units("views-latents", {
    choose: "Latent · fires on",
    key: (u) => String(u.unit),
    group: (u) => u.why,
    title: (u) => "latent " + u.unit,
    /* Single-mindedness, in words: which of the two places chapter 09 counted at, and what it found. */
    counted: (u, all) => all.counted.latents[u.unit] || null,
    told: function (u, all) {
      var c = all.counted.latents[u.unit];
      if (!c) return "Chapter 09 did not count this latent's words, so no token has a dotted frame.";
      return (
        "What chapter 09 counted: in " +
        Math.round(c.share * all.counted.windows) +
        " of its " +
        all.counted.windows +
        " strongest windows, one word stands " +
        (c.place === "token"
          ? "where the latent is strongest"
          : "just before the place where the latent is strongest") +
        ": “" +
        CBV.visible(c.word) +
        "”. That place, the " +
        (c.place === "token" ? "strongest token itself" : "token before the strongest") +
        ", has a dotted frame below."
      );
    },
    facts: () => [["fires means", "it is on, above 0"]],
    zero: function (u) {
      return (
        "It is exactly 0 on " + CBV.count(u.histogram.zero) + " positions; they are not in the histogram."
      );
    },
    writes: "What it writes",
    writesUnit: "logits per unit",
    reads: "Words that turn it on by themselves",
    readsUnit: "activation",
    nothing: "None: no word's embedding alone turns it on. It needs what a head brings.",
    after: function (data) {
      var d = data.densities,
        rows = d.decades.map((p, i) => [
          CBV.percent(Math.pow(10, p)) + " to " + CBV.percent(Math.pow(10, p + 1)),
          CBV.count(d.counts[i]),
        ]);
      return CBV.details(
        "How often all " + CBV.count(data.latents) + " latents fire",
        CBV.table(
          "Latents by the share of positions that they are on",
          ["share of positions", "latents"],
          [["never", CBV.count(d.dead)]].concat(rows)
        )
      );
    },
  });
})();
