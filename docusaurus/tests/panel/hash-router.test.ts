import assert from "node:assert/strict";
import { test } from "node:test";
import { anchorOf, pagesOf, targetOf, visit } from "../../src/client/panel/visit.js";

const PAGES = pagesOf([{ path: "/book/", routes: [{ path: "/book/" }, { path: "/book/gait" }, { path: "/book/wéek one" }] }]);
const place = { origin: "https://example.org", hash: "" };
Object.assign(globalThis, { location: place });

const TARGETS: [string, string, boolean][] = [
  ["/book/#/book/gait#balance", "/book/#/book/gait#balance", true],
  ["/book/#/book/gait/", "/book/#/book/gait", true],
  ["/book/#/book/w%C3%A9ek%20one#a", "/book/#/book/wéek one#a", true],
  ["/book/#/book/", "/book/#/book/", true],
  ["/book/#/book/gone#x", "/book/#/book/gone#x", false],
  ["/book/#/book/gait#%zz", "/book/#/book/gait#%zz", false],
];
for (const [url, href, isOnSite] of TARGETS) {
  test(`the hash router is led from ${url} to ${href}`, () => assert.deepEqual(targetOf(url, "/book/", PAGES), { href, isOnSite }));
}

test("the anchor stands behind the route, and a route is no anchor", () => {
  assert.equal(anchorOf("/book/#/book/gait#b%C3%A4r"), "bär");
  assert.equal(anchorOf("/book/#/book/gait"), "");
  assert.equal(anchorOf("/book/gait#balance"), "balance");
  assert.equal(anchorOf("/book/gait"), "");
});

test("the hash router is told by the address alone", () => {
  visit("/book/#/book/gait#balance");
  assert.equal(place.hash, "#/book/gait#balance");
});
