/* Words with a number each, as a table whose bars repeat the numbers. */
(function () {
  "use strict";
  var CBV = (window.CBV = window.CBV || {});
  var el = CBV.el;

  CBV.token = (text) => el("code", { class: "cbv-token", text: CBV.visible(text) });
  /* ids and values: the largest first. `limit` is the value whose bar is longest. */
  CBV.wordTable = function (caption, unit, ids, values, texts, limit) {
    var table = CBV.table(
      caption,
      ["token", unit],
      ids.map(function (id, i) {
        var value = values[i];
        var bar = el("span", {
          class: "cbv-bar" + (value < 0 ? " below" : ""),
          "aria-hidden": "true",
        });
        bar.style.width = (limit ? (5.5 * Math.abs(value)) / limit : 0).toFixed(2) + "rem";
        return [CBV.token(texts[id]), el("span", {}, [bar, CBV.number(value)])];
      })
    );
    table.classList.add("words");
    return table;
  };
  CBV.largest = (lists) =>
    lists.reduce((most, list) => list.reduce((m, v) => Math.max(m, Math.abs(v)), most), 0);
  CBV.chapterLink = function (chapters, number) {
    var chapter = chapters[number];
    return el("a", { href: chapter.page, text: "chapter " + number });
  };
})();
