declare module "@generated/globalData.json" {
  const globalData: { "docusaurus-plugin-affidavit": { default: import("./site.js").Site } };
  export default globalData;
}

declare module "@generated/docusaurus-plugin-affidavit/default/texts.json" {
  const texts: import("../texts/en.js").Texts;
  export default texts;
}

declare module "@generated/routes.js" {
  const routes: import("./panel/visit.js").Route[];
  export default routes;
}
