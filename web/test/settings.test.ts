import { expect, test } from "vitest";
import {
  DEFAULTS,
  readKey,
  readSettings,
  storageOf,
  writeKey,
  writeSettings,
} from "../src/state/settings";

function memory(): Map<string, string> & Pick<Storage, "getItem" | "setItem" | "removeItem"> {
  const kept = new Map<string, string>();
  return Object.assign(kept, {
    getItem: (name: string) => kept.get(name) ?? null,
    setItem: (name: string, value: string) => void kept.set(name, value),
    removeItem: (name: string) => void kept.delete(name),
  });
}

test("settings come back as they were kept, without the key", () => {
  const storage = memory();
  const chosen = {
    ...DEFAULTS,
    method: "coinrag",
    kChunks: 3,
    compare: true,
    theme: "dark" as const,
  };
  writeSettings(storage, chosen);
  writeKey(memory(), "secret");
  expect(readSettings(storage)).toEqual(chosen);
  expect([...storage.values()].join("")).not.toContain("secret");
});

test.each([
  "",
  "{",
  "null",
  "[]",
  '{"kChunks": -1, "theme": "pink", "method": 3, "compare": "yes"}',
])("settings that are not as expected (%s) are the defaults", (stored) => {
  const storage = memory();
  storage.setItem("coinkv.settings", stored);
  expect(readSettings(storage)).toEqual(DEFAULTS);
});

test("a key is forgotten when it is emptied", () => {
  const storage = memory();
  writeKey(storage, "k");
  expect(readKey(storage)).toBe("k");
  writeKey(storage, "");
  expect(storage.size).toBe(0);
});

test("a browser that lends no storage is one that forgets", () => {
  const storage = storageOf(() => {
    throw new DOMException("denied", "SecurityError");
  });
  writeSettings(storage, DEFAULTS);
  expect(readSettings(storage)).toEqual(DEFAULTS);
});
