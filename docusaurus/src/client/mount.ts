/** The client module: a button, a shortcut and "Ask about this". The panel itself is loaded when it is first opened. */
import globalData from "@generated/globalData.json";
import { adopt, canAdopt } from "./adopt.js";
import type { Panel } from "./panel/open.js";

const SELECTION_RESTS_MS = 250; // while it still changes, nothing should jump after it
const CHIP_HEIGHT_PX = 56;
const CHIP_WIDTH_PX = 180;

const STYLE = `.affidavit-button{position:fixed;inset-block-end:1.3rem;inset-inline-end:1.3rem;z-index:199;padding:.6rem 1.1rem;border:1px solid var(--ifm-background-surface-color);border-radius:99px;background:var(--ifm-font-color-base);color:var(--ifm-background-surface-color);font:600 .875rem/1.2 var(--ifm-font-family-base);box-shadow:var(--ifm-global-shadow-md);cursor:pointer}
.affidavit-button:focus-visible{outline:3px solid var(--ifm-color-primary);outline-offset:2px}
.affidavit-button[hidden]{display:none}
.affidavit-chip{position:absolute;inset:auto;padding:.4rem .8rem;user-select:none}
.theme-back-to-top-button.theme-back-to-top-button{bottom:4.8rem}
@media print{.affidavit-button{display:none}}`;

const site = globalData["docusaurus-plugin-affidavit"].default;
const shortcut = /Mac|iP/.test(typeof navigator === "object" ? navigator.platform : "") ? "⌥A" : "Alt+A";
let launcher: HTMLButtonElement | undefined;
let chip: HTMLButtonElement;
let panel: Panel | undefined;
let restTimer = 0;

export function onRouteDidUpdate(): void {
  if (panel) panel.arrived();
  else if (!launcher && canAdopt) mount();
}

function mount(): void {
  adopt(STYLE);
  launcher = button(site.texts.ask, "");
  chip = button(site.texts.askSelection, " affidavit-chip");
  chip.hidden = true;
  document.addEventListener("selectionchange", () => {
    clearTimeout(restTimer);
    restTimer = window.setTimeout(offer, SELECTION_RESTS_MS);
  });
  document.addEventListener("keydown", (event) => {
    if (!isShortcut(event) || isTyping(event.target)) return;
    event.preventDefault();
    open();
  });
}

function button(label: string, more: string): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "affidavit-button" + more;
  made.textContent = label;
  made.title = site.texts.tooltip.replace("{shortcut}", shortcut);
  made.ariaKeyShortcuts = "Alt+A";
  made.onclick = open;
  document.body.append(made);
  return made;
}

/** The shortcut uses Alt, because browsers and Docusaurus' search use Ctrl and ⌘; a Mac turns ⌥A into å. */
function isShortcut(event: KeyboardEvent): boolean {
  const isAlone = event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  return isAlone && (event.key === "a" || (event.key > "~" && event.code === "KeyA"));
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("input,textarea,select,[contenteditable]") !== null;
}

/** With `then`, because `await` compiled for old browsers doubles the size. */
function open(): void {
  const selected = selection();
  chip.hidden = true;
  import("./panel/open.js").then(({ create }) => {
    panel ||= create(site, launcher!);
    panel.open(selected && selected.text);
  }).catch(() => {
    launcher!.textContent = site.texts.unloadable;
  });
}

function offer(): void {
  const selected = selection();
  chip.hidden = !selected;
  if (!selected) return;
  const place = selected.range.getBoundingClientRect();
  chip.style.top = `${scrollY + Math.min(place.bottom + 8, innerHeight - CHIP_HEIGHT_PX)}px`;
  chip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - CHIP_WIDTH_PX))}px`;
}

/** The text selected on the page, as the reader sees it: without the hidden link behind a heading. */
function selection(): { text: string; range: Range } | undefined {
  const selected = getSelection()!;
  const text = selected.toString().replace(/\u200b/g, "").trim();
  if (!text) return undefined;
  const range = selected.getRangeAt(0);
  const node = range.commonAncestorContainer;
  return (node instanceof Element ? node : node.parentElement)?.closest("#__docusaurus article") ? { text, range } : undefined;
}
