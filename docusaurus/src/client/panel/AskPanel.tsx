import { type KeyboardEvent, useEffect, useReducer, useRef, useState } from "react";
import type { Texts } from "../../texts/en.js";
import type { Site } from "../site.js";
import { ask } from "../stream.js";
import { converse, type Exchange } from "./conversation.js";
import { ExchangeView } from "./ExchangeView.js";
import { Form } from "./Form.js";
import { Guide, type Following } from "./Guide.js";
import type { Target } from "./visit.js";
import { fill, nameOf, unique } from "./wording.js";

interface Props {
  site: Site;
  texts: Texts;
  selection: string | undefined;
  openings: number; // each brings its selection and the focus
  isModal: boolean;
  targetOf: (url: string) => Target | undefined;
  close: () => void;
  follow: (to: Following) => void;
}

export function AskPanel({ site, texts, selection, openings, isModal, targetOf, close, follow }: Props) {
  const { exchanges, status, tell, put, stop, isBusy } = useConversation(site, texts);
  const thread = useRef<HTMLDivElement>(null);
  useEffect(() => {
    thread.current?.lastElementChild?.scrollIntoView({ block: "start" });
  }, [exchanges.length, exchanges.at(-1)?.outcome]);

  function retry(exchange: Exchange): void {
    thread.current?.focus(); // its button is about to vanish
    put(exchange, exchange.id);
  }

  function onKeyDown(event: KeyboardEvent): void {
    if (event.key === "Escape" && !event.nativeEvent.isComposing) close();
  }

  const followed = (to: Omit<Following, "tell">) =>
    follow({ ...to, tell: (isFound) => tell(fill(isFound ? texts.opened : texts.notFound, { place: to.name })) });

  return (
    <Guide.Provider value={{ texts, locale: site.locale, targetOf, follow: followed }}>
      <section className="affidavit" role="dialog" aria-modal={isModal} aria-labelledby="affidavit-title" onKeyDown={onKeyDown}>
        <header>
          <h2 id="affidavit-title">{texts.ask}</h2>
          <button type="button" className="affidavit-close" aria-label={texts.close} title={texts.close} onClick={close}>
            <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M3 3l10 10M13 3L3 13" /></svg>
          </button>
        </header>
        <div className="affidavit-thread" ref={thread} tabIndex={0} role="region" aria-label={texts.thread}>
          {exchanges.length ? exchanges.map((exchange) => (
            <ExchangeView key={exchange.id} exchange={exchange} retry={isBusy ? undefined : () => retry(exchange)} />
          )) : <Introduction texts={texts} />}
        </div>
        <p id="affidavit-status" className={isBusy ? "affidavit-status affidavit-busy" : "affidavit-status"} role="status" aria-live="polite">{status}</p>
        <Form texts={texts} selection={selection} openings={openings} isBusy={isBusy} isModal={isModal} put={put} stop={stop} tell={tell} />
      </section>
    </Guide.Provider>
  );
}

function Introduction({ texts }: { texts: Texts }) {
  return (
    <div className="affidavit-intro">
      <p>{texts.intro}</p>
      <p>{texts.record}</p>
    </div>
  );
}

/** All state of the panel, discarded when it closes. */
function useConversation(site: Site, texts: Texts) {
  const [exchanges, say] = useReducer(converse, []);
  const [status, tell] = useState("");
  const count = useRef(0);
  const current = useRef<AbortController>(undefined);
  const last = exchanges.at(-1);
  const isBusy = last !== undefined && !last.outcome;
  useEffect(() => () => current.current?.abort(), []);

  async function put({ question, selection }: Pick<Exchange, "question" | "selection">, insteadOf?: number): Promise<void> {
    const id = (count.current += 1);
    const left = (current.current = new AbortController()).signal;
    say({ type: "asked", id, question, selection, insteadOf });
    tell(texts.looking);
    const asked = { query: question, selected_text: selection ?? null };
    const outcome = await ask(site.path, asked, {
      sources: (places) => {
        say({ type: "sources", id, places });
        tell(fill(texts.reading, { places: unique(places.map(nameOf)).join(" · ") }));
      },
      sentence: (sentence) => say({ type: "sentence", id, sentence }),
    }, left);
    if (left.aborted) return;
    say({ type: "ended", id, outcome });
    tell(summaryOf(outcome, texts));
  }

  function stop(): void {
    current.current?.abort();
    if (last) say({ type: "ended", id: last.id, outcome: { outcome: "stopped" } });
    tell(texts.stopped);
  }

  return { exchanges, status, tell, put, stop, isBusy };
}

function summaryOf(outcome: Awaited<ReturnType<typeof ask>>, texts: Texts): string {
  if (outcome.outcome === "failed") return fill(texts.failed, { title: texts[`problem.${outcome.kind}`] });
  return outcome.outcome === "refused" ? texts.refused : fill(texts.answered, { count: outcome.citations.length });
}
