// Colours of tokens: which value, on which scale, as classes of tokens.css, so that a change of theme needs no script.

import { number, signed } from "./text.js";

const DIVERGING = 6; // shades on either side of zero
const SEQUENTIAL = 8;
const VERSIONS = 8;

/** Values that tokens can be coloured by. `value(token, sample)` is null where the value is not recorded. */
export const MODES = [
  { name: "none", label: "Plain" },
  {
    name: "advantage",
    label: "Advantage",
    kind: "diverging",
    value: (token, sample) => sample.advantage,
    low: "worse than its group",
    high: "better than its group",
  },
  {
    name: "logprob",
    label: "Log-prob",
    kind: "sequential",
    value: (token) => negated(token.logprob),
    low: "likely",
    high: "unlikely",
    show: (value) => number(-value),
  },
  {
    name: "difference",
    label: "Trainer − engine",
    kind: "diverging",
    value: difference,
    low: "trainer lower",
    high: "trainer higher",
  },
  {
    name: "entropy",
    label: "Entropy",
    kind: "sequential",
    value: (token) => token.entropy ?? null,
    low: "certain",
    high: "uncertain",
  },
  { name: "version", label: "Version", kind: "versions", value: (token) => token.version ?? null },
];

function negated(value) {
  return typeof value === "number" ? -value : null;
}

/** Returns the log-prob of the trainer minus that of the engine; null unless both are recorded. */
export function difference(token) {
  const both = typeof token.trainer_logprob === "number" && typeof token.logprob === "number";
  return both ? token.trainer_logprob - token.logprob : null;
}

/** Returns the modes for which at least one sampled token has a value. */
export function modesOf(tokens, sample) {
  return MODES.filter(
    (mode) =>
      mode.name === "none" ||
      tokens.some(
        (token) => token.sampled && mode.value(token, sample) !== null && mode.value(token, sample) !== undefined,
      ),
  );
}

/** Returns {classOf(token), legend: [{class, text?}], ends} of a mode over all tokens. */
export function coloring(mode, tokens, sample) {
  if (mode.name === "none") return { classOf: () => "", legend: [] };
  const sampled = tokens.filter((token) => token.sampled);
  const values = sampled
    .map((token) => mode.value(token, sample))
    .filter((value) => typeof value === "number" && Number.isFinite(value));
  if (mode.kind === "versions") return versions(mode, sample, values);
  const most = largest(mode, values, sample);
  const place =
    mode.kind === "diverging"
      ? (value) => divergingClass(value / most)
      : (value) => `q${Math.min(SEQUENTIAL, Math.floor((Math.max(0, value) / most) * (SEQUENTIAL + 0.999)))}`;
  const classOf = (token) => {
    const value = mode.value(token, sample);
    return token.sampled && typeof value === "number" && !Number.isNaN(value) ? place(value) : "";
  };
  const show = mode.show ?? (mode.kind === "diverging" ? signed : number);
  const shades =
    mode.kind === "diverging" ? shadesBothWays() : Array.from({ length: SEQUENTIAL + 1 }, (_, at) => `q${at}`);
  const ends = mode.kind === "diverging" ? [show(-most), "0", show(most)] : [show(0), show(most)];
  return { classOf, legend: shades.map((name) => ({ class: name })), ends, words: [mode.low, mode.high] };
}

function largest(mode, values, sample) {
  if (mode.name === "advantage")
    return Math.max(
      1e-6,
      ...(sample.group ?? []).map((each) => Math.abs(each.advantage ?? 0)),
      Math.abs(sample.advantage ?? 0),
    );
  const sizes = values.map(Math.abs).sort((a, b) => a - b);
  return Math.max(1e-6, sizes[Math.floor((sizes.length - 1) * 0.99)] ?? 1); // single large values do not pale the rest
}

function divergingClass(share) {
  const shade = Math.min(DIVERGING, Math.round(Math.abs(share) * DIVERGING));
  return shade === 0 ? "d0" : share > 0 ? `dp${shade}` : `dn${shade}`;
}

function shadesBothWays() {
  const side = Array.from({ length: DIVERGING }, (_, at) => at + 1);
  return [
    ...side.reverse().map((at) => `dn${at}`),
    "d0",
    ...Array.from({ length: DIVERGING }, (_, at) => `dp${at + 1}`),
  ];
}

function versions(mode, sample, values) {
  const all = [...new Set(values)].sort((a, b) => a - b);
  const classes = new Map(all.map((version, at) => [version, `v${at % VERSIONS}`]));
  return {
    classOf: (token) => (token.sampled ? (classes.get(mode.value(token, sample)) ?? "") : ""),
    legend: all.slice(0, 24).map((version) => ({ class: classes.get(version), text: String(version) })),
  };
}
