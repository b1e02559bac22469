"""A broker whose clients' listener wants TLS and a login, with StandardAuthorizer behind it.

The plain listener is the administrator's, as in `guarded.py`; both give rights in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.support.kafka.certificates import Authority
from tests.support.kafka.guarded import GUARDED, GuardedKafka
from tests.support.kafka.topic_io import SECONDS

LISTENER = "listener.name.proxy."
AGAIN_EVERY = 3_000
"""ms after which a client must log in again (KIP-368): so an old password is of no use for long."""
SCRAM = {
    f"{LISTENER}sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
    f"{LISTENER}scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    f"{LISTENER}oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    ),
    f"{LISTENER}connections.max.reauth.ms": AGAIN_EVERY,
}
MUTUAL = {
    "ssl.client.auth": "required",
    "ssl.truststore.type": "PEM",
    # The name that a certificate is made out to is the user.
    "ssl.principal.mapping.rules": r"RULE:^.*CN=([^,]+).*$/$1/",
}


class SecuredKafka(NamedTuple):
    """`guarded`: gives and takes rights; `address`: `localhost:port`, the only name in the broker's certificate."""

    guarded: GuardedKafka
    address: str
    authority: Authority

    @property
    def bootstrap(self) -> str:
        """The administrator's listener."""
        return self.guarded.bootstrap

    def client(self, protocol: str, **more: str) -> dict[str, str]:
        """A client's properties; `sasl_mechanism` is `sasl.mechanism`."""
        named = {name.replace("_", "."): value for name, value in more.items()}
        return {
            "bootstrap.servers": self.address,
            "security.protocol": protocol,
            "ssl.ca.location": str(self.authority.file),
            **named,
        }

    def set_password(self, user: str, password: str) -> None:
        """Make a SCRAM user, or give it another password."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        change = UserScramCredentialUpsertion(user, info, password.encode())
        admin.alter_user_scram_credentials([change])[user].result(SECONDS)


@contextmanager
def secured_kafka(folder: Path, *, mutual: bool = False) -> Iterator[SecuredKafka]:
    """A broker of its own: SASL_SSL with SCRAM and OAUTHBEARER, or mutual TLS without a login."""
    authority = Authority(folder, "brokers")
    store = authority.server(folder / "server.pem", "localhost")
    protocol = "SSL" if mutual else "SASL_SSL"
    tls: Mapping[str, object] = {
        f"{LISTENER}ssl.keystore.type": "PEM",
        f"{LISTENER}ssl.keystore.location": store,
        **({f"{LISTENER}ssl.truststore.location": authority.file} if mutual else {}),
        **{f"{LISTENER}{name}": value for name, value in (MUTUAL if mutual else {}).items()},
    }
    own = {
        **{name: value for name, value in GUARDED.items() if not name.startswith(LISTENER)},
        "listener.security.protocol.map": f"PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXY:{protocol}",
        **({} if mutual else SCRAM),
        **tls,
    }
    with EmbeddedKafka.start(properties=own, advertised=lambda _node: "localhost:{port}") as kafka:
        address = kafka.node(0).plan.advertised
        yield SecuredKafka(GuardedKafka(kafka.bootstrap, address, address), address, authority)
