/** Ids of the books of a site: one for each locale and version. Shared by the build and the browser. */

/** The books of one locale. */
export interface LocaleBooks {
  /** Of the last version of all docs. */
  book: string;
  /** The books of other versions that the options name. */
  versions: Record<string, string>;
}

/** What the docs plugin tells every page of a version. */
export interface Version {
  name: string;
  isLast: boolean;
  path: string;
}

interface Naming {
  book?: string;
  books: Record<string, string>;
}

const ACCENTS = /[\u0300-\u036f]/g; // \p{M} is 6 kB where it is compiled for old browsers
const TITLE_LENGTH_MAX = 40; // an id has 63 characters, and a locale and a version are added

export function localeBooks({ book, books }: Naming, title: string, locale: string, isDefault: boolean): LocaleBooks {
  const whole = book ?? (slug(title).slice(0, TITLE_LENGTH_MAX).replace(/-$/, "") || "book");
  const ofVersion = (name: string) => (name.startsWith(`${locale}/`) ? [name.slice(locale.length + 1)] : []);
  return {
    book: books[locale] ?? (isDefault ? whole : `${whole}-${slug(locale)}`),
    versions: Object.fromEntries(Object.entries(books).flatMap(([name, id]) => ofVersion(name).map((version) => [version, id]))),
  };
}

export function versionBook({ book, versions }: LocaleBooks, version: string): string {
  return versions[version] ?? `${book}-${slug(version)}`;
}

/** The book that a page asks. Pages outside of the docs ask that of the last version. */
export function bookAt(books: LocaleBooks, versions: Version[], pathname: string): string {
  const within = versions.filter(({ path }) => `${pathname}/`.startsWith(`${encodeURI(path).replace(/\/$/, "")}/`));
  const version = within.sort((one, other) => other.path.length - one.path.length)[0];
  return !version || version.isLast ? books.book : versionBook(books, version.name);
}

function slug(text: string): string {
  return text.normalize("NFKD").toLowerCase().replace(ACCENTS, "").replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
}
