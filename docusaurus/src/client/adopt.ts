/**
 * A stylesheet made by script also passes a strict content security policy, and Docusaurus would bundle a file of CSS into
 * the one that every page waits for. In a browser too old for it there is no panel, and the book is as it was.
 */
export const canAdopt = typeof document === "object" && "adoptedStyleSheets" in document;

export function adopt(style: string): void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style);
  document.adoptedStyleSheets = document.adoptedStyleSheets.concat(sheet); // Chrome's first ones cannot be pushed to
}
