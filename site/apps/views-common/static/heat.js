/* A heat map is a table: every cell has its number, and its headers are read out with it. */
(function () {
  "use strict";
  var CBV = (window.CBV = window.CBV || {});
  var el = CBV.el;

  /* of: {caption, name, columns, rows, values[row][column], words(v), colour(v)}. Gives {table, cells},
     the cells row by row. */
  CBV.heat = function (of) {
    var cells = [];
    function cell(v) {
      var made = el("td", { text: of.words(v) });
      CBV.paint(made, of.colour(v));
      cells.push(made);
      return made;
    }
    var head = [el("td")].concat(of.columns.map((c) => el("th", { scope: "col", text: c })));
    var body = of.values.map((row, i) =>
      el("tr", {}, [el("th", { scope: "row", text: of.rows[i] })].concat(row.map(cell)))
    );
    var table = el("table", { class: "cbv-heat", "data-name": of.name }, [
      el("caption", { text: of.caption }),
      el("thead", {}, el("tr", {}, head)),
      el("tbody", {}, body),
    ]);
    return { table: table, cells: cells };
  };
})();
