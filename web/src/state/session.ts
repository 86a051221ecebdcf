// What the page knows of its server: whether it answers, what can be asked, what was chosen.

import { createContext } from "preact";
import { useCallback, useContext, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { messageOf, Refusal, Unreachable } from "../api/errors";
import { Server } from "../api/server";
import type { IndexEntry, MethodEntry, Status } from "../api/types";
import { usePolling } from "./polling";
import {
  readKey,
  readSettings,
  storageOf,
  writeKey,
  writeSettings,
  type Settings,
} from "./settings";

/**
 * `starting`: the model is not loaded yet. `gone`: no answer. `locked`: a key is needed.
 * `refused`: any other error.
 */
export type Connection = "opening" | "starting" | "open" | "gone" | "locked" | "refused";

export interface Session {
  server: Server;
  settings: Settings;
  choose(changes: Partial<Settings>): void;
  apiKey: string;
  setApiKey(key: string): void;
  connection: Connection;
  /** What the server said where it refused. */
  problem: string | null;
  status: Status | null;
  indexes: IndexEntry[];
  methods: MethodEntry[];
  refresh(): Promise<void>;
}

const local = storageOf(() => window.localStorage);
const ofTab = storageOf(() => window.sessionStorage);

const SessionContext = createContext<Session | null>(null);
export const SessionProvider = SessionContext.Provider;

export function useSession(): Session {
  const session = useContext(SessionContext);
  if (!session) throw new Error("no session around this part of the page");
  return session;
}

const POLL_MS = 8_000;
const RECONNECT_MS = 2_000;

export function useNewSession(): Session {
  const [settings, setSettings] = useState<Settings>(() => readSettings(local));
  const [apiKey, keepKey] = useState(() => readKey(ofTab));
  const [connection, setConnection] = useState<Connection>("opening");
  const [problem, setProblem] = useState<string | null>(null);
  const [status, setStatus] = useState<Status | null>(null);
  const [indexes, setIndexes] = useState<IndexEntry[]>([]);
  const [methods, setMethods] = useState<MethodEntry[]>([]);

  const key = useRef(apiKey);
  const server = useMemo(() => new Server(() => key.current), []);

  const refresh = useCallback(async () => {
    try {
      const newStatus = await server.status();
      const newIndexes = newStatus.ready ? await server.indexes() : [];
      setStatus(newStatus);
      setIndexes(newIndexes);
      setConnection(newStatus.ready ? "open" : "starting");
      setProblem(null);
    } catch (error) {
      setConnection(connectionAfter(error));
      setProblem(messageOf(error));
    }
  }, [server]);

  const open = connection === "open";
  useEffect(() => {
    // The menu can do without: the server then chooses the method.
    if (open) server.methods().then(setMethods, () => undefined);
  }, [open, server]);

  usePolling(refresh, open ? POLL_MS : RECONNECT_MS, connection !== "locked");

  useEffect(() => writeSettings(local, settings), [settings]);
  useEffect(() => {
    const root = document.documentElement;
    if (settings.theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = settings.theme;
  }, [settings.theme]);

  const choose = useCallback(
    (changes: Partial<Settings>) => setSettings((before) => ({ ...before, ...changes })),
    [],
  );
  const setApiKey = useCallback(
    (value: string) => {
      key.current = value.trim();
      writeKey(ofTab, key.current);
      keepKey(key.current);
      setConnection("opening");
      void refresh();
    },
    [refresh],
  );

  return {
    server,
    settings,
    choose,
    apiKey,
    setApiKey,
    connection,
    problem,
    status,
    indexes,
    methods,
    refresh,
  };
}

function connectionAfter(error: unknown): Connection {
  if (error instanceof Unreachable) return "gone";
  if (error instanceof Refusal && error.status === 401) return "locked";
  return "refused";
}
