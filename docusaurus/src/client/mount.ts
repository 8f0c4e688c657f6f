/** The client module: a button, a shortcut and "Ask about this". The panel itself is loaded when it is first opened. */
import globalData from "@generated/globalData.json";
import { adopt, canAdopt } from "./adopt.js";
import type { Panel } from "./panel/open.js";

const SELECTION_RESTS_MS = 250; // while it still changes, nothing should jump after it
const GAP_PX = 8;
const NAVBAR_PX = 60;

const site = globalData["docusaurus-plugin-affidavit"].default;
const STYLE = `.affidavit-button{position:fixed;inset-block-end:1.3rem;inset-inline-end:1.3rem;z-index:199;padding:.6rem 1.1rem;border:1px solid var(--ifm-background-surface-color);border-radius:99px;background:var(--ifm-font-color-base);color:var(--ifm-background-surface-color);font:600 .875rem/1.2 var(--ifm-font-family-base);box-shadow:var(--ifm-global-shadow-md);cursor:pointer}
.affidavit-button:focus-visible{outline:3px solid var(--ifm-color-primary);outline-offset:2px}
body .theme-back-to-top-button{bottom:4.8rem}
${site.style || ""}.affidavit-button[hidden]{display:none}
.affidavit-chip{position:absolute;inset:auto;padding:.4rem .8rem}
@media print{.affidavit-button{display:none}}`;

let launcher: HTMLButtonElement | undefined;
let chip: HTMLButtonElement;
let panel: Panel | undefined;
let restTimer = 0;

export function onRouteDidUpdate(): void {
  if (panel) panel.arrived();
  else if (!launcher && canAdopt) mount();
  if (launcher && /affidavit-ask=/.test(location.hash)) open(); // a shared question
}

function mount(): void {
  adopt(STYLE);
  launcher = button(site.texts.ask, "");
  launcher.hidden = !!site.isButtonless;
  chip = button(site.texts.askSelection, " affidavit-chip");
  chip.hidden = true;
  document.addEventListener("selectionchange", () => {
    clearTimeout(restTimer);
    restTimer = window.setTimeout(offer, SELECTION_RESTS_MS);
  });
  document.addEventListener("click", ({ target }) => {
    if (isWithin(target, "[data-affidavit-open]")) open();
  });
  document.addEventListener("keydown", (event) => {
    if (!isShortcut(event) || isWithin(event.target, "input,textarea,select,[contenteditable]")) return;
    event.preventDefault();
    open();
  });
}

function button(label: string, more: string): HTMLButtonElement {
  const made = Object.assign(document.createElement("button"), {
    type: "button",
    className: "affidavit-button" + more,
    textContent: label,
    title: site.texts.ask + (/Mac|iP/.test(navigator.platform) ? " ⌥A" : " Alt+A"),
    ariaKeyShortcuts: "Alt+A",
    onclick: open,
  });
  document.body.append(made);
  return made;
}

/** The shortcut uses Alt, because browsers and Docusaurus' search use Ctrl and ⌘; a Mac turns ⌥A into å. */
function isShortcut(event: KeyboardEvent): boolean {
  const isAlone = event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  return isAlone && (event.key === "a" || (event.key > "~" && event.code === "KeyA"));
}

function isWithin(target: EventTarget | null, selector: string): boolean {
  return Boolean((target as Element | null)?.closest?.(selector)); // the document itself has no such method
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

/** Below the selection, or above it: never on it. If there is room at neither, the button at the edge asks as well. */
function offer(): void {
  const selected = selection();
  chip.hidden = !selected;
  if (!selected) return;
  const { top, bottom, left } = selected.range.getBoundingClientRect();
  const height = chip.offsetHeight + GAP_PX;
  const y = bottom + height < innerHeight ? bottom + GAP_PX : top - height;
  chip.style.top = `${scrollY + y}px`;
  chip.style.left = `${Math.max(GAP_PX, Math.min(left, innerWidth - chip.offsetWidth - GAP_PX))}px`;
  chip.hidden = y < NAVBAR_PX;
}

/** The text selected on the page, as the reader sees it: without the hidden link behind a heading. */
function selection(): { text: string; range: Range } | undefined {
  const selected = getSelection()!;
  const text = `${selected}`.replace(/\u200b/g, "").trim();
  if (!text) return undefined;
  const range = selected.getRangeAt(0);
  const node = range.commonAncestorContainer;
  return isWithin(node instanceof Element ? node : node.parentElement, "#__docusaurus article") ? { text, range } : undefined;
}
