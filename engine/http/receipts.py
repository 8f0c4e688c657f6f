"""Whose proof is it, and is it there: what `GET /v1/receipts/{query_id}` may hand out."""

from uuid import UUID

from audit.checking.prover import Prover
from audit.errors import ProofUnavailableError, UnprovenError, UnsealedRecordError
from engine.errors import DatabaseUnavailableError, NotSealedError, UnknownRecordError
from engine.models import Client

AUDIT = "audit"


async def proof(proofs: Prover, query_id: UUID, client: Client) -> bytes:
    """The bundle of a record that this client may see."""
    try:
        row = await proofs.row(query_id)
        if AUDIT not in client.scopes and row.get("client_id") != client.client_id:
            raise UnknownRecordError
        return await proofs.prove(row)
    except UnsealedRecordError:
        raise NotSealedError from None
    except ProofUnavailableError:
        raise DatabaseUnavailableError from None
    except UnprovenError:
        raise UnknownRecordError from None
