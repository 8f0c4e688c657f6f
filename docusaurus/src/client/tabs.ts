/**
 * Tabs of the page: a quote in a closed one is shown by opening it, as the reader would. `Array.from` and no spread: the
 * older bundler of Docusaurus compiles a spread for arrays alone.
 */

/** Opens the closed tabs around a node of the page, the outermost first. */
export async function openAround(node: Node): Promise<void> {
  const around: Element[] = [];
  for (let element = node.parentElement; element; element = element.parentElement) {
    if (element.matches("[role=tabpanel][hidden]")) around.unshift(element);
  }
  for (const panel of around) {
    const number = Array.from(panel.parentElement!.children).indexOf(panel);
    tabsOf(panel.parentElement!.previousElementSibling)[number]?.click();
  }
  if (around.length > 0) await rendered();
}

/** The page lacks what is in closed lazy tabs. Opens them one by one until `find` finds; if it does not, all are as before. */
export async function findInLazy<Found>(page: Element, find: () => Found | undefined): Promise<Found | undefined> {
  // The innermost first: those in a tab are gone when it is closed.
  for (const list of Array.from(page.querySelectorAll("[role=tablist]")).reverse()) {
    const tabs = tabsOf(list);
    const open = tabs.find((tab) => tab.getAttribute("aria-selected") === "true");
    if (!open || panelsOf(list).length === tabs.length) continue;
    for (const tab of tabs.filter((one) => one !== open)) {
      tab.click();
      await rendered();
      const found = find() ?? (await findInLazy(list.nextElementSibling ?? list, find));
      if (found) return found;
    }
    open.click();
    await rendered();
  }
  return undefined;
}

function tabsOf(list: Element | null): HTMLElement[] {
  return Array.from(list?.querySelectorAll<HTMLElement>("[role=tab]") ?? []);
}

/** Of lazy tabs there is one. Older themes put it beside the list, newer ones into a box beside it. */
function panelsOf(list: Element): Element[] {
  const beside = list.nextElementSibling;
  return beside?.matches("[role=tabpanel]") ? [beside] : Array.from(beside?.querySelectorAll(":scope > [role=tabpanel]") ?? []);
}

/** React renders what a click asks for before the next task. */
function rendered(): Promise<void> {
  return new Promise((done) => setTimeout(done));
}
