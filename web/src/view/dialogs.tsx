// Windows in front of the page: the browser's own dialogs, which hold the focus and close on Escape.

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { Cross } from "./icons";

interface DialogProps {
  open: boolean;
  title: string;
  kind: "drawer" | "question";
  onClose: () => void;
  children: ComponentChildren;
}

export function Dialog({ open, title, kind, onClose, children }: DialogProps): VNode {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    if (open && dialog && !dialog.open) dialog.showModal();
    if (!open && dialog?.open) dialog.close();
  }, [open]);
  return (
    <dialog
      ref={element}
      class={kind}
      aria-labelledby={id}
      onClose={onClose}
      onClick={(event) => {
        // The dialog itself is hit only where its content is not: on the backdrop.
        if (event.target === element.current) element.current?.close();
      }}
    >
      <div class="dialog-content">
        <header>
          <h2 id={id}>{title}</h2>
          <button
            type="button"
            class="quiet"
            aria-label="Close"
            onClick={() => element.current?.close()}
          >
            <Cross />
          </button>
        </header>
        {open && children}
      </div>
    </dialog>
  );
}

/** What is about to be removed, and the words that say so. */
export interface Removal {
  title: string;
  text: string;
  action: string;
  run: () => void;
}

/** Asks before something is removed. */
export function RemovalDialog({
  removal,
  onClose,
}: {
  removal: Removal | null;
  onClose: () => void;
}): VNode {
  return (
    <Dialog open={removal !== null} title={removal?.title ?? ""} kind="question" onClose={onClose}>
      <p dir="auto">{removal?.text}</p>
      <div class="dialog-buttons">
        <button type="button" autofocus onClick={onClose}>
          Keep
        </button>
        <button
          type="button"
          class="danger"
          onClick={() => {
            removal?.run();
            onClose();
          }}
        >
          {removal?.action}
        </button>
      </div>
    </Dialog>
  );
}
