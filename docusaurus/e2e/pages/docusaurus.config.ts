// As on GitHub Pages, in two languages, and without the plugin: whoever follows the README adds it.
import type { Config } from "@docusaurus/types";

const config: Config = {
  title: "Irrigation by Robots",
  url: "https://example.github.io",
  baseUrl: "/irrigation/",
  i18n: { defaultLocale: "en", locales: ["en", "de"] },
  plugins: [["@docusaurus/plugin-content-docs", { routeBasePath: "/" }]],
  themes: ["@docusaurus/theme-classic"],
};

export default config;
