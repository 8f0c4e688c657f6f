/** The lazy-loaded part, which the client module loads when the panel is opened for the first time. */
import texts from "@generated/docusaurus-plugin-affidavit/default/texts.json";
import routes from "@generated/routes.js";
import { flushSync } from "react-dom";
import { createRoot, type Root } from "react-dom/client";
import { adopt } from "../adopt.js";
import { askPath } from "../asked.js";
import type { Site } from "../site.js";
import { clearHighlight, show } from "./highlight.js";
import { AskPanel } from "./AskPanel.js";
import type { Asking } from "./conversation.js";
import type { Following } from "./Guide.js";
import { keepingPlace } from "./place.js";
import { takeShared } from "./sharing.js";
import { STYLE } from "./style.js";
import { anchorOf, pagesOf, targetOf, visit } from "./visit.js";

export interface Panel {
  open(selection: string | undefined): void;
  arrived(): void;
}

const COVERED = "(max-width: 36rem)"; // there the panel covers the page
const CROWDED = "(max-width: 996px)"; // there it covers what a citation leads to; Docusaurus' own limit for small screens

/** State machine of the panel: open, minimised while a citation is read on a small screen, and closed, with its state discarded. */
export function create(site: Site, launcher: HTMLButtonElement): Panel {
  const host = document.body.appendChild(document.createElement("div"));
  adopt(STYLE);
  const covered = matchMedia(COVERED);
  const pages = pagesOf(routes);
  const here = { ...site, get path() { return askPath(site); } }; // the page changes under the open panel
  let root: Root | undefined;
  let isAside = false;
  let selection: string | undefined;
  let openings = 0;
  let shared: Asking | undefined;
  let cameFrom: Element | null;
  let following: Following | undefined;
  covered.addEventListener("change", draw);

  function open(selected: string | undefined): void {
    cameFrom = isAside ? cameFrom : document.activeElement;
    shared = takeShared();
    selection = selected;
    openings += 1;
    isAside = false;
    root ??= createRoot(host);
    keepingPlace(() => flushSync(draw));
  }

  function draw(): void {
    const covers = covered.matches && root !== undefined && !isAside;
    host.hidden = isAside;
    launcher.hidden = !isAside && (root !== undefined || !!site.isButtonless);
    launcher.textContent = isAside ? texts.back : texts.ask;
    document.getElementById("__docusaurus")!.inert = covers;
    root?.render(
      <AskPanel site={here} texts={texts} selection={selection} openings={openings} shared={shared} isModal={covers}
        targetOf={(url) => targetOf(url, site.baseUrl, pages)} close={close} follow={follow} />,
    );
  }

  function close(): void {
    keepingPlace(() => root?.unmount());
    root = undefined;
    following = undefined;
    clearHighlight();
    draw();
    focusable(cameFrom, launcher).focus({ preventScroll: true });
  }

  function follow(to: Following): void {
    following = to;
    if (matchMedia(CROWDED).matches) {
      isAside = true;
      draw();
      launcher.focus({ preventScroll: true });
    }
    visit(to.href);
  }

  function arrived(): void {
    if (!following) return;
    const { excerpt, href, tell } = following;
    following = undefined;
    void show(excerpt, anchorOf(href)).then((isFound) => tell(isFound || !excerpt));
  }

  return { open, arrived };
}

/** The element that gets the focus back: the earlier one, or the launcher if that is gone. */
function focusable(before: Element | null, launcher: HTMLElement): HTMLElement {
  return before instanceof HTMLElement && before !== document.body && before.checkVisibility?.() ? before : launcher;
}
