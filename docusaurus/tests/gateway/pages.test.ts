/** The built site, shown by the gateway: what is found, under which address, and what nobody may find. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { once } from "node:events";
import { join } from "node:path";
import { test } from "node:test";
import { assertHas, folder, get, line, raw, startGateway, type Gateway, type Test } from "./scene.js";

const SECRET = "what lies outside";
const FILES: Record<string, string> = {
  "index.html": "home",
  "404.html": "not here",
  "docs/intro/index.html": "a page in a folder",
  "docs/plain.html": "a page in a file",
  "docs/a b.html": "a page with a space",
  "docs/émile.html": "a page with an accent",
  "assets/js/main.0a1b2c3d.js": "script",
  "assets/css/styles.0a1b2c3d.css": "style",
  "assets/images/photo-20240101.png": "a picture with a date in its name",
  "img/logo.svg": "<svg/>",
  ".well-known/security.txt": "contact",
  ".env": SECRET,
  ".git/config": SECRET,
  "docs/.hidden/index.html": SECRET,
  "data.weird": "bytes",
  "empty.txt": "",
};

async function scene(test: Test, flags: readonly string[] = []): Promise<{ gateway: Gateway; url: string; site: string }> {
  const parent = folder(test);
  const site = join(parent, "build");
  for (const [name, content] of Object.entries(FILES)) {
    mkdirSync(join(site, name, ".."), { recursive: true });
    writeFileSync(join(site, name), content);
  }
  mkdirSync(join(parent, "build-private"));
  for (const outside of ["secret.txt", "build-private/secret.txt", "secret.txt.html"]) writeFileSync(join(parent, outside), SECRET);
  const gateway = await startGateway(test, ["--site", site, ...flags]);
  return { gateway, url: gateway.url, site };
}

test("pages have clean addresses, with or without a slash at the end", async (t) => {
  const { url } = await scene(t);
  const shown: Record<string, string> = {
    "/": "home",
    "/docs/intro": "a page in a folder",
    "/docs/intro/": "a page in a folder",
    "/docs/plain": "a page in a file",
    "/docs/plain/": "a page in a file",
    "/docs/plain?q=1/../2": "a page in a file",
    "/docs/a%20b": "a page with a space",
    "/docs/%C3%A9mile": "a page with an accent",
    "/.well-known/security.txt": "contact",
    "/empty.txt": "",
  };
  for (const [path, content] of Object.entries(shown)) assertHas({ ...(await get(url, path)) }, { status: 200, text: content });
  const moved = { "/index.html": "/", "/docs/intro/index.html": "/docs/intro/", "/docs/plain.html?a=b": "/docs/plain?a=b" };
  for (const [path, location] of Object.entries(moved)) {
    const told = await get(url, path);
    assert.deepEqual([told.status, told.headers.location], [302, location], path);
  }
});

test("what is not there gets the site's own page, and says 404", async (t) => {
  const { url } = await scene(t);
  for (const path of ["/nothing", "/docs/", "/docs", "/docs/nothing.js", "/index.html/", "/docs/plain.html/x"]) {
    assertHas({ ...(await get(url, path)) }, { status: 404, text: "not here" });
  }
});

test("a site below a base has all its pages there", async (t) => {
  const { url } = await scene(t, ["--base-url=/books/robots/"]);
  assert.equal((await get(url, "/books/robots/docs/plain")).text, "a page in a file");
  for (const path of ["/", "/books/robots"]) {
    const told = await get(url, path);
    assert.deepEqual([told.status, told.headers.location], [302, "/books/robots/"]);
  }
  assert.equal((await get(url, "/books/robots/docs/plain.html")).headers.location, "/books/robots/docs/plain");
  for (const path of ["/docs/plain", "/books/robotsdocs/plain", "/books/", "/books/robots/../robots/docs/plain"]) {
    assert.equal((await get(url, path)).status, 404, path);
  }
});

// Seen red with the check of the parts taken out (dot files), with realpath taken out (links), and with
// `startsWith(folder)` without the separator (the folder beside).
test("nothing outside of the folder is shown, however it is asked for, and no dot file", async (t) => {
  const { url, site } = await scene(t);
  symlinkSync(join(site, "..", "secret.txt"), join(site, "link.txt"));
  symlinkSync(join(site, "..", "build-private"), join(site, "linked"));
  symlinkSync("/", join(site, "root"));
  const asked = [
    "/../secret.txt", "/docs/../../secret.txt", "/%2e%2e/secret.txt", "/%2E%2E%2Fsecret.txt", "/..%2fsecret.txt",
    "/docs/..%2f..%2fsecret.txt", "/%252e%252e/secret.txt", "/..%5csecret.txt", "/..\\secret.txt", "/.%2e/secret.txt",
    "/..;/secret.txt", "/%c0%ae%c0%ae/secret.txt", "/..%00/secret.txt", "/index.html%00.txt", "/%", "/%ff", "/%u002e%u002e/secret.txt",
    "/../build-private/secret.txt", "/%2e%2e/build-private/secret.txt", "//secret.txt", "/./.env", "/....//secret.txt",
    "/link.txt", "/linked/secret.txt", "/root/etc/passwd", "/root/proc/self/environ",
    "/.env", "/%2eenv", "/.git/config", "/docs/.hidden/", "/docs/.hidden", "/.", "/..", "/docs/.", "/.well-known/../.env",
    `${site}/../secret.txt`, "http://localhost/../secret.txt", "file:///etc/passwd", "*", "secret.txt", "../secret.txt",
  ];
  for (const path of asked) {
    const told = await raw(url, `GET ${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
    assert.match(told, /^HTTP\/1\.1 40[04] /, path);
    assert.doesNotMatch(told, /what lies outside|root:|AFFIDAVIT/, path);
  }
});

test("no address makes the gateway send readers to another site", async (t) => {
  const { url } = await scene(t);
  for (const path of ["//evil.example/index.html", "/\\evil.example/index.html", "/%5cevil.example/index.html", "//evil.example/..html", "/%0d%0aX-Bad:1/index.html"]) {
    const told = await raw(url, `GET ${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
    assert.doesNotMatch(told, /^(location|x-bad):/im, path);
  }
});

test("a link within the folder is followed, and a pipe does not hold anybody up", async (t) => {
  const { url, site } = await scene(t);
  symlinkSync(join(site, "docs"), join(site, "latest"));
  execFileSync("mkfifo", [join(site, "pipe")]);
  assert.equal((await get(url, "/latest/plain")).text, "a page in a file");
  assert.equal((await get(url, "/pipe")).status, 404);
});

test("files have their types, and headers that protect who reads them", async (t) => {
  const { url } = await scene(t);
  const types = {
    "/": "text/html; charset=utf-8", "/assets/js/main.0a1b2c3d.js": "text/javascript; charset=utf-8",
    "/assets/css/styles.0a1b2c3d.css": "text/css; charset=utf-8", "/img/logo.svg": "image/svg+xml",
    "/data.weird": "application/octet-stream", "/nothing": "text/html; charset=utf-8",
  };
  for (const [path, type] of Object.entries(types)) {
    assertHas((await get(url, path)).headers, {
      "content-type": type, "x-content-type-options": "nosniff", "x-frame-options": "SAMEORIGIN",
      "referrer-policy": "strict-origin-when-cross-origin",
    });
  }
  assert.doesNotMatch(String((await get(url, "/")).headers["content-security-policy"]), /script-src|default-src/);
});

test("a file that did not change is not sent again, and one that did is", async (t) => {
  const { url, site } = await scene(t);
  const tag = String((await get(url, "/")).headers.etag);
  for (const known of [tag, `W/${tag}`, `"other", ${tag}`, "*"]) {
    assertHas({ ...(await get(url, "/", { "If-None-Match": known })) }, { status: 304, text: "" });
  }
  assert.equal((await get(url, "/", { "If-None-Match": '"other"' })).status, 200);
  writeFileSync(join(site, "index.html"), "HOME");
  assertHas({ ...(await get(url, "/", { "If-None-Match": tag })) }, { status: 200, text: "HOME" });
});

test("a part of a file can be had, as players of films ask for it", async (t) => {
  const { url, site } = await scene(t);
  writeFileSync(join(site, "film.mp4"), "0123456789");
  const tag = String((await get(url, "/film.mp4")).headers.etag);
  const parts: Record<string, [number, string, string | undefined]> = {
    "bytes=0-1": [206, "01", "bytes 0-1/10"], "bytes=4-": [206, "456789", "bytes 4-9/10"], "bytes=-3": [206, "789", "bytes 7-9/10"],
    "bytes=8-99": [206, "89", "bytes 8-9/10"], "bytes=-99": [206, "0123456789", "bytes 0-9/10"],
    "bytes=10-": [200, "0123456789", undefined], "bytes=5-4": [200, "0123456789", undefined], "bytes=-0": [200, "0123456789", undefined],
    "bytes=0-1,4-5": [200, "0123456789", undefined], "bytes=-": [200, "0123456789", undefined], "lines=0-1": [200, "0123456789", undefined],
    "bytes=99999999999999999999-": [200, "0123456789", undefined],
  };
  for (const [range, [status, text, said]] of Object.entries(parts)) {
    const told = await get(url, "/film.mp4", { Range: range });
    assert.deepEqual([told.status, told.text, told.headers["content-range"]], [status, text, said], range);
    assert.equal(told.headers["content-length"], String(text.length));
  }
  assert.equal((await get(url, "/film.mp4", { "Range": "bytes=0-1", "If-Range": tag })).status, 206);
  assert.equal((await get(url, "/film.mp4", { "Range": "bytes=0-1", "If-Range": '"other"' })).status, 200);
  assert.equal((await get(url, "/empty.txt", { Range: "bytes=0-" })).status, 200);
  assert.equal((await get(url, "/nothing", { Range: "bytes=0-1" })).status, 404);
});

test("only what has its content in its name is kept for long", async (t) => {
  const { url } = await scene(t);
  for (const path of ["/assets/js/main.0a1b2c3d.js", "/assets/css/styles.0a1b2c3d.css"]) {
    assert.match(String((await get(url, path)).headers["cache-control"]), /immutable/);
  }
  for (const path of ["/", "/assets/images/photo-20240101.png", "/nothing"]) {
    assert.equal((await get(url, path)).headers["cache-control"], "no-cache");
  }
});

test("HEAD says what GET would, and no other method reads", async (t) => {
  const { url } = await scene(t);
  const told = await get(url, "/", {}, "HEAD");
  assert.deepEqual([told.status, told.headers["content-length"], told.text], [200, "4", ""]);
  for (const method of ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"]) {
    const refused = await get(url, "/", {}, method);
    assert.deepEqual([refused.status, refused.headers.allow], [405, "GET, HEAD"], method);
  }
});

test("a reader who leaves in the middle of a file does no harm", async (t) => {
  const { gateway, url, site } = await scene(t);
  writeFileSync(join(site, "large.bin"), Buffer.alloc(20_000_000));
  const leaving = line(url);
  leaving.write("GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n");
  await once(leaving, "data");
  leaving.destroy();
  assert.equal((await get(url, "/large.bin")).text.length, 20_000_000);
  assert.equal(gateway.process.exitCode, null);
});

test("the gateway's own health is its own address", async (t) => {
  const { url } = await scene(t);
  assertHas({ ...(await get(url, "/healthz")) }, { status: 200, text: '{"status":"ok"}\n' });
});
