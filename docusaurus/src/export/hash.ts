/**
 * The hash router: Docusaurus then builds no pages, only one frame that a browser fills. So the same site is built once
 * more, with pages, into a folder that no reader sees, and the export reads those.
 */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { promisify } from "node:util";
import type { Props } from "@docusaurus/types";

/** Set in the build that only makes pages to read. */
export const PAGES_ONLY = "AFFIDAVIT_PAGES_ONLY";
const GENERATED = ".docusaurus/affidavit"; // Docusaurus itself keeps .docusaurus out of git
const OUTPUT_BYTES_MAX = 64 * 1024 * 1024;

export function hasHashRouter({ siteConfig }: Pick<Props, "siteConfig">): boolean {
  return siteConfig.future?.experimental_router === "hash";
}

/** The address of a page as a browser has it: the route stands behind the frame's own address. */
export function hashAddress({ siteConfig }: Props, route: string): string {
  return `${siteConfig.baseUrl}#${route}`;
}

/** The site as it would be with pages. */
export async function withPages(props: Props): Promise<Props> {
  const { siteDir, siteConfigPath, i18n } = props;
  const folder = path.join(siteDir, GENERATED);
  const outDir = path.join(folder, "pages");
  const config = path.join(folder, "pages.config.mjs");
  await mkdir(folder, { recursive: true });
  await writeFile(config, configLike(siteConfigPath));
  await build(siteDir, ["--config", config, "--out-dir", outDir, "--locale", i18n.currentLocale]);
  const ofLocale = path.join(outDir, i18n.currentLocale); // older Docusaurus puts a single locale there
  return { ...props, outDir: existsSync(ofLocale) ? ofLocale : outDir };
}

function configLike(file: string): string {
  return `import given from ${JSON.stringify(file)};
export default async () => {
  const config = typeof given === "function" ? await given() : given;
  const future = { ...config.future, experimental_router: "browser" };
  return { ...config, future, onBrokenLinks: "ignore", onBrokenAnchors: "ignore" };
};
`;
}

async function build(siteDir: string, flags: string[]): Promise<void> {
  const docusaurus = createRequire(path.join(siteDir, "package.json")).resolve("@docusaurus/core/bin/docusaurus.mjs");
  const env = { ...process.env, [PAGES_ONLY]: "1", DOCUSAURUS_GENERATED_FILES_DIR_NAME: `${GENERATED}/generated` };
  const command = [docusaurus, "build", siteDir, ...flags];
  await promisify(execFile)(process.execPath, command, { cwd: siteDir, env, maxBuffer: OUTPUT_BYTES_MAX }).catch((fault: Error & { stderr?: string }) => {
    throw new Error(
      "docusaurus-plugin-affidavit: this site has the hash router, so its pages are built once more to be read, and that failed:\n" +
        (fault.stderr || fault.message),
    );
  });
}
