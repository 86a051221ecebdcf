// The page as a whole: a bar, one of three views, and what stands in front of them.

import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useConversation } from "../state/conversation";
import { SessionProvider, useNewSession } from "../state/session";
import { AskView } from "./ask";
import { DocumentsView } from "./documents";
import { Moon, Mark, Sliders, Sun } from "./icons";
import { KeyForm, Note } from "./notices";
import { SettingsDrawer } from "./settings-drawer";
import { StoreView } from "./store";

const VIEWS = ["ask", "documents", "store"] as const;
type View = (typeof VIEWS)[number];
const NAMES: Record<View, string> = { ask: "Ask", documents: "Documents", store: "Store" };

export function App(): VNode {
  const session = useNewSession();
  const conversation = useConversation(session.server);
  const view = useView();
  const [settingsOpen, setSettingsOpen] = useState(false);

  return (
    <SessionProvider value={session}>
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <header class="bar">
        <span class="brand">
          <Mark /> coinkv
        </span>
        <nav aria-label="Views">
          {VIEWS.map((name) => (
            <a key={name} href={`#${name}`} aria-current={name === view ? "page" : undefined}>
              {NAMES[name]}
            </a>
          ))}
        </nav>
        <div class="bar-tools">
          <ThemeButton
            dark={isDark(session.settings.theme)}
            onToggle={(theme) => session.choose({ theme })}
          />
          <button
            type="button"
            class="quiet"
            aria-haspopup="dialog"
            aria-label="Settings"
            onClick={() => setSettingsOpen(true)}
          >
            <Sliders /> <span class="wide-only">Settings</span>
          </button>
        </div>
      </header>
      {session.connection === "gone" && (
        <Note kind="error">The server does not answer. This page goes on trying to reach it.</Note>
      )}
      {session.connection === "starting" && (
        <Note kind="hint">The server is starting: its model is being loaded.</Note>
      )}
      {session.connection === "refused" && <Note kind="error">{session.problem}</Note>}
      <main id="content" tabIndex={-1}>
        {session.connection === "locked" ? (
          <section class="gate">
            <h1>This server needs an API key</h1>
            <p>
              {session.apiKey
                ? "It does not know the key that was given."
                : "Whoever runs the server hands them out. A key stays in this tab only."}
            </p>
            <KeyForm />
          </section>
        ) : view === "ask" ? (
          <AskView conversation={conversation} />
        ) : view === "documents" ? (
          <DocumentsView />
        ) : (
          <StoreView />
        )}
      </main>
      <SettingsDrawer open={settingsOpen} onClose={() => setSettingsOpen(false)} />
    </SessionProvider>
  );
}

/** The view that the address names. Other fragments, such as the skip link's, change nothing. */
function useView(): View {
  const named = () => VIEWS.find((name) => `#${name}` === window.location.hash);
  const [view, setView] = useState<View>(() => named() ?? "ask");
  const first = useRef(true);
  useEffect(() => {
    const change = () => setView((before) => named() ?? before);
    window.addEventListener("hashchange", change);
    return () => window.removeEventListener("hashchange", change);
  }, []);
  useEffect(() => {
    document.title = `${NAMES[view]} · coinkv`;
    if (!first.current) window.scrollTo({ top: 0, behavior: "instant" });
    first.current = false;
  }, [view]);
  return view;
}

function isDark(theme: "auto" | "light" | "dark"): boolean {
  if (theme !== "auto") return theme === "dark";
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

function ThemeButton({
  dark,
  onToggle,
}: {
  dark: boolean;
  onToggle(theme: "light" | "dark"): void;
}): VNode {
  return (
    <button
      type="button"
      class="quiet"
      aria-pressed={dark}
      aria-label="Dark mode"
      title="Dark mode"
      onClick={() => onToggle(dark ? "light" : "dark")}
    >
      {dark ? <Sun /> : <Moon />}
    </button>
  );
}
