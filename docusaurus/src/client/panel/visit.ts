/** Navigation to a citation through the site's own router. */

export interface Route {
  path: string;
  routes?: Route[];
}

export type Pages = Map<string, string>;

export interface Target {
  href: string;
  isOnSite: boolean;
}

const ROUTE = "#/"; // an address of the hash router

/** Where a citation's address leads: a page of this build, some other page of the web, or nowhere. */
export function targetOf(url: string, baseUrl: string, pages: Pages): Target | undefined {
  if (!/^(https?:\/\/|\/(?![/\\]))/i.test(url)) return undefined;
  const parsed = new URL(url, location.origin);
  if (parsed.origin !== location.origin) return { href: parsed.href, isOnSite: false };
  if (parsed.hash.startsWith(ROUTE)) return inHash(parsed, pages);
  const page = pages.get(plain(parsed.pathname)) ?? pages.get(plain(baseUrl + parsed.pathname.slice(1)));
  const isOnSite = page !== undefined && isDecodable(parsed.hash); // the router would fail at one that is not
  return { href: (page ?? parsed.pathname) + parsed.search + parsed.hash, isOnSite };
}

/** With the hash router: the frame's address, the route, and perhaps an anchor. */
function inHash({ pathname, hash }: URL, pages: Pages): Target {
  const [, route = "", anchor] = hash.split("#");
  const page = pages.get(plain(route));
  const behind = anchor ? `#${anchor}` : "";
  return { href: `${pathname}#${page ?? route}${behind}`, isOnSite: page !== undefined && isDecodable(behind) };
}

/** The id that an address leads to, or "". */
export function anchorOf(href: string): string {
  const last = href.split("#").slice(1).at(-1) ?? "";
  return last.startsWith("/") ? "" : decodeURIComponent(last);
}

/**
 * The panel is outside of the site's React tree, because a theme component could be replaced by the site's own.
 * So the router learns of a new address as it does of the back button.
 */
export function visit(href: string): void {
  if (href.includes(ROUTE)) {
    location.hash = href.slice(href.indexOf(ROUTE));
    return;
  }
  const state = { key: Math.random().toString(36).slice(2, 8) };
  history.pushState(state, "", href);
  dispatchEvent(new PopStateEvent("popstate", { state }));
}

/** The paths of this build, with or without a trailing slash as it has them. */
export function pagesOf(routes: Route[]): Pages {
  return new Map(leaves(routes).map(({ path }) => [plain(path), path]));
}

function leaves(among: Route[]): Route[] {
  return among.flatMap((route) => (route.routes ? leaves(route.routes) : route.path === "*" ? [] : [route]));
}

function isDecodable(hash: string): boolean {
  try {
    decodeURIComponent(hash);
    return true;
  } catch {
    return false;
  }
}

function plain(path: string): string {
  const bare = path.replace(/\/+$/, "");
  try {
    return decodeURI(bare);
  } catch {
    return bare;
  }
}
