import { de } from "./de.js";
import { en, type Texts } from "./en.js";

/** The texts of a locale, also of one like `de-AT`; English for those that are not shipped. */
export function shippedTexts(locale: string): Texts {
  return locale.split("-")[0]?.toLowerCase() === "de" ? de : en;
}
