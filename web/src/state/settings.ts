// What a reader has chosen, kept in the browser: the API key only as long as the tab lives.

export type Theme = "auto" | "light" | "dark";

export interface Settings {
  /** Model id of what is asked: `coinrag/<index>` or the backbone; null until one is known. */
  target: string | null;
  compare: boolean;
  theme: Theme;
  /** Null leaves each of these to the server. */
  method: string | null;
  kChunks: number | null;
  kNuggets: number | null;
  maxTokens: number | null;
}

export const DEFAULTS: Settings = {
  target: null,
  compare: false,
  theme: "auto",
  method: null,
  kChunks: null,
  kNuggets: null,
  maxTokens: null,
};

const SETTINGS = "coinkv.settings";
const KEY = "coinkv.key";

type Kept = Pick<Storage, "getItem" | "setItem" | "removeItem">;

/** A browser's storage, or one that forgets where the browser lends none. */
export function storageOf(browser: () => Storage): Kept {
  try {
    return browser();
  } catch {
    return { getItem: () => null, setItem: () => undefined, removeItem: () => undefined };
  }
}

/** Read settings; whatever is not as expected falls back to its default. */
export function readSettings(storage: Pick<Storage, "getItem">): Settings {
  let stored: Record<string, unknown> = {};
  try {
    const value: unknown = JSON.parse(storage.getItem(SETTINGS) ?? "{}");
    if (typeof value === "object" && value !== null) stored = value as Record<string, unknown>;
  } catch {
    // An older page's, or somebody else's: the defaults do.
  }
  return {
    target: text(stored.target),
    compare: stored.compare === true,
    theme: stored.theme === "light" || stored.theme === "dark" ? stored.theme : "auto",
    method: text(stored.method),
    kChunks: positive(stored.kChunks),
    kNuggets: positive(stored.kNuggets),
    maxTokens: positive(stored.maxTokens),
  };
}

export function writeSettings(storage: Pick<Storage, "setItem">, settings: Settings): void {
  try {
    storage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // Storage is full: the choice lasts as long as the page.
  }
}

export function readKey(storage: Pick<Storage, "getItem">): string {
  return storage.getItem(KEY) ?? "";
}

export function writeKey(storage: Pick<Storage, "setItem" | "removeItem">, key: string): void {
  if (key) storage.setItem(KEY, key);
  else storage.removeItem(KEY);
}

function text(value: unknown): string | null {
  return typeof value === "string" && value ? value : null;
}

function positive(value: unknown): number | null {
  return typeof value === "number" && Number.isInteger(value) && value > 0 ? value : null;
}
