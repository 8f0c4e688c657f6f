/** The pages of all docs plugins of a site, in the order of their sidebars, with the files that were built of them. */
import { createRequire } from "node:module";
import path from "node:path";
import type { Props } from "@docusaurus/types";

const { createMatcher } = createRequire(import.meta.url)("@docusaurus/utils") as typeof import("@docusaurus/utils");

const DOCS_PLUGIN = "docusaurus-plugin-content-docs";

export interface DocsPage {
  permalink: string;
  source: string;
  title: string;
  /** False if Docusaurus took the title from the first heading, as it is written and not as it is seen. */
  hasOwnTitle: boolean;
  version: string;
  isLastVersion: boolean;
  position: number | null;
  frontMatter: Record<string, unknown>;
  /** Undefined if the site has no route for the page. */
  file: string | undefined;
}

// What we use of the docs plugin's content. Its own types would be a dependency on it.
interface Version {
  versionName: string;
  isLast: boolean;
  contentPath: string;
  contentPathLocalized?: string;
  docs: Doc[];
  sidebars: Record<string, SidebarItem[]>;
}
interface Doc {
  id: string;
  source: string;
  permalink: string;
  title: string;
  unlisted: boolean;
  sidebar?: string;
  frontMatter: Record<string, unknown>;
}
interface SidebarItem {
  type: string;
  id?: string;
  link?: { type: string; id?: string };
  items?: SidebarItem[];
}

/** The pages of all docs, without unlisted and excluded ones; a production build has no drafts. */
export function docsPages(props: Props, exclude: string[]): DocsPage[] {
  const isExcluded = createMatcher(exclude);
  const routes = new Map(props.routesPaths.map((route) => [bare(route), route]));
  const pages = new Map<string, DocsPage>();
  for (const version of versionsOf(props)) {
    for (const { doc, position } of inOrder(version)) {
      const page = pageOf(props, routes, version, doc, position);
      const isShown = !doc.unlisted && !isExcluded(pathInDocs(version, page.source, props.siteDir));
      // The same folder shown twice is one source; the first address stands for it.
      if (isShown && !pages.has(page.source)) pages.set(page.source, page);
    }
  }
  return [...pages.values()];
}

/** As the docs plugin's own globs have it: the same for every version and every locale. */
function pathInDocs({ contentPath, contentPathLocalized }: Version, source: string, siteDir: string): string {
  const file = path.resolve(siteDir, source);
  const inside = [contentPathLocalized, contentPath].filter((folder) => folder !== undefined && file.startsWith(folder + path.sep));
  return path.relative(inside[0] ?? siteDir, file).replaceAll(path.sep, "/");
}

function versionsOf(props: Props): Version[] {
  return props.plugins
    .filter((plugin) => plugin.name === DOCS_PLUGIN)
    .flatMap((plugin) => (plugin.content as { loadedVersions: Version[] }).loadedVersions);
}

function inOrder({ docs, sidebars }: Version): { doc: Doc; position: number | null }[] {
  const orders = new Map(Object.entries(sidebars).map(([name, items]) => [name, docIds(items)]));
  const names = [...orders.keys()];
  const placed = docs.map((doc) => {
    const index = orders.get(doc.sidebar ?? "")?.indexOf(doc.id) ?? -1;
    return { doc, position: index < 0 ? null : index + 1 };
  });
  const sidebarOf = ({ doc, position }: (typeof placed)[number]) =>
    position === null ? names.length : names.indexOf(doc.sidebar ?? "");
  return placed.sort((one, two) => sidebarOf(one) - sidebarOf(two) || (one.position ?? 0) - (two.position ?? 0));
}

function docIds(items: SidebarItem[]): string[] {
  return items.flatMap((item) => {
    if (item.type === "doc") return item.id ?? [];
    if (item.type !== "category") return [];
    const own = item.link?.type === "doc" ? (item.link.id ?? []) : [];
    return [own, docIds(item.items ?? [])].flat();
  });
}

function pageOf(
  props: Props, routes: Map<string, string>, version: Version, doc: Doc, position: number | null,
): DocsPage {
  // `trailingSlash` is applied to routes, not to the permalinks of docs.
  const route = routes.get(bare(doc.permalink));
  return {
    permalink: route ?? doc.permalink,
    source: doc.source.replace(/^@site\//, ""),
    title: doc.title,
    hasOwnTitle: typeof doc.frontMatter.title === "string" && doc.frontMatter.title !== "",
    version: version.versionName,
    isLastVersion: version.isLast,
    position,
    frontMatter: doc.frontMatter,
    file: route && builtFile(props, route),
  };
}

/** Where Docusaurus writes a route. */
export function builtFile({ outDir, siteConfig }: Props, route: string): string {
  const { baseUrl, trailingSlash } = siteConfig;
  const inSite = `${route}/`.startsWith(baseUrl) ? route.slice(baseUrl.length) : route.slice(1);
  if (/\.html?$/i.test(inSite)) return path.join(outDir, inSite);
  const isFile = trailingSlash === false && inSite !== "" && !inSite.endsWith("/");
  return path.join(outDir, isFile ? `${inSite}.html` : path.join(inSite, "index.html"));
}

function bare(route: string): string {
  return route.replace(/(.)\/$/, "$1");
}
