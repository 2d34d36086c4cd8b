// The state as the part of an address behind "#", and back. A bad link gives defaults and a notice.
(function () {
  "use strict";

  const PLACES = { pin: "pin", at: "at", token: "token", lookup: "row" };
  const KNOWN = ["model", "text", "head", "look", "weigh", "off", "cut", "freeze"];
  const NUMBER = /^\d{1,6}$/;
  const EDGE = /^(\d+\.\d+)>(\d+\.\d+)\.([qkv])$/;

  // Only what differs from the defaults is written; the text always is.
  Explorer.toHash = function toHash(state) {
    const out = new URLSearchParams({ model: state.model, text: state.text, head: state.head });
    for (const [key, name] of Object.entries(PLACES))
      if (state[key] !== null) out.set(name, state[key]);
    if (state.direction !== "out") out.set("look", state.direction);
    if (state.weighted) out.set("weigh", "1");
    if (state.off.length) out.set("off", state.off.join(","));
    if (state.edges.length) out.set("cut", state.edges.map(Explorer.edgeName).join(","));
    if (state.frozen !== null) out.set("freeze", state.frozen);
    return `#${out}`;
  };

  // {wanted, problems}; `wanted` still has to be made possible by Explorer.tidy. null: no link.
  Explorer.fromHash = function fromHash(hash) {
    const given = new URLSearchParams(hash.replace(/^#/, ""));
    const known = [...KNOWN, ...Object.values(PLACES)];
    const strange = [...given.keys()].filter((key) => !known.includes(key));
    const wanted = {}, problems = [];
    const trouble = (what) => problems.push(`The link has ${what}; it was left out.`);
    // An anchor of the page itself is no state; every state has an equals sign.
    if (/^#?[\w.-]*$/.test(hash)) return null;
    for (const key of known)
      if (given.getAll(key).length > 1)
        problems.push(`The link has “${key}” more than once; the first one is taken.`);
    if (strange.length) trouble(`an unknown part “${strange[0].slice(0, 30)}”`);
    for (const key of ["model", "text", "head"])
      if (given.has(key)) wanted[key] = given.get(key);
    for (const [key, name] of Object.entries(PLACES)) {
      if (!given.has(name)) continue;
      if (NUMBER.test(given.get(name))) wanted[key] = Number(given.get(name));
      else trouble(`no number for “${name}”`);
    }
    if (given.has("look")) wanted.direction = given.get("look");
    if (["0", "1"].includes(given.get("weigh"))) wanted.weighted = given.get("weigh") === "1";
    else if (given.has("weigh")) trouble("neither 0 nor 1 for “weigh”");
    if (given.get("off")) wanted.off = given.get("off").split(",");
    for (const text of (given.get("cut") || "").split(",").filter((x) => x)) {
      const found = EDGE.exec(text);
      if (found) (wanted.edges = wanted.edges || []).push(
        { from: found[1], to: found[2], into: found[3] });
      else trouble(`a cut that cannot be read, “${text.slice(0, 30)}”`);
    }
    if (given.has("freeze")) wanted.frozen = given.get("freeze");
    return { wanted, problems };
  };

  // Keeps the address in step without filling the reader's history.
  Explorer.writeHash = function writeHash(state) {
    const hash = Explorer.toHash(state);
    if (hash === location.hash) return;
    try {
      history.replaceState(null, "", hash);
    } catch {
      // Some browsers allow no change of the address of a page from disk, or not so often. The
      // copy button makes the link anew in any case.
    }
  };
})();
