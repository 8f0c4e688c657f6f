import type { Texts } from "../texts/en.js";

/** What the plugin tells the browser before the panel is opened. */
export interface Site {
  path: string;
  baseUrl: string;
  locale: string;
  texts: Pick<Texts, "ask" | "tooltip" | "askSelection" | "unloadable">;
}
