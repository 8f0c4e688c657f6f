/** An answer event by event: each is forwarded once it is complete, and a stream that breaks off ends as its contract ends one. */
import type { Form } from "./paths.js";
import { problemBody, type Failure } from "./problems.js";

export const EVENTS = "text/event-stream";

export interface Ending {
  /** The last event was sent; without a failure the stream is whole. */
  ended: (failure?: Failure) => void;
  /** The reader left. */
  left: () => void;
  /** What went wrong, of a fault while reading. */
  failure: (fault: unknown) => Failure;
}

/** If the engine breaks off, half an event is dropped and the stream ends with an error event, so that a page never gets a
 * stream that just stops. */
export function wholeEvents(
  response: Response, form: Form, requestId: string, ending: Ending,
): ReadableStream<Uint8Array> {
  const arriving = eventsOf(response);
  const encoder = new TextEncoder();
  return new ReadableStream({
    async pull(leaving) {
      try {
        const { value, done } = await arriving.next();
        if (!done) return leaving.enqueue(encoder.encode(value));
        ending.ended();
      } catch (fault) {
        const failure = ending.failure(fault);
        leaving.enqueue(encoder.encode(errorEvent(form, failure, requestId)));
        ending.ended(failure);
      }
      leaving.close();
    },
    cancel: () => ending.left(),
  });
}

function errorEvent(form: Form, failure: Failure, requestId: string): string {
  const { detail } = failure.kind;
  const data = {
    named: problemBody(failure, requestId),
    typed: JSON.stringify({ type: "error", error: detail, detail }),
    chunk: JSON.stringify({ chunk: "", done: true, error: detail }),
    content: JSON.stringify({ content: "", done: true, error: detail }),
  }[form];
  return `${form === "named" ? "event: error\n" : ""}data: ${data}\n\n`;
}

async function* eventsOf(response: Response): AsyncGenerator<string, undefined> {
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    rest += decoder.decode(value, { stream: true });
    const end = rest.lastIndexOf("\n\n");
    if (end < 0) continue;
    yield rest.slice(0, end + 2);
    rest = rest.slice(end + 2);
  }
  if (rest) throw new Error("The last event is not complete.");
}
