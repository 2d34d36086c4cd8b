/* Neurons of the two GELU models. */
(function () {
  "use strict";
  var CBV = window.CBV;

  CBV.units("views-neurons", {
    choose: "Neuron · fires on",
    key: (u) => u.role + ":" + u.layer + ":" + u.unit,
    group: (u) => u.role + ", layer " + u.layer + ": " + u.why,
    title: (u) => u.role + ", layer " + u.layer + ", neuron " + u.unit,
    facts: (u, data) => [
      ["fires means", "activation above " + CBV.number(data.fires, 1)],
      ["bias", CBV.number(u.bias)],
    ],
    zero: () => "GELU lets small negative numbers through, so the histogram begins below zero.",
    writes: "What it writes",
    writesUnit: "logits per unit",
    reads: "What it reads from the token itself",
    readsUnit: "pre-activation",
    nothing: "",
  });
})();
