// Settings: how questions are answered, how the page looks, and the key it shows.

import type { VNode } from "preact";
import { useId } from "preact/hooks";
import type { Theme } from "../state/settings";
import { useSession } from "../state/session";
import { Dialog } from "./dialogs";
import { counted } from "./format";
import { KeyForm } from "./notices";

export function SettingsDrawer({ open, onClose }: { open: boolean; onClose: () => void }): VNode {
  const { settings, choose, methods, status, apiKey, setApiKey } = useSession();
  const method = useId();
  const usual = methods.find((each) => each.default);
  const note = (methods.find(({ id }) => id === settings.method) ?? usual)?.note;
  const theme = useId();
  return (
    <Dialog open={open} title="Settings" kind="drawer" onClose={onClose}>
      <fieldset>
        <legend>Answers</legend>
        <div class="field">
          <label for={method}>Method</label>
          <select
            id={method}
            value={settings.method ?? ""}
            onChange={(event) => choose({ method: event.currentTarget.value || null })}
          >
            <option value="">
              {usual ? `The server’s choice (${usual.id})` : "The server’s choice"}
            </option>
            {methods.map(({ id }) => (
              <option key={id} value={id}>
                {id}
              </option>
            ))}
          </select>
          {note && <p class="aside">{note}</p>}
        </div>
        <NumberField
          label="Chunks retrieved"
          value={settings.kChunks}
          onChange={(kChunks) => choose({ kChunks })}
        />
        <NumberField
          label="Nuggets retrieved"
          value={settings.kNuggets}
          onChange={(kNuggets) => choose({ kNuggets })}
        />
        <NumberField
          label="Most tokens of an answer"
          most={status?.limits.most_answer_tokens}
          value={settings.maxTokens}
          onChange={(maxTokens) => choose({ maxTokens })}
        />
      </fieldset>
      <fieldset>
        <legend>Appearance</legend>
        <div class="field">
          <label for={theme}>Colours</label>
          <select
            id={theme}
            value={settings.theme}
            onChange={(event) => choose({ theme: event.currentTarget.value as Theme })}
          >
            <option value="auto">As the system</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </div>
      </fieldset>
      <fieldset>
        <legend>Access</legend>
        <KeyForm />
        {apiKey && (
          <button type="button" class="quiet" onClick={() => setApiKey("")}>
            Forget the key
          </button>
        )}
        <p class="aside">Kept in this tab only, and sent to this server only.</p>
      </fieldset>
      {status && (
        <p class="aside about">
          coinkv {status.version} · <code>{status.model}</code>
          {status.context_length !== null &&
            ` · ${counted(status.context_length, "token")} of context`}
        </p>
      )}
    </Dialog>
  );
}

interface NumberFieldProps {
  label: string;
  value: number | null;
  most?: number | undefined;
  onChange: (value: number | null) => void;
}

function NumberField({ label, value, most, onChange }: NumberFieldProps): VNode {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="number"
        min={1}
        max={most}
        step={1}
        inputMode="numeric"
        placeholder="Server’s choice"
        value={value ?? ""}
        onInput={(event) => {
          const number = event.currentTarget.valueAsNumber;
          onChange(Number.isInteger(number) && number > 0 ? number : null);
        }}
      />
    </div>
  );
}
