/** Whether an answer or a refusal helped. A reason is a second tap, which replaces the first; nothing has to be written. */
import { useEffect, useRef, useState } from "react";
import { COMPLAINTS, type Feedback } from "../../stream.js";
import { useGuide } from "../Guide.js";

export function Thumbs({ queryId }: { queryId: string }) {
  const { texts, judge, tell } = useGuide();
  const [said, setSaid] = useState<Feedback>();
  const complaints = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    complaints.current?.scrollIntoView({ block: "nearest" }); // newer browsers return a promise, which is no clean-up
  }, [said]);

  async function say(now: Feedback): Promise<void> {
    setSaid(now);
    const isRecorded = await judge({ query_id: queryId, ...now });
    setSaid((latest) => (latest !== now ? latest : isRecorded ? { ...now } : said)); // a new one, for what the thanks have covered
    tell(isRecorded ? texts.thanks : texts["problem.unknown"]);
  }

  return (
    <>
      {([true, false] as const).map((helpful) => {
        const label = helpful ? texts.helpful : texts.unhelpful;
        return (
          <button key={label} type="button" className="affidavit-thumb" aria-label={label} title={label}
            aria-pressed={said?.helpful === helpful} onClick={() => say({ helpful })}>
            <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M5 7v6.5H2V7zl3-5q2 .3 1.7 2.2L9.3 6.5H13q1.5.2 1.3 1.7l-.9 4q-.4 1.3-1.6 1.3H5" /></svg>
          </button>
        );
      })}
      {said?.helpful === false && (
        <span className="affidavit-complaints" role="group" aria-label={texts.complaint} ref={complaints}>
          <span className="affidavit-small">{texts.complaint}</span>
          {COMPLAINTS.map((reason) => (
            <button key={reason} type="button" aria-pressed={said.reason === reason} onClick={() => say({ helpful: false, reason })}>
              {texts[`complaint.${reason}`]}
            </button>
          ))}
        </span>
      )}
    </>
  );
}
