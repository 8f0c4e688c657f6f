import { ar } from "./ar.js";
import { de } from "./de.js";
import { en, type Texts } from "./en.js";
import { es } from "./es.js";
import { fr } from "./fr.js";
import { hi } from "./hi.js";
import { ur } from "./ur.js";
import { zh } from "./zh.js";

/** By language. A build takes the texts of its own locale only, so that no reader loads the others. */
export const SHIPPED: Record<string, Texts> = { ar, de, en, es, fr, hi, ur, zh };

/** The texts of a locale, also of one like `de-AT`; English for those that are not shipped. */
export function shippedTexts(locale: string): Texts {
  return SHIPPED[locale.split("-")[0]!.toLowerCase()] ?? en;
}
