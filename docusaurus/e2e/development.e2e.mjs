// `docusaurus start` forwards questions to a gateway beside it, and its compression holds nothing back.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { after, before, test } from "node:test";
import { engineDouble, openPanel, reader, SITE, startBrowser, startGateway, WATERING } from "./scene.mjs";

let browser;
before(async () => (browser = await startBrowser()));
after(() => browser.close());

test("a page in development asks through the gateway, and its sentences come one by one", async (t) => {
  // Seen red with a gateway that leaves `no-transform` out.
  const engine = await engineDouble(t);
  const origin = await startDevelopment(t, await startGateway(t, { engine: engine.url, flags: ["--no-site"] }));
  const { page } = await reader(t, browser, origin);
  await openPanel(page);
  await page.getByLabel("Your question").fill(WATERING);
  await page.getByLabel("Your question").press("Enter");
  const { send, left } = await engine.asked;
  send("sources", { sources: [{ chunk_id: "a", section: "Watering", chapter: "Robot", page: "1", url: "/book/docs/workshop/greenhouse", score: 0.9 }] });
  await page.getByRole("status").filter({ hasText: "Watering" }).waitFor();
  send("sentence", { text: "At dawn.", citations: [] });
  await page.locator(".affidavit-answer").filter({ hasText: "At dawn." }).waitFor();
  await page.keyboard.press("Escape");
  await left;
});

async function startDevelopment(test, gateway) {
  const port = await freePort();
  const command = ["node_modules/@docusaurus/core/bin/docusaurus.mjs", "start", "--no-open", "--host=127.0.0.1", `--port=${port}`];
  const child = spawn(process.execPath, command, {
    cwd: SITE,
    env: { ...process.env, E2E_GATEWAY: gateway },
    stdio: ["ignore", "pipe", "inherit"],
  });
  test.after(() => child.kill());
  for await (const text of child.stdout) if (/compiled successfully/i.test(text)) break;
  child.stdout.resume();
  return `http://127.0.0.1:${port}`;
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  await once(server.close(), "close");
  return port;
}
