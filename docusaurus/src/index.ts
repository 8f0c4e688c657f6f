import { fileURLToPath } from "node:url";
import type { LoadContext, Plugin, TranslationFile } from "@docusaurus/types";
import type { Site } from "./client/site.js";
import { writeContent } from "./export/content.js";
import type { Options } from "./options.js";
import { en, type Texts } from "./texts/en.js";
import { shippedTexts } from "./texts/shipped.js";

export { validateOptions } from "./options.js";
export type { Options } from "./options.js";

const NAME = "docusaurus-plugin-affidavit";
const CLIENT = fileURLToPath(new URL("./client/", import.meta.url));
const TRANSLATIONS = "panel"; // i18n/<locale>/docusaurus-plugin-affidavit/panel.json

export default function affidavit(context: LoadContext, options: Options): Plugin<Texts> {
  return {
    name: NAME,
    getClientModules: () => [`${CLIENT}mount.js`],
    loadContent: async () => shippedTexts(context.i18n.currentLocale),
    getTranslationFiles: ({ content }) => [translationFile(content)],
    translateContent: ({ content, translationFiles }) => translated(content, translationFiles),
    async contentLoaded({ content, actions }) {
      actions.setGlobalData(siteOf(context, options, content));
      await actions.createData("texts.json", JSON.stringify(content));
    },
    postBuild: writeContent,
    configureWebpack: () => ({
      // The bundler wants file extensions in the imports of an ES module; those of Docusaurus' aliases have none.
      module: { rules: [{ test: /\.js$/, include: CLIENT, resolve: { fullySpecified: false } }] },
      devServer: { proxy: [{ context: [options.path], target: options.gateway }] },
    }),
  };
}

/** Few of the texts are needed before the panel is opened; the rest comes with the panel. */
function siteOf({ siteConfig, i18n }: LoadContext, { path }: Options, texts: Texts): Site {
  const { ask, tooltip, askSelection, unloadable } = texts;
  return {
    path,
    baseUrl: siteConfig.baseUrl,
    locale: i18n.localeConfigs[i18n.currentLocale]?.htmlLang ?? i18n.currentLocale,
    texts: { ask, tooltip, askSelection, unloadable },
  };
}

function translationFile(texts: Texts): TranslationFile {
  const content = Object.entries(texts).map(([name, message]) =>
    [name, { message, description: `English: ${en[name as keyof Texts]}` }]);
  return { path: TRANSLATIONS, content: Object.fromEntries(content) };
}

function translated(texts: Texts, files: TranslationFile[]): Texts {
  const given = files.find(({ path }) => path === TRANSLATIONS)?.content ?? {};
  const names = Object.keys(texts) as (keyof Texts)[];
  return Object.fromEntries(names.map((name) => [name, given[name]?.message ?? texts[name]])) as Texts;
}
