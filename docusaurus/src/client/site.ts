import type { Texts } from "../texts/en.js";

/** What the plugin tells the browser before the panel is opened. */
export interface Site {
  path: string;
  baseUrl: string;
  locale: string;
  /** Where the button stands, if not where it does by itself; most sites should not carry these bytes. */
  style?: string | undefined;
  isButtonless?: true | undefined;
  texts: Pick<Texts, "ask" | "askSelection" | "unloadable">;
}
