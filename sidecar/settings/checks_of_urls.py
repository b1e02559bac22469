"""Checks between the URLs of the service and what requests to them carry."""

from __future__ import annotations

from collections.abc import Iterator

from reconsume.sidecar.settings.addresses import is_local_url, is_tls_url
from reconsume.sidecar.settings.faults import Fault
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.sections.tls import Tls


def url_is_given(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if push mode has no URL."""
    if settings.deliver.mode == "push" and settings.deliver.url is None:
        text = "is required in push mode, like http://127.0.0.1:8080/events or unix:/run/app/app.sock:/events"
        yield Fault(("deliver", "url"), text, has_value=False)


def urls_are_local(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each URL outside loopback, unless `deliver.allow_remote` is set."""
    deliver = settings.deliver
    for name, url in (("url", deliver.url), ("health_url", deliver.health_url)):
        if url is not None and not deliver.allow_remote and not is_local_url(url):
            text = "is not on loopback; run the sidecar beside the service, or set deliver.allow_remote: true"
            yield Fault(("deliver", name), text, url)


def tls_has_effect(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if certificates are named and no URL is https, or a key without its certificate."""
    deliver, tls = settings.deliver, settings.deliver.tls
    if deliver.mode == "push" and tls != Tls() and not deliver.by_tls:
        text = "has no effect without https in deliver.url or deliver.health_url; leave it out, or write https"
        yield Fault(("deliver", "tls"), text, has_value=False)
    if tls.key_file is not None and tls.cert_file is None:
        yield Fault(
            ("deliver", "tls", "key_file"), "is the key of deliver.tls.cert_file, which is missing", tls.key_file
        )


URLS = (("deliver", "url"), ("deliver", "health_url"))
CHECKS_OF_URLS = (
    (url_is_given, (("deliver", "mode"), ("deliver", "url"))),
    (urls_are_local, (*URLS, ("deliver", "allow_remote"))),
    (tls_has_effect, (*URLS, ("deliver", "mode"), ("deliver", "tls"))),
)


def exposed(settings: Settings) -> list[str]:
    """Return a sentence for each secret that crosses a network in plain text, and for what a signature leaves open."""
    deliver = settings.deliver
    if deliver.url is None or is_local_url(deliver.url) or is_tls_url(deliver.url):
        return []
    sentences = []
    if deliver.bearer_token_file is not None:
        sentences.append(
            "deliver.bearer_token_file: its token crosses the network in plain text, as deliver.url is not https"
        )
    if deliver.signing_secret_file is not None and not deliver.envelope and deliver.batch.max_size == 1:
        sentences.append(
            "deliver.signing_secret_file: a signature covers the body and the id, and deliver.url is not https: key, "
            "topic, path and Idempotency-Key can be changed on the way; set deliver.envelope, or use https"
        )
    return sentences
