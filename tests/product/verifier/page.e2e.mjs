// The verifier page in a real browser, as its reader opens it: from a file. VERIFIER_PAGE is the file, VERIFIER_CASES a folder of
// evidence (tests/parts/verifier/cases.py), VERIFIER_PROOFS the examples of all proofs, E2E_BROWSER chromium or firefox; E2E_SCREENSHOTS
// may be a folder for pictures.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";

const { VERIFIER_PAGE, VERIFIER_CASES, VERIFIER_PROOFS, VERIFIER_PLUGIN, E2E_BROWSER, E2E_SCREENSHOTS, CHROMIUM = "/usr/bin/chromium" } = process.env;
const installed = createRequire(path.join(VERIFIER_PLUGIN, "package.json"));
const { chromium, firefox } = installed("playwright-core");
const AXE = readFileSync(installed.resolve("axe-core/axe.min.js"), "utf8");
const ADDRESS = pathToFileURL(VERIFIER_PAGE).href;
const IS_FIREFOX = E2E_BROWSER === "firefox";
const DESK = { width: 1100, height: 900 }, PHONE = { width: 360, height: 740 };
const WAIT_MS = 120_000; // no speed is promised here, and the machine may be busy
const { public_keys: PUBLIC_KEYS, proofs: PROOFS } = JSON.parse(readFileSync(VERIFIER_PROOFS, "utf8"));
const evidence = (name) => path.join(VERIFIER_CASES, name);
const KEYS = readFileSync(evidence("keys"), "utf8"), POLICY = readFileSync(evidence("policy"), "utf8");
const CASES = JSON.parse(readFileSync(evidence("cases.json"), "utf8"));

let browser;
before(async () => {
  browser = IS_FIREFOX
    ? await firefox.launch({ channel: "moz-firefox", executablePath: path.join(VERIFIER_PLUGIN, "e2e/firefox.mjs"), firefoxUserPrefs: { "ui.prefersReducedMotion": 1 } })
    : await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] });
});
after(() => browser.close());

test("every example of a proof has the verdict of the command line", async (t) => {
  const { page, complaints } = await reader(t, { keys: PUBLIC_KEYS.join("\n"), policy: "" });
  assert.deepEqual(await verdictsOf(page, PROOFS), PROOFS.map(({ name, verdict }) => [name, verdict]));
  assert.deepEqual(complaints, []);
});

test("and so it has where the browser has no Ed25519", async (t) => {
  const { page } = await reader(t, { keys: PUBLIC_KEYS.join("\n"), policy: "", script: () => {
    const none = () => Promise.reject(new DOMException("Unrecognized name.", "NotSupportedError"));
    Object.assign(SubtleCrypto.prototype, { verify: none, importKey: none });
  } });
  assert.deepEqual(await verdictsOf(page, PROOFS), PROOFS.map(({ name, verdict }) => [name, verdict]));
});

test("every package that was tampered with is found on its rung", async (t) => {
  const { page } = await reader(t, {});
  await open(page, CASES.map(({ file }) => evidence(file)));
  const found = await page.evaluate(() => Object.fromEntries(Array.from(document.querySelectorAll("[data-file]"), (panel) =>
    [panel.dataset.file, Array.from(panel.querySelectorAll(".findings > li"), (each) => `${each.dataset.what} ${each.dataset.verdict}`)])));
  const missed = CASES.filter(({ file, what, verdict }) => !found[path.basename(file)]?.includes(`${what} ${verdict}`));
  assert.deepEqual(missed, []);
});

test("no changed byte of a proof is accepted", async (t) => {
  const { page } = await reader(t, {});
  const proof = readFileSync(evidence("proof.json"));
  const spoiled = Array.from({ length: 300 }, (_, turn) => {
    const bytes = Buffer.from(proof);
    bytes[(turn * 7919) % bytes.length] ^= 1 << turn % 8;
    return { name: String(turn), base64: bytes.toString("base64") };
  });
  const accepted = (await verdictsOf(page, spoiled)).filter(([, verdict]) => !["TAMPERED", "CANNOT_TELL"].includes(verdict));
  assert.deepEqual(accepted, []);
});

test("nothing is asked of anybody, and nothing could be", async (t) => {
  const { page, asked } = await reader(t, {});
  await open(page, [evidence("whole.zip")]);
  assert.deepEqual(asked.filter((url) => url !== ADDRESS), []);
  const refused = await page.evaluate(() => Promise.all([
    fetch("http://127.0.0.1:9/").then(() => "sent", () => "refused"),
    new Promise((resolve) => {
      const image = new Image();
      image.onerror = () => resolve("refused");
      image.onload = () => resolve("sent");
      image.src = "http://127.0.0.1:9/x.png";
    }),
  ]));
  assert.deepEqual(refused, ["refused", "refused"]);
});

// Seen red: the question set with innerHTML, with the policies of the page (nothing was shown) and without them.
test("what a reader typed stays text, wherever it is shown", async (t) => {
  const { page, complaints } = await reader(t, {});
  await open(page, [evidence("whole.zip")]);
  await page.locator("#search").fill("<script>");
  await page.locator("#records button").first().click();
  await page.locator(".record .question").waitFor();
  assert.match(await page.locator(".record .question").innerText(), /^<img src=x onerror=/);
  assert.equal(await page.locator("#result img, #result script, #result b").count(), 0);
  assert.equal(await page.title(), "Check the evidence");
  assert.deepEqual(complaints, []);
});

test("a name of a file stays text too", async (t) => {
  const { page } = await reader(t, {});
  const name = "<img src=x onerror=document.title=1>.json";
  await page.locator("#evidence").setInputFiles({ name, mimeType: "application/json", buffer: readFileSync(evidence("proof.json")) });
  await page.locator(".panel").waitFor();
  assert.equal(await page.locator(".panel .file").innerText(), name);
  assert.equal(await page.locator("#result img").count(), 0);
});

test("without a key, nothing is said; with one, what was dropped is judged, and judged anew with another", async (t) => {
  const { page } = await reader(t, { keys: "" });
  await page.locator("#evidence").setInputFiles(evidence("redacted.zip"));
  await page.getByText("Pin the public keys first").waitFor();
  assert.equal(await page.locator(".panel").count(), 0);
  await page.locator("#keys").fill(KEYS);
  await page.locator('.panel[data-verdict="VALID"]').waitFor();
  await page.locator("#keys").fill(readFileSync(evidence("other-keys"), "utf8"));
  await page.locator('.panel[data-verdict="TAMPERED"]').waitFor();
  await page.locator("#keys").fill("affidavit+00000000+AQ");
  await page.getByText("This line is not a public key of a log").waitFor();
});

// Seen red: with a policy that cannot be read, a package was judged as if none were demanded.
test("a policy or certificates that cannot be read are no reason to judge without them", async (t) => {
  const { page } = await reader(t, { policy: "quorum everybody" });
  await page.locator("#evidence").setInputFiles(evidence("redacted.zip"));
  await page.getByText("Correct or empty the policy").waitFor();
  assert.equal(await page.locator(".panel").count(), 0);
  await page.locator("#policy").fill(POLICY);
  await page.locator('.panel[data-verdict="VALID"]').waitFor();
  await page.locator("#authorities").fill("-----BEGIN CERTIFICATE-----");
  await page.getByText("There is no certificate in PEM").waitFor();
  assert.equal(await page.locator(".panel").count(), 0);
});

test("a proof and a receipt that are dropped together are compared", async (t) => {
  const { page } = await reader(t, { keys: PUBLIC_KEYS.join("\n"), policy: "" });
  const named = (name) => ({ name, mimeType: "application/json", buffer: Buffer.from(PROOFS.find((each) => each.name === name).base64, "base64") });
  await page.locator("#evidence").setInputFiles([named("leaf 0 of 1"), named("a receipt")]);
  await page.locator(".panel").nth(1).waitFor();
  assert.match(await page.locator(".panel").first().innerText(), /TAMPERED[^]*The proof is not of the receipt's record/);
});

test("an archived month is proven from its files, and a .tlog-proof beside a proof", async (t) => {
  const { page } = await reader(t, {});
  const files = readdirSync(evidence("archive")).map((name) => path.join(evidence("archive"), name));
  await page.locator("#evidence").setInputFiles(files);
  await page.locator('.panel[data-verdict="VALID"]').waitFor();
  assert.match(await page.locator(".panel").innerText(), /13 checked/);
  await page.locator("#records button").first().click();
  await page.locator("#record .ladder").waitFor();
  await open(page, [evidence("anchored.json"), evidence("head.tlog-proof")]);
  assert.equal(await page.locator('.panel[data-verdict="VALID"]').count(), 2);
  assert.equal(await page.locator('[data-file="anchored.json"] [data-rung="witness"]').getAttribute("data-verdict"), "VALID");
});

test("by keyboard alone: keys, evidence, a record", async (t) => {
  const { page } = await reader(t, {});
  await open(page, [evidence("whole.zip")]);
  await page.locator("#records button").nth(2).focus();
  await page.keyboard.press("Enter");
  await page.locator(".record").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.id), "record");
});

for (const [name, viewport, colorScheme, file] of [
  ["light", DESK, "light", "whole.zip"], ["dark", DESK, "dark", "whole.zip"], ["phone", PHONE, "light", "whole.zip"], ["phone-dark", PHONE, "dark", "proof.json"],
  ["red", DESK, "light", fileOf("a word of an answer of a record")], ["red-dark", DESK, "dark", fileOf("a rewritten tree, and its records")],
]) {
  test(`everybody can read it: ${name}`, async (t) => {
    const { page, complaints } = await reader(t, { viewport, colorScheme });
    await open(page, [evidence(file)]);
    if (file.endsWith(".zip")) {
      await page.locator("#records button").first().click();
      await page.locator("#record .ladder").waitFor();
    }
    assert.deepEqual(complaints, []);
    for (const details of await page.locator("details").all()) await details.evaluate((each) => (each.open = true));
    await assertAccessible(page);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth), 0);
    if (E2E_SCREENSHOTS) await page.screenshot({ path: path.join(E2E_SCREENSHOTS, `${name}-${E2E_BROWSER}.png`), fullPage: true });
  });
}

test("and so can everybody before anything was dropped", async (t) => {
  const { page } = await reader(t, { keys: "", policy: "" });
  await assertAccessible(page);
  if (E2E_SCREENSHOTS) await page.screenshot({ path: path.join(E2E_SCREENSHOTS, `empty-${E2E_BROWSER}.png`) });
});

async function reader(t, { keys = KEYS, policy = POLICY, viewport = DESK, colorScheme = "light", script }) {
  const context = await browser.newContext({ viewport, colorScheme, reducedMotion: "reduce" });
  t.after(() => context.close());
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MS);
  const complaints = [], asked = [];
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("request", (request) => request.url().startsWith("data:") || asked.push(request.url()));
  if (script) await page.addInitScript(script);
  if (!IS_FIREFOX) await context.setOffline(true);
  await page.goto(ADDRESS);
  await page.locator("#more").evaluate((details) => (details.open = true));
  await page.locator("#policy").fill(policy);
  await page.locator("#keys").fill(keys);
  return { page, complaints, asked };
}

/** Drops the files, and waits for what is said of each. */
async function open(page, files) {
  await page.locator("#evidence").setInputFiles(files);
  await page.locator(".panel").nth(files.length - 1).waitFor();
}

async function verdictsOf(page, proofs) {
  await open(page, proofs.map(({ base64 }, at) => ({ name: String(at), mimeType: "application/json", buffer: Buffer.from(base64, "base64") })));
  const verdicts = await page.evaluate(() => Array.from(document.querySelectorAll("[data-file]"), (panel) => panel.dataset.verdict));
  return proofs.map(({ name }, at) => [name, verdicts[at]]);
}

async function assertAccessible(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  assert.deepEqual(violations.flatMap(({ id, help, nodes }) => nodes.map(({ html }) => `${id}: ${help}: ${html}`)), []);
}

function fileOf(name) {
  return CASES.find((each) => each.name === name).file;
}
