/** What a built site says of itself, in the heads of its exports: its baseUrl and its books. */
import { closeSync, openSync, readdirSync, readSync } from "node:fs";
import { join } from "node:path";

export interface Built {
  baseUrl: string;
  /** The main one first. Older exports name none. */
  books: string[];
}

interface Head {
  site?: { baseUrl?: string };
  book?: { id?: string };
}

const MAIN = "affidavit-content.json";
const EXPORT = /^affidavit-content(-.+)?\.json$/;
const HEAD_BYTES_MAX = 65_536; // the first line, before the pages

export function builtSite(folder: string): Built {
  const files = exportsIn(folder);
  const books = files.map((file) => headOf(file).book?.id).filter((id) => id !== undefined);
  const baseUrl = files[0] === join(folder, MAIN) ? headOf(files[0]).site?.baseUrl : undefined;
  return { baseUrl: baseUrl ?? "/", books: [...new Set(books)] };
}

/** Of the default locale, whose main book is the first, and of the folders of the others. */
function exportsIn(folder: string): string[] {
  const entries = readdirSync(folder, { withFileTypes: true });
  const own = entries.filter(({ name }) => EXPORT.test(name)).map(({ name }) => name).sort(mainFirst);
  const locales = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name).sort();
  const others = locales.flatMap((locale) =>
    readdirSync(join(folder, locale)).filter((name) => EXPORT.test(name)).sort(mainFirst).map((name) => join(locale, name)));
  return [...own, ...others].map((name) => join(folder, name));
}

function mainFirst(one: string, other: string): number {
  return Number(other === MAIN) - Number(one === MAIN) || (one < other ? -1 : 1);
}

/** Without its pages, which may be many megabytes. */
function headOf(path: string): Head {
  const file = openSync(path, "r");
  try {
    const bytes = Buffer.alloc(HEAD_BYTES_MAX);
    const [line = ""] = bytes.toString("utf8", 0, readSync(file, bytes)).split("\n", 1);
    return JSON.parse(`${line}]}`) as Head;
  } catch {
    throw new Error(`${path} cannot be read. Build the site again.`);
  } finally {
    closeSync(file);
  }
}
