"""Audit trail mapper: copies what each step of a request found into the trail, whose fields are the columns of its row.

It is the only place that decides what is recorded of a question. No function here waits, reads a clock or raises.
"""

import json
from dataclasses import asdict
from typing import Any
from uuid import UUID

from engine.errors import RequestError
from engine.grounding.injection_flags import is_flagged, is_instruction_like
from engine.models import Draft, Generation, Question, Refusal, Released, Retrieved, Trail

HTTP_OK = 200


def note_question(trail: Trail, question: Question) -> None:
    trail.user_query_text = trail.retrieval_query = question.text
    trail.source_mode = "full-book" if question.selected_text is None else "context-restricted"
    trail.selected_text = question.selected_text
    trail.book_id, trail.top_k = question.book_id, question.top_k
    trail.filters = json.loads(json.dumps(asdict(question.filters)))
    trail.end_user = trail.end_user or question.end_user
    note_session(trail, question)
    if question.ignored_fields:
        trail.details = _details(trail) | {"ignored_fields": list(question.ignored_fields)}
    if is_instruction_like(question.text):
        trail.instruction_like = ["question"]


def note_session(trail: Trail, question: Question) -> None:
    trail.session_id = question.session_id
    if question.session_not_continued:
        trail.details = _details(trail) | {"session_not_continued": question.session_not_continued}


def note_feedback(trail: Trail, query_id: UUID, *, helpful: bool, reason: str | None) -> None:
    trail.details = _details(trail) | {"query_id": str(query_id), "helpful": helpful, "reason": reason}


def note_generation(trail: Trail, generation: Generation) -> None:
    trail.index_generation, trail.embedder = generation.generation_id, generation.embedder
    trail.calibration_id = generation.calibration.calibration_id
    trail.calibration_kind = generation.calibration.kind


def note_retrieved(trail: Trail, found: Retrieved) -> None:
    trail.retrieval_query, trail.best_score = found.query, found.best_score
    trail.chunks_retrieved_count = found.considered
    trail.chunks_returned = [item.candidate._asdict() for item in found.evidence]
    trail.filter_message, trail.rerank = found.filter_message, found.rerank
    trail.details = _details(trail) | _searched_otherwise(found) or None
    suspects = [item.passage.chunk_id for item in found.evidence if is_flagged(item.passage.text)]
    if suspects:
        trail.instruction_like = [*(trail.instruction_like or []), *suspects]


def _details(trail: Trail) -> dict[str, Any]:
    return trail.details if isinstance(trail.details, dict) else {}


def _searched_otherwise(found: Retrieved) -> dict[str, Any]:
    """Where the search was not of the question as it is, or was let through below the gate."""
    details: dict[str, Any] = {}
    if found.wording and (found.wording.corrected or found.wording.clauses):
        details = {"corrected": found.wording.corrected, "clauses": list(found.wording.clauses)}
    return details | {"keyword_match": True} if found.is_keyword_match else details


def note_draft(trail: Trail, draft: Draft, prompt_sha256: str) -> None:
    trail.llm_prompt, trail.llm_response = draft.prompt, draft.raw or None
    trail.prompt_sha256 = prompt_sha256 if draft.prompt else None
    trail.model_used, trail.stop_reason = draft.model, draft.stop_reason
    trail.provider_request_id = draft.request_id
    trail.tokens_input, trail.tokens_output = draft.tokens_input, draft.tokens_output


def note_outcome(trail: Trail, outcome: Released | Refusal) -> None:
    trail.http_status, trail.success = HTTP_OK, isinstance(outcome, Released)
    if isinstance(outcome, Refusal):
        trail.outcome, trail.reason, trail.answer_text = "refused", outcome.reason.value, outcome.message
        return
    trail.outcome, trail.answer_text = "answered", outcome.text
    trail.citations = [asdict(excerpt) for excerpt in outcome.excerpts]
    trail.confidence_score, trail.confidence_level = outcome.confidence, outcome.confidence_level
    trail.retrieval_confidence = outcome.retrieval_confidence
    trail.generation_confidence = outcome.generation_confidence


def note_served(trail: Trail) -> None:
    """A request without a question, such as a passage, was answered; some say themselves with which status."""
    trail.outcome, trail.success, trail.http_status = "served", True, trail.http_status or HTTP_OK


def note_client_gone(trail: Trail) -> None:
    """The client disconnected, or the server was stopped: no response can be sent."""
    trail.outcome, trail.success = "client_gone", False
    trail.error_message = "The client closed the connection before the answer was complete"


def note_failure(trail: Trail, failure: RequestError) -> None:
    trail.outcome, trail.success = "failed", False
    trail.http_status, trail.error_type = failure.status, failure.error_type
    # Of a cause only its type: a driver's or a provider's message may repeat personal text.
    cause = failure.upstream or type(failure.__cause__ or failure).__name__
    trail.error_message = f"{failure.detail} [{cause}]"
