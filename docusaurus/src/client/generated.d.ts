declare module "@generated/globalData.json" {
  const globalData: {
    "docusaurus-plugin-affidavit": { default: import("./site.js").Site };
    "docusaurus-plugin-content-docs"?: Record<string, { versions: import("../book.js").Version[] }>;
  };
  export default globalData;
}

declare module "@generated/docusaurus-plugin-affidavit/default/texts.json" {
  const texts: import("../texts/en.js").Texts;
  export default texts;
}

declare module "@generated/docusaurus-plugin-affidavit/default/books.json" {
  const books: import("../book.js").LocaleBooks;
  export default books;
}

declare module "@generated/routes.js" {
  const routes: import("./panel/visit.js").Route[];
  export default routes;
}
