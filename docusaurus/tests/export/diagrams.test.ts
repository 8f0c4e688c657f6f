import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import type { Section } from "../../src/export/body.js";
import { withDiagrams } from "../../src/export/diagrams.js";

const DIAGRAM = "graph TD; A-->B";
const FENCE = `\`\`\`mermaid\n${DIAGRAM}\n\`\`\``;

/** Sections from lines such as "## Heading", "text" and "code: text". */
function page(...lines: string[]): Section[] {
  const sections: Section[] = [];
  for (const line of lines) {
    const heading = /^(#+) (.*)/.exec(line);
    if (heading) sections.push({ level: heading[1]!.length, anchor: null, path: [heading[2]!], blocks: [] });
    else if (line.startsWith("code: ")) sections.at(-1)?.blocks.push({ kind: "code", text: line.slice("code: ".length) });
    else sections.at(-1)?.blocks.push({ kind: "prose", text: line });
  }
  return sections;
}

function lines(sections: Section[]): string[] {
  return sections.flatMap(({ level, path: [heading], blocks }) => [
    `${"#".repeat(level)} ${heading}`,
    ...blocks.map(({ kind, text }) => (kind === "code" ? `code: ${text}` : text)),
  ]);
}

async function drawn(sections: Section[], source: string, file = "/site/docs/a.md"): Promise<string[]> {
  return lines(await withDiagrams(sections, source, file, "/site"));
}

test("a diagram stands behind the words before it", async () => {
  const source = `---\ntitle: x\n---\n# A\n\nSee [it](/b):\n\n${FENCE}\n\nAfter.\n\n## B {#b}\n\nSee it:\n`;
  assert.deepEqual(await drawn(page("# A", "See it:", "After.", "## B", "See it:"), source), [
    "# A", "See it:", `code: ${DIAGRAM}`, "After.", "## B", "See it:",
  ]);
});

test("diagrams without words between them keep their order and their heading", async () => {
  const second = FENCE.replace("A-->B", "B-->C");
  const source = `# A\n\n## Example\n\n## Example\n\n${FENCE}\n\n${second}\n\nEnd.\n`;
  assert.deepEqual(await drawn(page("# A", "## Example", "## Example", "End."), source), [
    "# A", "## Example", "## Example", `code: ${DIAGRAM}`, "code: graph TD; B-->C", "End.",
  ]);
});

test("words that the page writes differently: the diagram ends its section", async () => {
  const source = `# A\n\nOne {1 + 1} two:\n\n${FENCE}\n\nAfter.\n\n## B\n`;
  assert.deepEqual(await drawn(page("# A", "One 2 two:", "After.", "## B"), source), ["# A", "One 2 two:", "After.", `code: ${DIAGRAM}`, "## B"]);
});

test("a diagram that the page shows as code is not there twice", async () => {
  const shown = page("# A", "See:", `code: ${DIAGRAM}`);
  assert.deepEqual(await drawn(shown, `# A\n\nSee:\n\n${FENCE}\n`), lines(shown));
});

test("other code is on the page, without what only says how to show it", async () => {
  const source = `# A\n\n\`\`\`py\n# highlight-next-line\nx = 1\n\`\`\`\n\n${FENCE}\n`;
  assert.deepEqual(await drawn(page("# A", "code: x = 1"), source), ["# A", "code: x = 1", `code: ${DIAGRAM}`]);
});

test("what is commented out, and what is an example of Markdown, is not drawn", async () => {
  // Seen red without COMMENT: drafts would be published.
  const source = `# A\n\nText <!-- hidden\n\n${FENCE}\n-->\n\n{/*\n${FENCE}\n*/}\n\n\`\`\`\`md\n${FENCE}\n\`\`\`\`\n`;
  const shown = page("# A", "Text", "code: " + FENCE);
  assert.deepEqual(await drawn(shown, source), lines(shown));
});

test("fences in lists and quotes lose their margin", async () => {
  const source = "# A\n\n- Item:\n\n  ```mermaid\n  graph TD\n    A-->B\n  ```\n\n> ~~~mermaid\n> pie\n> ~~~\n";
  assert.deepEqual(await drawn(page("# A", "Item:"), source), ["# A", "Item:", "code: graph TD\n  A-->B", "code: pie"]);
});

test("diagrams of imported parts stand where the part is used; a part that imports itself ends", async () => {
  const folder = mkdtempSync(path.join(tmpdir(), "affidavit-"));
  writeFileSync(path.join(folder, "_part.mdx"), `import Me from "./_part.mdx"\n\n## Part\n\n${FENCE}\n\n<Me />\n`);
  const source = `import Part from './_part.mdx';\n\n# A\n\n<Part />\n\n## B\n`;
  const found = await drawn(page("# A", "## Part", "## B"), source, path.join(folder, "a.mdx"));
  assert.deepEqual(found.slice(0, 3), ["# A", "## Part", `code: ${DIAGRAM}`]);
  assert.equal(found.at(-1), "## B");
});

test("a line of dashes does not hide what follows, and an open fence hides nothing before it", async () => {
  const source = `# A\n\n---\n\n${FENCE}\n\n---\n\n\`\`\`mermaid\nopen`;
  assert.deepEqual(await drawn(page("# A"), source), ["# A", `code: ${DIAGRAM}`]);
});
