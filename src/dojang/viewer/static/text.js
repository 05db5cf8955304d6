// Text and numbers for display. Text of a model may hold any character: what has no visible form becomes an escape.

const INVISIBLE =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\p{Cs}|[\u{e0000}-\u{e0fff}]/gu;

function escapeOne(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code); // ␀ ... ␟
  if (code === 0x7f) return "\u2421";
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/** Returns text whose control characters, marks of direction and other invisible characters are visible. */
export function visible(text) {
  return String(text).replace(INVISIBLE, escapeOne);
}

/** Returns a number with about four significant digits; "–" for none. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0"; // also minus zero
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) return minus(value.toExponential(2).replace("e+", "e"));
  if (Number.isInteger(value)) return minus(value.toLocaleString("en-US"));
  const digits = size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return minus(value.toLocaleString("en-US", { maximumFractionDigits: digits }));
}

/** Returns a number with a sign, for advantages and differences. */
export function signed(value) {
  return typeof value === "number" && value > 0 ? `+${number(value)}` : number(value);
}

/** Returns a whole number with separators of thousands. */
export function count(value) {
  return value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US");
}

/** Returns a share as a percentage with one digit. */
export function percent(value) {
  return typeof value === "number" && Number.isFinite(value) ? `${minus((100 * value).toFixed(1))}%` : "–";
}

/** Returns a number of seconds in the unit that suits it. */
export function seconds(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  if (value < 0.0995) return `${number(Math.round(value * 1e4) / 10)} ms`;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

/** Returns a value of a metric with its unit. */
export function withUnit(value, unit) {
  if (typeof value !== "number") return number(value);
  if (unit === "share") return percent(value);
  if (unit === "s") return seconds(value);
  return unit ? `${number(value)} ${unit}` : number(value);
}

/** Returns "1 file" or "2 files". */
export function plural(amount, noun) {
  return `${count(amount)} ${noun}${amount === 1 ? "" : "s"}`;
}

function minus(text) {
  return text.replace("-", "\u2212");
}
