/** Where a page sends its questions: to the book of its locale and version. */
import books from "@generated/docusaurus-plugin-affidavit/default/books.json";
import globalData from "@generated/globalData.json";
import { bookAt } from "../book.js";
import type { Site } from "./site.js";

export function askPath({ path }: Site): string {
  const docs = Object.values(globalData["docusaurus-plugin-content-docs"] ?? {});
  return `${path}?book=${bookAt(books, docs.flatMap(({ versions }) => versions), route())}`;
}

/** Of the page that is open; with the hash router it stands behind the sign. */
function route(): string {
  return location.hash.startsWith("#/") ? location.hash.slice(1).split("#")[0]! : location.pathname;
}
