// Clients in the manner of the family's chat widgets, at one base address: what each of them saw, as one JSON document.
// usage: node widgets.mjs BASE ORIGIN [TOKEN]
const [base, origin, token] = process.argv.slice(2);
const WIDGETS = {
  "/query": (text) => ({ question: text, user_context: { page: "/docs" } }),
  "/api/query": (text) => ({ query: text }),
  "/v1/query": (text) => ({ query: text }),
  "/api/v1/query": (text) => ({ query: text, sessionId: "00000000-0000-4000-8000-000000000000", topK: 3 }),
  "/api/ask": (text) => ({ question: text, top_k: 5 }),
  "/api/ask/stream": (text) => ({ question: text }),
  "/api/chat": (text) => ({ message: text, conversation_history: [] }),
  "/chat/query": (text) => ({ query: text }),
};
const QUESTIONS = { answered: "What does an IMU measure?", refused: "Who won the football world cup in 1998?" };

function send(path, body, accept) {
  const headers = { "Content-Type": "application/json", "Accept": accept, "Origin": origin, ...(token && { Authorization: `Bearer ${token}` }) };
  return fetch(base + path, { method: "POST", headers, body: JSON.stringify(body) });
}

/** fetch, then response.json(): nothing is asked of the form. */
async function json(path, body) {
  const response = await send(path, body, "*/*");
  const isStream = response.headers.get("Content-Type").startsWith("text/event-stream");
  return { status: response.status, text: isStream ? await response.text() : JSON.stringify(await response.json()), isStream };
}

/** fetch and a reader: blocks end with an empty line, and of each the line that begins with `data: ` is JSON. */
async function lines(path, body) {
  const response = await send(path, body, "text/event-stream");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const chunks = [];
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) chunks.push(JSON.parse(block.split("\n").find((line) => line.startsWith("data: ")).slice(6)));
  }
  return { status: response.status, type: response.headers.get("Content-Type"), chunks, rest };
}

/** By the rules of EventSource: events with a name reach only who listens for it, all others reach onmessage. */
async function eventSource(path, body) {
  const response = await send(path, body, "text/event-stream");
  const heard = [];
  let name = "", data = [];
  for (const line of (await response.text()).split(/\r\n|\r|\n/)) {
    const [field, value = ""] = line.split(/: ?(.*)/s);
    if (line === "") {
      if (data.length > 0) heard.push({ name: name || "message", data: JSON.parse(data.join("\n")) });
      name = "", data = [];
    } else if (field === "event") name = value;
    else if (field === "data") data.push(value);
  }
  return { status: response.status, heard };
}

const listed = JSON.parse(process.env.WIDGET_PATHS); // and whether it streams
const seen = [];
for (const [path, bodyOf] of Object.entries(WIDGETS).filter(([path]) => path in listed)) {
  for (const [outcome, text] of Object.entries(QUESTIONS)) {
    for (const manner of listed[path] ? [json, lines, eventSource] : [json]) seen.push({ path, outcome, manner: manner.name, ...(await manner(path, bodyOf(text))) });
  }
}
console.log(JSON.stringify(seen));
