import { fileURLToPath } from "node:url";
import type { LoadContext, Plugin, TranslationFile } from "@docusaurus/types";
import { localeBooks, type LocaleBooks } from "./book.js";
import { buttonStyle } from "./button.js";
import type { Site } from "./client/site.js";
import { writeContent } from "./export/content.js";
import { everyTab } from "./export/lazy.js";
import { refuseUnknownLocales, type Options } from "./options.js";
import { en, type Texts } from "./texts/en.js";
import { shippedTexts } from "./texts/shipped.js";

export { validateOptions } from "./options.js";
export type { Options } from "./options.js";

const NAME = "docusaurus-plugin-affidavit";
const CLIENT = fileURLToPath(new URL("./client/", import.meta.url));
const TRANSLATIONS = "panel"; // i18n/<locale>/docusaurus-plugin-affidavit/panel.json

export default function affidavit(context: LoadContext, options: Options): Plugin<Texts> {
  refuseUnknownLocales(options, context.i18n.locales);
  return {
    name: NAME,
    getClientModules: () => [`${CLIENT}mount.js`],
    loadContent: async () => shippedTexts(context.i18n.currentLocale),
    getTranslationFiles: ({ content }) => [translationFile(content)],
    translateContent: ({ content, translationFiles }) => translated(content, translationFiles),
    async contentLoaded({ content, actions }) {
      actions.setGlobalData(siteOf(context, options, content));
      await actions.createData("texts.json", JSON.stringify(content));
      await actions.createData("books.json", JSON.stringify(booksOf(context, options)));
    },
    postBuild: (props) => writeContent(props, options),
    configureWebpack: (config, isServer) => ({
      ...(isServer && { resolve: { alias: everyTab(config.resolve?.alias) } }),
      // The bundler wants file extensions in the imports of an ES module; those of Docusaurus' aliases have none.
      module: { rules: [{ test: /\.js$/, include: CLIENT, resolve: { fullySpecified: false } }] },
      devServer: { proxy: [{ context: [options.path], target: options.gateway }] },
    }),
  };
}

/** Few of the texts are needed before the panel is opened; the rest comes with the panel. */
function siteOf({ siteConfig, i18n }: LoadContext, options: Options, texts: Texts): Site {
  const { ask, askSelection, unloadable } = texts;
  const locale = i18n.currentLocale;
  return {
    path: options.path,
    baseUrl: siteConfig.baseUrl,
    locale: i18n.localeConfigs[locale]?.htmlLang ?? locale,
    style: buttonStyle(options),
    isButtonless: options.button ? undefined : true,
    texts: { ask, askSelection, unloadable },
  };
}

function booksOf({ siteConfig, i18n }: LoadContext, options: Options): LocaleBooks {
  return localeBooks(options, siteConfig.title, i18n.currentLocale, i18n.currentLocale === i18n.defaultLocale);
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
