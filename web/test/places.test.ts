import { describe, expect, test } from "vitest";
import { chunkRuns, chunksOf, citedRuns, placesOf } from "../src/answer/places";
import type { Annotation } from "../src/api/types";

const TEXT = "🌾 One. Two. Three.";

function note(start: number, end: number, supports: [number, number], chunk = 0): Annotation {
  return {
    type: "url_citation",
    url_citation: { url: "", title: "T", start_index: supports[0], end_index: supports[1] },
    document: "d.md",
    title: "T",
    chunk,
    start,
    end,
    quote: "",
    score: 0.5 + chunk / 10,
    chunk_start: 100 * chunk,
    chunk_end: 100 * chunk + 50,
  };
}

describe("places", () => {
  test("are numbered best first, and one place may support several ranges", () => {
    const places = placesOf([note(2, 6, [0, 4]), note(9, 12, [0, 0]), note(2, 6, [8, 9])]);
    expect(places.map(({ number }) => number)).toEqual([1, 2]);
    expect(places[0]?.supports).toEqual([
      { start: 0, end: 4 },
      { start: 8, end: 9 },
    ]);
    expect(places[1]?.supports).toEqual([]);
  });

  test("of one chunk stand together, with the best score", () => {
    const chunks = chunksOf(
      placesOf([note(2, 6, [0, 0]), note(110, 120, [0, 0], 1), note(7, 9, [0, 0])]),
    );
    expect(chunks.map(({ chunk, places }) => [chunk, places.map(({ number }) => number)])).toEqual([
      [0, [1, 3]],
      [1, [2]],
    ]);
    expect(chunks[1]?.score).toBeCloseTo(0.6);
  });
});

describe("runs", () => {
  test("count characters beyond the basic plane as one, as the server does", () => {
    const [first, second, third] = citedRuns(TEXT, placesOf([note(0, 1, [2, 6])]));
    expect(first).toMatchObject({ text: "🌾 ", covers: [] });
    expect(second).toMatchObject({ text: "One.", covers: [1], opens: [1], closes: [1] });
    expect(third?.text).toBe(" Two. Three.");
  });

  test("of overlapping places are cut where one begins or ends", () => {
    const places = placesOf([note(0, 1, [2, 11]), note(5, 6, [7, 18])]);
    const found = citedRuns(TEXT, places).map(({ text, covers }) => [text, covers]);
    expect(found).toEqual([
      ["🌾 ", []],
      ["One. ", [1]],
      ["Two.", [1, 2]],
      [" Three.", [2]],
    ]);
  });

  test.each([
    [
      [-5, 3],
      [2, 400],
      [17, 17],
      [30, 40],
    ],
    [],
  ])("add up to the text whatever the ranges are", (...ranges) => {
    const places = placesOf(
      ranges.map(([start, end], n) => note(n, n + 1, [start ?? 0, end ?? 0])),
    );
    expect(
      citedRuns(TEXT, places)
        .map(({ text }) => text)
        .join(""),
    ).toBe(TEXT);
    expect(citedRuns("", places)).toEqual([]);
  });

  test("of a chunk are counted from where the chunk begins", () => {
    const [chunk] = chunksOf(placesOf([note(102, 106, [0, 0], 1)]));
    if (!chunk) throw new Error("no chunk");
    expect(chunkRuns(TEXT, chunk).find(({ covers }) => covers.length > 0)?.text).toBe("One.");
  });
});
