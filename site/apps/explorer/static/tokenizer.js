// The course tokenizer in plain JavaScript: byte-level pairs, single digits, the ids of Python's.
//
// Text is cut into pieces first: every digit alone, then words with the blank before them, runs of
// other signs, runs of blanks. Each piece is spelled in letters that stand for bytes. Then the pair
// of neighbours that was learned first is joined, wherever it stands, until no known pair is left.
(function () {
  "use strict";

  // White space as Unicode counts it; JavaScript's own \s differs in two characters.
  const S = "\\t-\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
  const PIECES = new RegExp(
    `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${S}\\p{L}\\p{N}]+|[${S}]+(?![^${S}])|[${S}]+`,
    "gu"
  );
  const DIGITS = /(\p{N})/u;
  const HALF_PAIRS = /\p{Surrogate}/gu; // a whole pair is one character here, and no match

  // Which letter stands for which byte: printable bytes for themselves, others from U+0100 on.
  function byteLetters() {
    let spare = 256;
    return Array.from({ length: 256 }, (_, byte) => {
      const plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      return String.fromCharCode(plain ? byte : spare++);
    });
  }

  Explorer.Tokenizer = class Tokenizer {
    // saved: {vocab: [symbol of id 0, of id 1, ...], merges: ["a b", ...], bos: "<|bos|>"}
    constructor(saved) {
      this.ids = new Map(saved.vocab.map((symbol, id) => [symbol, id]));
      this.ranks = new Map(saved.merges.map((pair, rank) => [pair, rank]));
      this.bos = this.ids.get(saved.bos);
      this.letters = byteLetters();
      this.known = new Map();
      const bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
      this.texts = saved.vocab.map((symbol) =>
        symbol === saved.bos ? symbol : readable(Uint8Array.from(symbol, (x) => bytes.get(x)))
      );
      this.longest = Math.max(...this.texts.map((text) => text.length));
    }

    joined(piece) {
      const seen = this.known.get(piece);
      if (seen) return seen;
      let parts = Array.from(new TextEncoder().encode(piece), (byte) => this.letters[byte]);
      for (;;) {
        let lowest = Infinity, pair = "";
        for (let i = 0; i + 1 < parts.length; i++) {
          const name = parts[i] + " " + parts[i + 1], rank = this.ranks.get(name);
          if (rank < lowest) [lowest, pair] = [rank, name];
        }
        if (!pair) break;
        const next = [];
        for (let i = 0; i < parts.length; i++) {
          const fits = i + 1 < parts.length && parts[i] + " " + parts[i + 1] === pair;
          next.push(fits ? parts[i] + parts[++i] : parts[i]);
        }
        parts = next;
      }
      const ids = parts.map((part) => this.ids.get(part));
      if (this.known.size > 20000) this.known.clear();
      this.known.set(piece, ids);
      return ids;
    }

    // Ids of a text without the start token. Half a surrogate pair is no character: it is U+FFFD.
    spell(text) {
      const runs = text.replace(HALF_PAIRS, "\ufffd").split(DIGITS).filter((run) => run);
      const pieces = runs.flatMap((run) => (DIGITS.test(run) ? [run] : run.match(PIECES)));
      return pieces.flatMap((piece) => this.joined(piece));
    }

    // Ids of a text, the start token first.
    encode(text) {
      return [this.bos, ...this.spell(text)];
    }
  };

  const UTF8 = new TextDecoder("utf-8", { ignoreBOM: true });

  // What a token stands for; half a character shows as its bytes in hexadecimal.
  function readable(bytes) {
    const text = UTF8.decode(bytes);
    if (!text.includes("\ufffd")) return text;
    const hex = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
    return Array.from(bytes, hex).join("");
  }
})();
