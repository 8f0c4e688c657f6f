/**
 * A constructed stylesheet: it passes a strict Content-Security-Policy, and does not go into the CSS bundle that every
 * page waits for. A browser that is too old for it shows no panel.
 */
export const canAdopt = typeof document === "object" && "adoptedStyleSheets" in document;

export function adopt(style: string): void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style);
  document.adoptedStyleSheets = document.adoptedStyleSheets.concat(sheet); // Chrome's first ones cannot be pushed to
}
