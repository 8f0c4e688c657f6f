import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { validateOptions } from "../src/options.js";

const { normalizePluginOptions } = createRequire(import.meta.url)("@docusaurus/utils-validation");
const KEY = "aff_6fc4350f84_bce2512db3bb9531";

function valid(options: unknown) {
  return validateOptions({ options: options as object, validate: normalizePluginOptions });
}

test("no options are needed", () => {
  assert.deepEqual(valid(undefined), { id: "default", path: "/ask", gateway: "http://127.0.0.1:3300" });
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
{ gateway: "file:///etc" }, { id: "second" }, { colour: "red" },
]) {
  test(`what would not work is refused: ${JSON.stringify(options)}`, () => {
    assert.throws(() => valid(options));
  });
}
