// The page's few icons: one stroke, the colour of the text around them, silent to screen readers.

import type { ComponentChildren, VNode } from "preact";

function Icon({ children }: { children: ComponentChildren }): VNode {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      {children}
    </svg>
  );
}

export const Send = () => (
  <Icon>
    <path d="M10 16V4.5M5 9.5l5-5 5 5" />
  </Icon>
);

export const Stop = () => (
  <Icon>
    <rect x="5.5" y="5.5" width="9" height="9" rx="1" class="filled" />
  </Icon>
);

export const Sliders = () => (
  <Icon>
    <path d="M3 6h8M15 6h2M3 14h2M9 14h8" />
    <circle cx="13" cy="6" r="2" />
    <circle cx="7" cy="14" r="2" />
  </Icon>
);

export const Sun = () => (
  <Icon>
    <circle cx="10" cy="10" r="3.2" />
    <path d="M10 2.5v2M10 15.5v2M2.5 10h2M15.5 10h2M4.7 4.7l1.4 1.4M13.9 13.9l1.4 1.4M4.7 15.3l1.4-1.4M13.9 6.1l1.4-1.4" />
  </Icon>
);

export const Moon = () => (
  <Icon>
    <path d="M16 11.8A6.5 6.5 0 0 1 8.2 4a6.5 6.5 0 1 0 7.8 7.8Z" />
  </Icon>
);

export const Tray = () => (
  <Icon>
    <path d="M10 12.5V3.5M6.5 7 10 3.5 13.5 7M3.5 12v3.5a1 1 0 0 0 1 1h11a1 1 0 0 0 1-1V12" />
  </Icon>
);

export const Cross = () => (
  <Icon>
    <path d="m5 5 10 10M15 5 5 15" />
  </Icon>
);

export const Bin = () => (
  <Icon>
    <path d="M3.5 5.5h13M8 5.5v-2h4v2M5.5 5.5l.7 11h7.6l.7-11M8.5 8.5v5M11.5 8.5v5" />
  </Icon>
);

export const Page = () => (
  <Icon>
    <path d="M11 3.5H5.5v13h9V7L11 3.5Zm0 0V7h3.5M10 9.5v4M8 11.5h4" />
  </Icon>
);

export const Mark = () => (
  <svg class="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
    <path d="M3 6h7v20H3zM13 12h6v14h-6zM22 6h7v7h-7zM22 16h7v10h-7z" />
  </svg>
);
