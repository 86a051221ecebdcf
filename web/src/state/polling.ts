// Asking again every few seconds, but only while somebody looks.

import { useEffect } from "preact/hooks";

/** Call `work` now and then again `everyMs` after it has ended, while the page is visible. */
export function usePolling(work: () => Promise<void>, everyMs: number, active = true): void {
  useEffect(() => {
    if (!active) return;
    let timer: number | undefined;
    let ended = false;
    const turn = async () => {
      window.clearTimeout(timer);
      if (document.visibilityState === "visible") await work();
      if (!ended) timer = window.setTimeout(turn, everyMs);
    };
    const seen = () => {
      if (document.visibilityState === "visible") void turn();
    };
    void turn();
    document.addEventListener("visibilitychange", seen);
    return () => {
      ended = true;
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [work, everyMs, active]);
}
