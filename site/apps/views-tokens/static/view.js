/* Rows of the two token tables of a head: whom a token looks for, what it raises when it is read. */
(function () {
  "use strict";
  var CBV = window.CBV,
    el = CBV.el;

  CBV.start("views-tokens", function (place, all) {
    var data = all.data,
      rows = data.rows,
      roles = Object.keys(data.heads);
    var role = CBV.recall("model", all.start.model, roles);
    var head = CBV.recall("head", all.start.head, null);
    var start = rows.findIndex((r) => String(r.id) === CBV.recall("token", "", null));
    var at = start >= 0 ? start : rows.findIndex((r) => r.text === " Sally");
    var out = el("div"),
      heads = el("div"),
      list,
      search,
      status;

    var ordered = rows.map((r, i) => [i, r]).sort((a, b) => a[1].text.trim().localeCompare(b[1].text.trim()));

    function names() {
      return Object.keys(data.heads[role]);
    }
    if (names().indexOf(head) < 0) head = names()[0];

    function options(wanted) {
      return ordered.filter(function (pair) {
        var text = pair[1].text.toLowerCase();
        return !wanted || text.indexOf(wanted) >= 0 || CBV.visible(text).indexOf(wanted) >= 0;
      });
    }
    function filter() {
      var found = options(search.value.trim().toLowerCase());
      status.textContent = found.length
        ? found.length + " of " + rows.length + " tokens"
        : "No token here has these letters. The live explorer takes any text.";
      list.replaceChildren.apply(
        list,
        found.map((pair) =>
          el("option", {
            value: pair[0],
            selected: pair[0] === at,
            text: CBV.visible(pair[1].text) + "  (" + pair[1].chapters.join(", ") + ")",
          })
        )
      );
    }

    function half(table, title, column, high, low) {
      var row = data.heads[role][head][table];
      var limit = CBV.largest([row["top values"][at], row["low values"][at]]);
      return el("div", {}, [
        el("h2", { text: title }),
        CBV.wordTable(high, column, row.top[at], row["top values"][at], data.texts, limit),
        CBV.wordTable(low, column, row.low[at], row["low values"][at], data.texts, limit),
      ]);
    }
    function draw() {
      var token = rows[at],
        own = data.heads[role][head].own[at];
      var word = CBV.visible(token.text),
        layer = Number(head.split(".")[0]);
      var told = el("p", { class: "cbv-readout", "aria-live": "polite", id: "views-tokens-told" }, [
        "Token ",
        CBV.token(token.text),
        " (id " +
          token.id +
          ") in head " +
          head +
          " of " +
          role +
          ". In its own OV row it is number " +
          CBV.count(own[0]) +
          " of " +
          CBV.count(data.vocabulary) +
          ", at " +
          CBV.number(own[1]) +
          " logits. Used in ",
      ]);
      token.chapters.forEach(function (number, i) {
        told.append(i ? ", " : "", CBV.chapterLink(all.chapters, number));
      });
      told.append(".");
      out.replaceChildren(
        told,
        el("div", { class: "cbv-panels" }, [
          half("qk", "QK row: as a query, " + word, "score", "looks for", "avoids"),
          half("ov", "OV row: reading " + word, "logits", "raises", "lowers"),
        ]),
        el("p", {
          class: "cbv-note",
          text: layer
            ? "Layer 1: the rows take the token's embedding alone. The true stream also holds what layer 0 wrote, so this is a part of what the head does."
            : "Layer 0: the head reads the embedding and the position. The rows leave the position out.",
        })
      );
      heads.replaceChildren(
        CBV.details("The same token in every head of " + role, [
          CBV.scroll(
            "Every head",
            CBV.table(
              "Token " + word + ", first entry of each list",
              ["head", "looks for", "raises", "lowers", "its own place in the OV row"],
              names().map(function (h) {
                var t = data.heads[role][h];
                function first(table, end) {
                  return CBV.token(data.texts[t[table][end][at][0]]);
                }
                return [
                  h,
                  first("qk", "top"),
                  first("ov", "top"),
                  first("ov", "low"),
                  CBV.count(t.own[at][0]),
                ];
              })
            )
          ),
        ])
      );
    }

    function headField() {
      return CBV.select(
        "Head",
        "head",
        names().map((h) => [h, h]),
        head,
        function (value) {
          head = value;
          draw();
        }
      );
    }
    var headBox = headField();
    var modelBox = CBV.select(
      "Model",
      "model",
      roles.map((r) => [r, r]),
      role,
      function (value) {
        role = value;
        if (names().indexOf(head) < 0) head = names()[0];
        var next = headField();
        headBox.replaceWith(next);
        headBox = next;
        draw();
      }
    );
    search = el("input", {
      type: "search",
      id: "views-tokens-search",
      oninput: filter,
      autocomplete: "off",
      onkeydown: function (event) {
        if (event.key === "Enter" && list.options.length) {
          // the first of those that were found
          list.selectedIndex = 0;
          list.dispatchEvent(new Event("change"));
        }
      },
    });
    status = el("p", { class: "cbv-note", role: "status" });
    list = el("select", {
      size: "6",
      id: "views-tokens-list",
      onchange: function () {
        at = Number(list.value);
        CBV.remember("token", rows[at].id);
        draw();
      },
    });
    place.append(
      el("div", { class: "cbv-controls" }, [
        modelBox,
        headBox,
        el("div", { class: "cbv-field" }, [
          el("label", { for: search.id, text: "Find a token" }),
          search,
          status,
        ]),
        el("div", { class: "cbv-field" }, [el("label", { for: list.id, text: "Token (chapters)" }), list]),
      ]),
      out,
      heads,
      CBV.provenance(all.made_with, " Read from weights: no text is involved.")
    );
    filter();
    draw();
  });
})();
