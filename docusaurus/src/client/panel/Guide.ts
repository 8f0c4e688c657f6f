import { createContext, useContext } from "react";
import type { Texts } from "../../texts/en.js";
import type { Feedback } from "../stream.js";
import type { Target } from "./visit.js";

/** A citation that the reader goes to. */
export interface Following {
  href: string;
  name: string;
  excerpt: string;
  tell: (isFound: boolean) => void;
}

interface Guiding {
  texts: Texts;
  locale: string;
  targetOf: (url: string) => Target | undefined;
  follow: (to: Omit<Following, "tell">) => void;
  tell: (status: string) => void;
  /** Whether it is on record. */
  judge: (said: Feedback & { query_id: string }) => Promise<boolean>;
}

export const Guide = createContext<Guiding | undefined>(undefined);

export function useGuide(): Guiding {
  return useContext(Guide)!;
}
