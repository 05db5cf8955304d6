// Numbers of a chart: ticks, scales, smoothing and thinning.

/** Returns round values between two bounds, about `wanted` of them. */
export function linearTicks(low, high, wanted = 5) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const amount = Math.min(4 * wanted, Math.floor(high / step + 1e-9) - first + 1);
  return Array.from({ length: Math.max(0, amount) }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

/** Returns powers of ten, with 2 and 5 between where there are few. */
export function logTicks(low, high, wanted = 6) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((last - first) / wanted));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += every) for (const factor of factors) ticks.push(factor * 10 ** power);
  return ticks.filter((each) => each >= low * 0.999 && each <= high * 1.001);
}

/** Returns a function from values to places. */
export function scale(low, high, from, to, log = false) {
  const map = log ? Math.log10 : (value) => value;
  const [a, b] = [map(low), map(high)];
  const factor = b === a ? 0 : (to - from) / (b - a);
  const place = (value) => (b === a ? (from + to) / 2 : from + (map(value) - a) * factor);
  place.invert = (at) => {
    const value = factor === 0 ? a : a + (at - from) / factor;
    return log ? 10 ** value : value;
  };
  return place;
}

/** Returns the exponential moving average, without the bias of its start; missing values stay missing. */
export function smooth(values, weight) {
  if (!(weight > 0)) return values;
  let [mean, mass] = [0, 0];
  return values.map((value) => {
    if (!isValue(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return mean / mass;
  });
}

/** Reports whether a value can be drawn. */
export function isValue(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Returns at most about `most` points: of each bucket the smallest, the largest and the last, so spikes stay. */
export function thin(steps, values, most = 2000) {
  if (steps.length <= most) return { steps, values };
  const kept = [];
  const width = (steps.length * 3) / most;
  for (let bucket = 0; bucket * width < steps.length; bucket++) {
    const [first, end] = [Math.floor(bucket * width), Math.min(steps.length, Math.floor((bucket + 1) * width))];
    if (end > first) kept.push(...extremes(values, first, end));
  }
  return { steps: kept.map((at) => steps[at]), values: kept.map((at) => values[at]) };
}

function extremes(values, first, end) {
  let [low, high] = [-1, -1];
  for (let at = first; at < end; at++) {
    if (!isValue(values[at])) continue;
    if (low < 0 || values[at] < values[low]) low = at;
    if (high < 0 || values[at] > values[high]) high = at;
  }
  return [...new Set([low, high, end - 1])].filter((at) => at >= 0).sort((a, b) => a - b);
}

/** Returns the place of the step nearest to `wanted` in ascending steps; -1 without steps. */
export function nearest(steps, wanted) {
  let [low, high] = [0, steps.length - 1];
  if (high < 0) return -1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - steps[low - 1] <= steps[low] - wanted ? low - 1 : low;
}

/** Returns the smallest and the largest value of several lists that can be drawn; null without one. */
export function bounds(lists, log = false) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) {
    for (const value of list) {
      if (!isValue(value) || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

/** Returns bounds with a margin; bounds that are equal but for rounding are spread around their value. */
export function padded([low, high], log = false) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  const equal = high - low <= 1e-9 * size;
  if (log) return equal ? [low / 2, high * 2] : [low / 1.08, high * 1.08];
  if (size === 0) return [-0.04, 1];
  const margin = equal ? size * 0.1 : (high - low) * 0.05;
  return [low - margin, high + margin];
}
