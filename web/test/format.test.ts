import { expect, test } from "vitest";
import { bytes, counted, milliseconds, percent, times } from "../src/view/format";

test.each([
  [0, "0 B"],
  [999, "999 B"],
  [1000, "1.00 kB"],
  [2_211_840, "2.21 MB"],
  [999_999, "1.00 MB"],
  [20_000_000_000, "20.0 GB"],
])("%i bytes are %s", (value, text) => {
  expect(bytes(value)).toBe(text);
});

test("times keep one unit, so that they compare", () => {
  expect([0.04, 9.94, 21.4, 8034].map(milliseconds)).toEqual([
    "0.0 ms",
    "9.9 ms",
    "21 ms",
    "8,034 ms",
  ]);
});

test("ratios and shares have as many digits as they are worth", () => {
  expect([1.051, 3.44, 41.6, 132.3].map(times)).toEqual(["1.05×", "3.4×", "41.6×", "132×"]);
  expect([0, 0.031, 0.855].map(percent)).toEqual(["0 %", "3.1 %", "86 %"]);
  expect([counted(1, "file"), counted(1200, "file")]).toEqual(["1 file", "1,200 files"]);
});
