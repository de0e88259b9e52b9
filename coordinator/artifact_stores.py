"""Which artifact store the settings ask for. Called by whoever opens one: `service.py`, `cli_audit.py`."""

from coordinator.artifacts import ArtifactStore, FolderStore
from coordinator.settings import CoordinatorSettings

__all__ = ["store_of"]


def store_of(settings: CoordinatorSettings) -> ArtifactStore:
    """Return the store, not yet asked for anything; who is going to put something calls `prepare` first."""
    if settings.artifacts_url is None:
        return FolderStore(settings.artifacts)
    from coordinator.artifact_s3 import Place, S3Store  # noqa: PLC0415 - a folder needs no obstore: 80 ms, 15 MB

    key_id = settings.artifacts_key_id
    return S3Store(
        Place(
            url=settings.artifacts_url,
            region=settings.artifacts_region,
            endpoint=settings.artifacts_endpoint,
            key_id=key_id.get_secret_value() if key_id else None,
            secret_key=settings.artifacts_secret_key,
            allow_http=settings.artifacts_allow_http,
        )
    )
