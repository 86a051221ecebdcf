// Numbers as readers want them: few digits, a unit, the same width while they change.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** `0.4 ms`, `21 ms`, `8,034 ms`: one unit throughout, so that bars compare. */
export function milliseconds(ms: number): string {
  return `${ms < 10 ? ms.toFixed(1) : WHOLE.format(ms)} ms`;
}

export function count(value: number): string {
  return WHOLE.format(value);
}

/** `1 document`, `2 documents`. */
export function counted(value: number, noun: string): string {
  return `${WHOLE.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** Decimal units, as disks and the server's options count them. */
export function bytes(value: number): string {
  let scaled = value;
  let unit = 0;
  while (scaled >= 999.5 && unit < UNITS.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2;
  return `${scaled.toFixed(digits)} ${UNITS[unit]}`;
}

/** A share between 0 and 1 in percent. */
export function percent(share: number): string {
  const value = 100 * share;
  return `${value > 0 && value < 10 ? value.toFixed(1) : value.toFixed(0)} %`;
}

/** `12×`, `3.4×`, `1.05×`. */
export function times(ratio: number): string {
  return `${ratio >= 100 ? ratio.toFixed(0) : ratio >= 1.2 ? ratio.toFixed(1) : ratio.toFixed(2)}×`;
}
