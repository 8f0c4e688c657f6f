import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { buttonStyle } from "../src/button.js";
import { refuseUnknownLocales, validateOptions } from "../src/options.js";

const { normalizePluginOptions } = createRequire(import.meta.url)("@docusaurus/utils-validation");
const KEY = "aff_6fc4350f84_bce2512db3bb9531";

function valid(options: unknown) {
  return validateOptions({ options: options as object, validate: normalizePluginOptions });
}

test("no options are needed", () => {
  assert.deepEqual(valid(undefined), {
    id: "default", path: "/ask", gateway: "http://127.0.0.1:3300", books: {}, exclude: [],
    button: true, position: "bottom-end", zIndex: 199,
  });
});

test("all options are taken as they are", () => {
  const options = {
    path: "/api/ask", gateway: "http://127.0.0.1:9000", book: "my-book", books: { "de": "mein-buch", "de/1.0": "altes-buch" },
    exclude: ["internal/**"], button: false, position: "top-start", zIndex: 1000,
  };
  assert.deepEqual(valid(options), { id: "default", ...options });
});

// Seen red with the recursion of refuseSecrets removed.
for (const options of [
  { apiKey: "x" }, { api_key: "x" }, { token: "x" }, { clientSecret: "x" }, { password: "x" }, { bearer: "x" },
  { Authorization: "x" }, { headers: { authorization: "x" } }, { a: { b: [{ c: { TOKEN: 1 } }] } },
  { path: KEY }, { a: { b: [KEY] } }, { path: `/ask?${KEY}` }, { path: "Bearer abc" }, { gateway: "http://me:word@127.0.0.1:3300" },
]) {
  test(`a secret is refused: ${JSON.stringify(options)}`, () => {
    assert.throws(() => valid(options), /looks like a secret.*AFFIDAVIT_KEY|looks like a secret.*gateway/);
  });
}

// Seen red with the value in the message.
test("the refusal of a secret does not repeat it", () => {
  assert.throws(() => valid({ a: { b: KEY } }), ({ message }: Error) => !message.includes("bce2512") && message.includes("options.a.b"));
});

test("options that contain themselves are refused, not followed for ever", () => {
  const options: Record<string, unknown> = {};
  options.self = options;
  assert.throws(() => valid(options));
});

for (const options of [
  { path: "ask" }, { path: "//elsewhere.example/ask" }, { path: "https://elsewhere.example/ask" }, { path: "/ask?x" },
  { gateway: "file:///etc" }, { id: "second" }, { colour: "red" }, { book: "My Book" }, { books: { "de": "Mein Buch" } },
  { books: { "de/1.0/x": "y" } }, { exclude: "internal/**" }, { button: "no" }, { position: "left" }, { zIndex: "9" }, { zIndex: 1.5 },
]) {
  test(`what would not work is refused: ${JSON.stringify(options)}`, () => {
    assert.throws(() => valid(options));
  });
}

test("a book of a locale that the site does not have is refused", () => {
  const options = valid({ books: { "de": "buch", "fr/1.0": "livre" } });
  assert.throws(() => refuseUnknownLocales(options, ["en", "de"]), /"fr\/1\.0".*en, de/);
  refuseUnknownLocales(options, ["en", "de", "fr"]);
});

test("the button stands where the options say, and a site without them carries no byte of it", () => {
  assert.equal(buttonStyle(valid({})), undefined);
  assert.equal(buttonStyle(valid({ zIndex: 1000 })), ".affidavit-button{z-index:1000}");
  assert.match(buttonStyle(valid({ position: "bottom-start" })) ?? "", /inset-block:auto 1\.3rem;inset-inline:1\.3rem auto.*bottom:1\.3rem/);
  assert.match(buttonStyle(valid({ position: "top-end" })) ?? "", /inset-block:calc\(.*navbar.*\) auto;inset-inline:auto 1\.3rem/);
  assert.match(buttonStyle(valid({ button: false })) ?? "", /^\.theme-back-to-top/);
});
