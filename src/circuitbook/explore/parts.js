// What each part adds to the centred logit of the chosen next token: signed bars that sum to it.
const BARS = 20;

function partList(data, pinned, rank, chooseHead) {
  const shares = data.share[pinned][rank];
  const order = data.parts.map((name, i) => [name, shares[i]]);
  let rows = order;
  if (order.length > BARS) { // the largest one by one, the others as one bar
    const sorted = [...order].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    const rest = sorted.slice(BARS);
    rows = sorted.slice(0, BARS);
    rows.push([`${rest.length} others`, rest.reduce((sum, row) => sum + row[1], 0)]);
  }
  const longest = Math.max(...rows.map((row) => Math.abs(row[1])), 1e-9);
  const list = make("ul", { class: "cb-rows" });
  for (const [name, value] of rows) {
    const bar = make("span", { class: `cb-bar ${value < 0 ? "cb-less" : "cb-more"}` });
    bar.style.width = `${(50 * Math.abs(value)) / longest}%`;
    const label = make("span", { class: "cb-part" }, name);
    const row = make("li", {}, label, make("span", { class: "cb-track cb-both", "aria-hidden": "true" },
      bar), make("span", { class: "cb-number" }, signed(value)));
    const head = /^head (\d+)\.(\d+)$/.exec(name);
    if (head) {
      const button = make("button", { type: "button", class: "cb-link" }, name);
      button.addEventListener("click", () => chooseHead(head[1] * data.heads + Number(head[2])));
      label.replaceChildren(button);
    }
    list.append(row);
  }
  list.append(make("li", { class: "cb-sum" }, make("span", { class: "cb-part" }, "sum"),
    make("span", { class: "cb-track" }), make("span", { class: "cb-number" },
      signed(data.logit[pinned][rank]))));
  return list;
}

// The likeliest next tokens at a position, each a button that chooses it.
function nextList(data, pinned, rank, choose) {
  const list = make("ul", { class: "cb-rows" });
  data.next[pinned].forEach((text, i) => {
    const p = data.probability[pinned][i];
    const bar = make("span", { class: "cb-bar cb-chance" });
    bar.style.width = `${100 * p}%`;
    const known = i < data.share[pinned].length;
    const button = make("button", { type: "button", class: "cb-token-name",
      "aria-pressed": String(i === rank) }, text);
    if (!known) button.disabled = true;
    button.addEventListener("click", () => choose(i));
    list.append(make("li", {}, button, make("span", { class: "cb-track", "aria-hidden": "true" }, bar),
      make("span", { class: "cb-number" }, percent(p))));
  });
  return list;
}
