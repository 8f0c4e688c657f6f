// The manual as a site, with our own panel on every page: `make docs`, `make docs-run`. What it is built with is installed in
// docusaurus/, so that the plugin's tests and the manual have the same versions. Nothing on a page comes from elsewhere.
import { ink } from "./ink.mjs";
import { nameOutsideFiles } from "./outside.mjs";
import { boxTables } from "./tables.mjs";

export default {
  title: "Affidavit",
  tagline: "The manual",
  url: "http://127.0.0.1:3300", // where `make docs-run` shows it
  baseUrl: "/",
  favicon: "seal.svg",
  trailingSlash: false,
  onBrokenLinks: "throw",
  onBrokenAnchors: "throw",
  future: { v4: true, faster: true },
  markdown: { format: "detect", hooks: { onBrokenMarkdownLinks: "throw", onBrokenMarkdownImages: "throw" } },
  plugins: [
    ["@docusaurus/plugin-content-docs", {
      path: "..",
      include: ["*.md", "{tutorials,how-to,reference,explanation,decisions}/*.md"],
      routeBasePath: "/",
      sidebarPath: "./sidebars.mjs",
      beforeDefaultRemarkPlugins: [nameOutsideFiles], // Docusaurus' own would look for the files
      rehypePlugins: [boxTables],
    }],
    ["../../docusaurus/lib/index.js", { book: "manual" }],
  ],
  themes: [["@docusaurus/theme-classic", { customCss: "./manual.css" }]],
  themeConfig: {
    colorMode: { respectPrefersColorScheme: true },
    docs: { sidebar: { autoCollapseCategories: true } },
    prism: { theme: ink, additionalLanguages: ["bash", "ini", "json", "nginx", "sql", "toml"] },
    navbar: {
      title: "Affidavit",
      logo: { src: "seal.svg", alt: "" },
      items: [
        { type: "html", position: "right", value: '<button class="ask" data-affidavit-open>Ask the manual</button>' },
      ],
    },
  },
};
