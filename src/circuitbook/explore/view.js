// The view: heads to choose, tokens coloured by the chosen head, predictions and their parts.
function start(root) {
  const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const n = data.tokens.length;
  const patterns = data.pattern.map((text) => unpack(text, n));
  // seen: the token under the pointer or with the focus; pinned: the one that was clicked last.
  const state = { at: data.at, pinned: n - 1, seen: null, incoming: false, weigh: false, rank: 0 };
  const headName = (at) => `${Math.floor(at / data.heads)}.${at % data.heads}`;
  const tokenName = (i) => `${data.tokens[i]} (${i})`;

  // What the chosen head gives each token, seen from one of them; null where it gives none.
  function values(from) {
    let rows = patterns[state.at];
    if (state.weigh) rows = weighted(rows, data.size[state.at]);
    return data.tokens.map((_, i) => {
      if (state.incoming) return i >= from ? rows[i][from] : null;
      return i <= from ? rows[from][i] : null;
    });
  }

  function sentence(from) {
    const found = values(from).map((x, i) => [x, i]).filter((pair) => pair[0] >= 0.0005);
    found.sort((a, b) => b[0] - a[0]);
    const most = found.slice(0, 4).map(([x, i]) => `${tokenName(i)} ${short(x)}`).join(", ");
    const what = state.weigh ? "attention weighted by value size" : "attention";
    return state.incoming
      ? `Head ${headName(state.at)}, ${what} that ${tokenName(from)} receives: ${most}`
      : `Head ${headName(state.at)}, ${what} from ${tokenName(from)}: ${most}`;
  }

  const say = make("p", { class: "cb-say" });
  const aloud = make("p", { class: "cb-aloud", "aria-live": "polite" });
  const tokens = make("div", { class: "cb-tokens", role: "group", "aria-label": "Tokens" });
  const heads = make("div", { class: "cb-heads", role: "group", "aria-label": "Heads, one row for each layer" });
  const next = make("div", {});
  const parts = make("div", {});
  const nextTitle = make("h4", {});
  const partsTitle = make("h4", {});
  const rows = make("tbody", {});

  data.tokens.forEach((text, i) => {
    const button = make("button", { type: "button", class: "cb-token" },
      make("span", { class: "cb-text" }, text), make("span", { class: "cb-value" }));
    button.addEventListener("mouseenter", () => look(i));
    button.addEventListener("mouseleave", () => look(null));
    button.addEventListener("focus", () => look(i));
    button.addEventListener("blur", () => look(null));
    button.addEventListener("click", () => { state.pinned = i; state.rank = 0; all(); });
    tokens.append(button);
  });
  const tokenStop = rove(tokens, 1);

  heads.style.gridTemplateColumns = `repeat(${data.heads}, max-content)`;
  patterns.forEach((pattern, at) => {
    const small = make("canvas", { width: n, height: n, "aria-hidden": "true" });
    const button = make("button", { type: "button", class: "cb-head",
      "aria-label": `head ${headName(at)}` }, small, headName(at));
    button.addEventListener("click", () => chooseHead(at));
    heads.append(button);
    const ink2d = small.getContext("2d");
    const image = ink2d.createImageData(n, n);
    for (let q = 0; q < n; q++) {
      for (let k = 0; k < n; k++) {
        image.data.set([...colour(k <= q ? pattern[q][k] : 0), 255], 4 * (q * n + k));
      }
    }
    ink2d.putImageData(image, 0, 0);
  });
  const headStop = rove(heads, data.heads);

  function look(i) {
    state.seen = i;
    paint();
  }

  function chooseHead(at) {
    state.at = at;
    all();
  }

  // Colours, numbers and the sentence: all that changes while a reader only looks.
  function paint() {
    const from = state.seen === null ? state.pinned : state.seen;
    const given = values(from);
    [...tokens.children].forEach((button, i) => {
      const x = given[i];
      const rgb = x === null ? null : colour(x);
      button.style.backgroundColor = rgb ? `rgb(${rgb})` : "";
      button.style.color = rgb ? ink(rgb) : "";
      button.lastChild.textContent = x === null ? "·" : short(x);
      button.classList.toggle("cb-from", i === from);
      button.setAttribute("aria-pressed", String(i === state.pinned));
      const level = x === null ? "none" : short(x);
      button.setAttribute("aria-label", `${data.tokens[i]}, position ${i}, ${level}`);
    });
    say.textContent = sentence(from);
  }

  function all() {
    paint();
    aloud.textContent = sentence(state.pinned);
    tokenStop(tokens.children[state.pinned]);
    headStop(heads.children[state.at]);
    [...heads.children].forEach((button, at) => {
      button.setAttribute("aria-pressed", String(at === state.at));
    });
    nextTitle.textContent = `Next token after ${tokenName(state.pinned)}`;
    partsTitle.textContent = `What adds to ${data.next[state.pinned][state.rank]} (centred logit, nats)`;
    next.replaceChildren(nextList(data, state.pinned, state.rank, (i) => { chooseToken(i); }));
    parts.replaceChildren(partList(data, state.pinned, state.rank, chooseHead));
    const plain = { ...state };
    rows.replaceChildren(...data.tokens.map((text, i) => {
      const cells = [false, true].map((weigh) => {
        state.weigh = weigh;
        const x = values(state.pinned)[i];
        return make("td", {}, x === null ? "–" : short(x));
      });
      return make("tr", {}, make("td", {}, String(i)), make("th", { scope: "row" }, text), ...cells);
    }));
    state.weigh = plain.weigh;
  }

  // The list is made anew, so the focus goes to the same place in the new one.
  function chooseToken(i) {
    state.rank = i;
    all();
    next.querySelectorAll("button")[i].focus();
  }

  const ways = make("div", { class: "cb-switches", role: "group", "aria-label": "Direction and weight" });
  const outgoing = make("button", { type: "button" }, "where a token looks");
  const incoming = make("button", { type: "button" }, "who looks at it");
  for (const [button, way] of [[outgoing, false], [incoming, true]]) {
    button.addEventListener("click", () => {
      state.incoming = way;
      outgoing.setAttribute("aria-pressed", String(!way));
      incoming.setAttribute("aria-pressed", String(way));
      all();
    });
  }
  const weigh = make("input", { type: "checkbox" });
  weigh.addEventListener("change", () => { state.weigh = weigh.checked; all(); });
  ways.append(outgoing, incoming, make("label", {}, weigh, " weight by value: A·|v W_O|, rows sum to one"));
  outgoing.setAttribute("aria-pressed", "true");
  incoming.setAttribute("aria-pressed", "false");

  const table = make("table", {}, make("caption", {}, "The chosen head, seen from the pinned token"),
    make("thead", {}, make("tr", {}, ...["position", "token", "attention", "weighted by value"].map(
      (text) => make("th", { scope: "col" }, text)))), rows);
  root.querySelector(".cb-still").remove();
  root.append(
    make("p", { class: "cb-title" }, make("strong", {}, data.name), ` · ${n} tokens · choose a head, then point at a token or move with the arrow keys; a click pins it`),
    heads, ways, tokens,
    make("p", { class: "cb-legend" }, "0 ", make("span", { class: "cb-ramp", "aria-hidden": "true" }), " 1"),
    say, aloud,
    make("div", { class: "cb-columns" }, make("section", {}, nextTitle, next), make("section", {}, partsTitle, parts)),
    make("details", {}, make("summary", {}, "As a table"), make("div", { class: "cb-scroll", tabindex: "0", role: "region", "aria-label": "Table of attention" }, table)),
    ...data.notes.map((text) => make("p", { class: "cb-note" }, text)),
  );
  // A notebook has shortcuts on plain keys, such as d d for "delete the cell". They are not meant
  // while a reader is in here; those with Control and the like are.
  root.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  });
  all();
}

// A page may hold several views, and a front end may run a script twice: start each view once.
const place = document.currentScript ? document.currentScript.getRootNode() : document;
for (const root of place.querySelectorAll(".cb-explore:not([data-on])")) {
  root.setAttribute("data-on", "");
  start(root);
}
