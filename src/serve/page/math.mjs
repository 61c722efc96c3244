// Converts formulas from the subset of TeX that models write to MathML, which browsers lay out.
//
// A formula with anything that is not in the tables below is shown as its source: a formula that is silently
// wrong is worse than a plain one.

import { element, mathElement } from "./dom.mjs";

const LONGEST = 4000;
const DEEPEST = 32;

/** "name char name char" -> map. */
const table = (text) => {
  const parts = text.split(" ");
  return new Map(parts.flatMap((name, at) => (at % 2 === 0 ? [[name, parts[at + 1]]] : [])));
};

const LETTERS = table(
  "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa " +
    "κ lambda λ mu μ nu ν xi ξ pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ " +
    "varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ " +
    "Psi Ψ Omega Ω ell ℓ hbar ℏ infty ∞ partial ∂ nabla ∇ emptyset ∅ varnothing ∅ aleph ℵ Re ℜ Im ℑ " +
    "dots … ldots … cdots ⋯ vdots ⋮ ddots ⋱ degree ° angle ∠ triangle △ top ⊤ bot ⊥ imath ı jmath ȷ",
);
const OPERATORS = table(
  "cdot ⋅ times × div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet • oplus ⊕ otimes ⊗ odot ⊙ leq ≤ le ≤ geq " +
    "≥ ge ≥ neq ≠ ne ≠ approx ≈ equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ in ∈ notin ∉ ni ∋ " +
    "subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ cup ∪ cap ∩ setminus ∖ land ∧ wedge ∧ lor ∨ vee ∨ neg ¬ " +
    "lnot ¬ forall ∀ exists ∃ to → rightarrow → leftarrow ← gets ← Rightarrow ⇒ implies ⟹ Leftarrow ⇐ " +
    "leftrightarrow ↔ Leftrightarrow ⇔ iff ⟺ mapsto ↦ uparrow ↑ downarrow ↓ longrightarrow ⟶ perp ⊥ " +
    "parallel ∥ mid ∣ nmid ∤ colon : prime ′ therefore ∴ because ∵ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ " +
    "lceil ⌈ rceil ⌉ vert | Vert ‖ lVert ‖ rVert ‖ lvert | rvert | backslash \\ models ⊨ vdash ⊢ prec ≺ " +
    "succ ≻ { { } } % % $ $ # # & & _ _ | ‖",
);
const LARGE = table(
  "sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ int ∫ iint ∬ iiint ∭ oint ∮",
);
const INTEGRALS = new Set(["int", "iint", "iiint", "oint"]);
const LIMITS = new Set("lim max min sup inf limsup liminf argmax argmin".split(" "));
const FUNCTIONS = new Set(
  (
    "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln lg exp det dim ker gcd deg arg " +
    "hom Pr"
  ).split(" "),
);
const SPACES = table(", 0.167em : 0.222em ; 0.278em ! -0.167em quad 1em qquad 2em enspace 0.5em");
const ACCENTS = table(
  "hat ^ widehat ^ bar ¯ overline ¯ vec → dot ˙ ddot ¨ tilde ~ widetilde ~ overbrace ⏞",
);
const BELOW = table("underline _ underbrace ⏟");
const FENCES = table(
  "matrix  pmatrix () bmatrix [] Bmatrix {} vmatrix || Vmatrix ‖‖".replace("  ", " .. "),
);
/** Start of each alphabet in Unicode: capitals, small letters, digits. */
const ALPHABETS = {
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce],
  boldsymbol: [0x1d400, 0x1d41a, 0x1d7ce],
  mathbb: [0x1d538, 0x1d552, 0x1d7d8],
  mathcal: [0x1d49c, 0x1d4b6, null],
  mathscr: [0x1d49c, 0x1d4b6, null],
  mathfrak: [0x1d504, 0x1d51e, null],
};
/** Letters that Unicode had before these alphabets. */
const OLDER = table(
  "mathbbC ℂ mathbbH ℍ mathbbN ℕ mathbbP ℙ mathbbQ ℚ mathbbR ℝ mathbbZ ℤ mathcalB ℬ mathcalE ℰ mathcalF ℱ " +
    "mathcalH ℋ mathcalI ℐ mathcalL ℒ mathcalM ℳ mathcalR ℛ mathcale ℯ mathcalg ℊ mathcalo ℴ mathfrakC ℭ " +
    "mathfrakH ℌ mathfrakI ℑ mathfrakR ℜ mathfrakZ ℨ",
);

class NotKnown extends Error {}

/** A formula as MathML, or its source in `code` if it contains something that is not in the tables. */
export function formula(tex, display) {
  try {
    if (tex.length > LONGEST) throw new NotKnown();
    const body = new Reader(tex).whole();
    return mathElement("math", { display: display ? "block" : null, "aria-label": tex }, body);
  } catch (error) {
    if (!(error instanceof NotKnown)) throw error;
    return element("code", { class: "tex" }, tex);
  }
}

class Reader {
  #tokens;
  #at = 0;
  #depth = 0;

  constructor(tex) {
    this.#tokens = tex.match(/\\(?:[A-Za-z]+\*?|[^])|\s+|\d+(?:[.,]\d+)*|[^]/gu) ?? [];
  }

  whole() {
    const row = this.#row(() => false);
    if (this.#at < this.#tokens.length) throw new NotKnown();
    return row;
  }

  #peek() {
    while (/^\s+$/.test(this.#tokens[this.#at] ?? "")) this.#at += 1;
    return this.#tokens[this.#at];
  }

  #next() {
    const token = this.#peek();
    if (token === undefined) throw new NotKnown();
    this.#at += 1;
    return token;
  }

  #expect(token) {
    if (this.#next() !== token) throw new NotKnown();
  }

  /** Everything up to an ending token as one node. The ending token is not consumed. */
  #row(ends) {
    this.#depth += 1;
    if (this.#depth > DEEPEST) throw new NotKnown();
    const nodes = [];
    for (
      let token = this.#peek();
      token !== undefined && token !== "}" && !ends(token);
      token = this.#peek()
    ) {
      nodes.push(this.#scripted());
    }
    this.#depth -= 1;
    return nodes.length === 1 ? nodes[0] : mathElement("mrow", {}, nodes);
  }

  /** A term with its subscript and superscript. */
  #scripted() {
    const token = this.#peek();
    const name = token.slice(1);
    const limits = LIMITS.has(name) || (LARGE.has(name) && !INTEGRALS.has(name));
    const base = ["^", "_", "'"].includes(token) ? mathElement("mrow") : this.#term();
    let [below, above] = [null, null];
    for (
      let mark = this.#peek();
      ["^", "_", "'", "\\limits", "\\nolimits"].includes(mark);
      mark = this.#peek()
    ) {
      this.#next();
      if (mark === "'") {
        let primes = "′";
        for (; this.#peek() === "'"; this.#at += 1) primes += "′";
        above = above === null ? mathElement("mo", {}, primes) : mathElement("mrow", {}, above, primes);
      } else if (mark === "^" && above === null) above = this.#argument();
      else if (mark === "_" && below === null) below = this.#argument();
      else if (mark === "^" || mark === "_") throw new NotKnown();
    }
    if (below === null && above === null) return base;
    const kind = limits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    return mathElement(below && above ? kind[2] : below ? kind[0] : kind[1], {}, base, below, above);
  }

  /** The argument of a command or script: a group or one term. */
  #argument() {
    this.#depth += 1;
    if (this.#depth > DEEPEST) throw new NotKnown();
    const node = this.#peek() === "{" ? this.#group() : this.#term();
    this.#depth -= 1;
    return node;
  }

  #group() {
    this.#expect("{");
    const row = this.#row(() => false);
    this.#expect("}");
    return row;
  }

  /** The literal text of a group. */
  #words() {
    this.#expect("{");
    let text = "";
    for (let open = 1; ;) {
      const token = this.#tokens[this.#at];
      if (token === undefined) throw new NotKnown();
      this.#at += 1;
      if (token === "{") open += 1;
      if (token === "}") open -= 1;
      if (open === 0) return text;
      text += /^\\[^A-Za-z]$/.test(token) ? token[1] : token;
    }
  }

  #term() {
    const token = this.#peek();
    if (token === "{") return this.#group();
    this.#next();
    if (token.startsWith("\\") && token.length > 1) return this.#command(token.slice(1));
    if (/^\d/.test(token)) return mathElement("mn", {}, token);
    if (/^\p{L}$/u.test(token)) return mathElement("mi", {}, token);
    if (["&", "}", "^", "_", "#", "%", "$", "\\"].includes(token)) throw new NotKnown();
    return mathElement("mo", { stretchy: "false" }, token === "-" ? "−" : token);
  }

  #command(name) {
    if (LETTERS.has(name)) return mathElement("mi", {}, LETTERS.get(name));
    if (OPERATORS.has(name)) return mathElement("mo", { stretchy: "false" }, OPERATORS.get(name));
    if (LARGE.has(name)) {
      return mathElement("mo", { largeop: "true", movablelimits: "true" }, LARGE.get(name));
    }
    if (LIMITS.has(name)) return mathElement("mo", { movablelimits: "true" }, name);
    if (FUNCTIONS.has(name)) return mathElement("mi", {}, name);
    if (SPACES.has(name)) return mathElement("mspace", { width: SPACES.get(name) });
    if (name === " ") return mathElement("mspace", { width: "0.25em" });
    if (ACCENTS.has(name)) {
      const accent = mathElement("mo", { stretchy: String(/wide|over/.test(name)) }, ACCENTS.get(name));
      return mathElement("mover", { accent: "true" }, this.#argument(), accent);
    }
    if (BELOW.has(name))
      return mathElement("munder", {}, this.#argument(), mathElement("mo", {}, BELOW.get(name)));
    if (name in ALPHABETS) return mathElement("mi", {}, inAlphabet(this.#words(), name));
    return this.#structure(name);
  }

  #structure(name) {
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
        return mathElement("mfrac", {}, this.#argument(), this.#argument());
      case "binom": {
        const parts = [this.#argument(), this.#argument()];
        return fenced("(", mathElement("mfrac", { linethickness: "0" }, parts), ")");
      }
      case "sqrt":
        return this.#root();
      case "text":
      case "textbf":
      case "textit":
      case "textrm":
      case "mbox":
        return mathElement("mtext", {}, this.#words().replace(/^ | $/g, "\u00A0"));
      case "mathrm":
      case "operatorname":
      case "operatorname*":
        return mathElement("mi", { mathvariant: "normal" }, this.#words());
      case "overset":
      case "stackrel": {
        const above = this.#argument();
        return mathElement("mover", {}, this.#argument(), above);
      }
      case "underset": {
        const below = this.#argument();
        return mathElement("munder", {}, this.#argument(), below);
      }
      case "boxed":
        return mathElement("mrow", { class: "boxed" }, this.#argument());
      case "left":
        return this.#fences();
      case "begin":
        return this.#rows();
      case "displaystyle":
      case "big":
      case "Big":
      case "bigl":
      case "bigr":
      case "Bigl":
      case "Bigr":
      case "bigg":
      case "limits":
        return mathElement("mrow");
      default:
        throw new NotKnown();
    }
  }

  #root() {
    if (this.#peek() !== "[") return mathElement("msqrt", {}, this.#argument());
    this.#next();
    const degree = this.#row((token) => token === "]");
    this.#expect("]");
    return mathElement("mroot", {}, this.#argument(), degree);
  }

  #fences() {
    const open = this.#fence();
    const body = this.#row((token) => token === "\\right");
    this.#expect("\\right");
    return fenced(open, body, this.#fence());
  }

  #fence() {
    const token = this.#next();
    const text = token.startsWith("\\") ? OPERATORS.get(token.slice(1)) : token;
    if (text === undefined || !/^[()[\]{}|./<>⟨⟩⌊⌋⌈⌉‖]$/u.test(text)) throw new NotKnown();
    return text;
  }

  /** An environment with rows and columns. */
  #rows() {
    const name = this.#words().replace("*", "");
    const aligned = ["aligned", "align", "gathered", "gather", "split"].includes(name);
    if (!aligned && !FENCES.has(name) && !["cases", "array"].includes(name)) throw new NotKnown();
    if (name === "array") this.#words();
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(this.#row((token) => ["&", "\\\\", "\\end"].includes(token)));
      const token = this.#next();
      if (token === "\\\\") rows.push([]);
      else if (token === "\\end") break;
      else if (token !== "&") throw new NotKnown();
    }
    this.#words();
    const cell = (node) => mathElement("mtd", {}, node);
    const row = (cells) => mathElement("mtr", {}, cells.map(cell));
    const kind = aligned ? "aligned" : name === "cases" ? "cases" : null;
    const body = mathElement("mtable", { class: kind }, rows.map(row));
    if (name === "cases") return fenced("{", body, ".");
    return FENCES.has(name) ? fenced(...FENCES.get(name).split("").toSpliced(1, 0, body)) : body;
  }
}

/** `.` is TeX's empty fence. */
function fenced(open, body, close) {
  const fence = (text) => text !== "." && mathElement("mo", { fence: "true", stretchy: "true" }, text);
  return mathElement("mrow", {}, fence(open), body, fence(close));
}

function inAlphabet(text, name) {
  const [capitals, small, digits] = ALPHABETS[name];
  const base = name === "mathscr" ? "mathcal" : name;
  const letter = (char) => {
    const older = OLDER.get(base + char);
    if (older !== undefined) return older;
    const from = /[A-Z]/.test(char) ? [capitals, "A"] : /[a-z]/.test(char) ? [small, "a"] : [digits, "0"];
    if (!/[A-Za-z0-9]/.test(char) || from[0] === null) return char;
    return String.fromCodePoint(from[0] + char.charCodeAt(0) - from[1].charCodeAt(0));
  };
  return Array.from(text, letter).join("");
}
