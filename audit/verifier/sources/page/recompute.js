// On a record's page of the console: computes the ladder again from the proof, in this browser, with the log's public keys.
import { checkProof } from "../files/single.js";
import { readKeys } from "../proof/keys.js";
import { byId, element } from "./dom.js";
import { ladder } from "./ladder.js";

const place = byId("recompute");
const [button] = place.getElementsByTagName("button");
const [said] = place.querySelectorAll('[role="status"]');

button.hidden = false;
button.addEventListener("click", () => {
  button.disabled = true;
  said.replaceChildren("Computing …");
  recomputed().then((found) => said.replaceChildren(found), (wrong) => said.replaceChildren(`It could not be computed: ${wrong instanceof Error ? wrong.message : String(wrong)}`))
    .finally(() => { button.disabled = false; });
});

async function recomputed() {
  const { ring, complaint } = readKeys(place.dataset.keys ?? "");
  if (complaint) throw new Error(complaint);
  const response = await fetch(place.dataset.proof ?? "");
  if (!response.ok) throw new Error(`the proof is not there (${response.status}). A record is sealed within ten seconds.`);
  const { rungs, verdict } = await checkProof(new Uint8Array(await response.arrayBuffer()), { ring, policy: null });
  return element("div", { "data-verdict": verdict },
    element("p", {}, "Computed in this browser from the proof. The keys came from this server: compare them with yours."),
    ladder(rungs));
}
