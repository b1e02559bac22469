"""The proxy that the crash tests rest on, between a plain socket and a small stand-in for a broker."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.support.deadline import until
from tests.support.kafka.packet_loss import AVAILABLE
from tests.support.kafka.proxy import FRAME, HOST, KafkaProxy
from tests.support.kafka.proxy_rules import PREFIX, Api, Fate, Gate, Late, Moment, Request, Rule

linux = pytest.mark.skipif(not AVAILABLE, reason="packets are lost by a socket filter of Linux")

SECONDS = 30.0
SOON = 0.2
"""Seconds in which nothing may arrive."""


class Echo(threading.Thread):
    """A broker that answers each request with its correlation id and its own size; it keeps what it got."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.got: list[bytes] = []
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while size := stream.read(FRAME.size):
                frame = stream.read(FRAME.unpack(size)[0])
                self.got.append(frame)
                correlation = PREFIX.unpack_from(frame)[2]
                connection.sendall(struct.pack(">iii", 8, correlation, len(frame)))

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.join(SECONDS)


class Client:
    """Sends requests and reads responses."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), SECONDS)

    def send(self, api: Api, correlation: int, client: bytes | None = b"pod-0", body: bytes = b"") -> bytes:
        name = b"" if client is None else client
        frame = PREFIX.pack(api, 1, correlation, -1 if client is None else len(name)) + name + body
        self.socket.sendall(FRAME.pack(len(frame)) + frame)
        return frame

    def answer(self) -> int:
        """The correlation id of the next response."""
        data = self.socket.recv(12, socket.MSG_WAITALL)
        return int(struct.unpack(">iii", data)[1])

    def hears_nothing(self) -> bool:
        self.socket.settimeout(SOON)
        try:
            return self.socket.recv(1) == b"never"
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(SECONDS)


@pytest.fixture
def echo() -> Iterator[Echo]:
    broker = Echo()
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[KafkaProxy]:
    with KafkaProxy() as proxy:
        proxy.target(echo.port)
        yield proxy
    assert proxy.problems == []


@pytest.fixture
def client(proxy: KafkaProxy) -> Iterator[Client]:
    client = Client(proxy.address)
    yield client
    client.socket.close()


def test_requests_and_responses_pass_unchanged(client: Client, echo: Echo) -> None:
    """Byte for byte, also a large one, and one without a client id."""
    sent = [
        client.send(Api.PRODUCE, 1, body=bytes(range(256)) * 4_000),
        client.send(Api.FETCH, 2, client=None),
    ]
    assert [client.answer(), client.answer()] == [1, 2]
    assert echo.got == sent


def test_a_rule_sees_the_prefix_of_the_nth_request_of_its_api_and_client(client: Client, proxy: KafkaProxy) -> None:
    """Others of the api, of the client, and those before and after do not count."""
    seen: list[Request] = []
    proxy.add(Rule(Api.END_TXN, "pod-0", Moment.ARRIVED, seen.append, nth=2))
    for correlation, (api, name) in enumerate(
        [
            (Api.END_TXN, b"pod-0"),
            (Api.PRODUCE, b"pod-0"),
            (Api.END_TXN, b"pod-1"),
            (Api.END_TXN, b"a-pod-0-b"),
            (Api.END_TXN, b"pod-0"),
        ]
    ):
        client.send(api, correlation, name)
        assert client.answer() == correlation
    assert seen == [Request(Api.END_TXN, 1, 3, "a-pod-0-b", 1)]


@pytest.mark.parametrize(("moment", "at_broker"), [(Moment.ARRIVED, 0), (Moment.ANSWERED, 1)])
def test_a_rule_acts_before_the_broker_or_before_the_client_has_it(
    client: Client, proxy: KafkaProxy, echo: Echo, moment: Moment, at_broker: int
) -> None:
    """While the action runs, the other side has nothing."""
    reached, go = threading.Event(), threading.Event()

    def hold(_request: Request) -> None:
        reached.set()
        go.wait(SECONDS)

    proxy.add(Rule(Api.PRODUCE, "", moment, hold))
    client.send(Api.PRODUCE, 7)
    assert reached.wait(SECONDS)
    assert (len(echo.got), client.hears_nothing()) == (at_broker, True)
    go.set()
    assert client.answer() == 7


def test_a_rule_acts_after_the_broker_has_it(client: Client, proxy: KafkaProxy, echo: Echo) -> None:
    """FORWARDED and DONE come in this order, each once."""
    moments: list[Moment] = []
    proxy.add(Rule(Api.PRODUCE, "", Moment.DONE, lambda _: moments.append(Moment.DONE)))
    proxy.add(Rule(Api.PRODUCE, "", Moment.FORWARDED, lambda _: moments.append(Moment.FORWARDED)))
    last = proxy.add(Rule(Api.FETCH, "", Moment.DONE))
    for api in (Api.PRODUCE, Api.FETCH):
        client.send(api, int(api))
        assert client.answer() == int(api)
    assert last.fired.wait(SECONDS)
    assert moments == [Moment.FORWARDED, Moment.DONE]


def test_a_dropped_request_never_reaches_the_broker(client: Client, proxy: KafkaProxy, echo: Echo) -> None:
    """What comes after it does."""
    proxy.add(Rule(Api.END_TXN, "pod", Moment.ARRIVED, fate=Fate.DROP))
    client.send(Api.END_TXN, 1)
    passed = client.send(Api.END_TXN, 2)
    assert client.answer() == 2
    assert echo.got == [passed]


def test_a_dropped_response_is_lost_and_later_ones_are_not(client: Client, proxy: KafkaProxy, echo: Echo) -> None:
    proxy.add(Rule(Api.TXN_OFFSET_COMMIT, "pod", Moment.ANSWERED, fate=Fate.DROP))
    sent = [client.send(Api.TXN_OFFSET_COMMIT, 1), client.send(Api.TXN_OFFSET_COMMIT, 2)]
    assert client.answer() == 2
    assert echo.got == sent


def test_a_silenced_connection_stays_silent_and_others_speak(client: Client, proxy: KafkaProxy) -> None:
    """Even for requests that no rule takes."""
    rule = proxy.add(Rule(Api.TXN_OFFSET_COMMIT, "pod", Moment.ANSWERED, fate=Fate.SILENCE))
    client.send(Api.TXN_OFFSET_COMMIT, 1)
    assert rule.fired.wait(SECONDS)
    client.send(Api.FETCH, 2)
    assert client.hears_nothing()
    other = Client(proxy.address)
    other.send(Api.TXN_OFFSET_COMMIT, 3)
    assert other.answer() == 3
    other.socket.close()


@pytest.mark.parametrize(("moment", "at_broker"), [(Moment.ARRIVED, 0), (Moment.ANSWERED, 1)])
def test_a_cut_closes_the_connection_and_the_next_one_works(
    client: Client, proxy: KafkaProxy, echo: Echo, moment: Moment, at_broker: int
) -> None:
    proxy.add(Rule(Api.END_TXN, "pod", moment, fate=Fate.CUT))
    client.send(Api.END_TXN, 1)
    assert client.socket.recv(1) == b""
    assert len(echo.got) == at_broker
    again = Client(proxy.address)
    again.send(Api.END_TXN, 2)
    assert again.answer() == 2
    again.socket.close()


def test_a_delay_holds_the_response_back(client: Client, proxy: KafkaProxy) -> None:
    proxy.add(Rule(Api.PRODUCE, "pod", Moment.ANSWERED, delay=2 * SOON))
    client.send(Api.PRODUCE, 1)
    assert client.hears_nothing()
    assert client.answer() == 1


@pytest.mark.parametrize("cut", [False, True])
def test_a_late_request_is_delivered_on_its_old_connection_after_its_repetition(
    client: Client, proxy: KafkaProxy, echo: Echo, cut: bool
) -> None:
    """Whether the proxy cuts the client off, or the client gives up."""
    late = proxy.add(Late(Api.END_TXN, "pod", cut=cut))
    kept = client.send(Api.END_TXN, 1)
    assert late.fired.wait(SECONDS)
    if cut:
        assert client.socket.recv(1) == b""
    client.socket.close()
    again = Client(proxy.address)
    repeated = again.send(Api.END_TXN, 2)
    assert again.answer() == 2
    assert echo.got == [repeated]
    late.deliver()
    assert late.answered.wait(SECONDS)
    assert echo.got == [repeated, kept]
    assert late.answer == struct.pack(">ii", 1, len(kept))
    again.socket.close()


def test_what_follows_a_late_request_on_its_connection_waits_for_it(
    client: Client, proxy: KafkaProxy, echo: Echo
) -> None:
    late = proxy.add(Late(Api.END_TXN, "pod"))
    sent = [client.send(Api.END_TXN, 1), client.send(Api.FETCH, 2)]
    assert client.hears_nothing()
    late.deliver()
    assert [client.answer(), client.answer()] == [1, 2]
    assert echo.got == sent


def test_a_rule_puts_its_request_behind_a_late_one(client: Client, proxy: KafkaProxy, echo: Echo) -> None:
    late = proxy.add(Late(Api.END_TXN, "pod", cut=True))
    kept = client.send(Api.END_TXN, 1)
    assert late.fired.wait(SECONDS)
    proxy.add(Rule(Api.ADD_OFFSETS_TO_TXN, "pod", Moment.ARRIVED, behind=late))
    again = Client(proxy.address)
    sent = again.send(Api.ADD_OFFSETS_TO_TXN, 2)
    assert again.answer() == 2
    assert echo.got == [kept, sent]
    again.socket.close()


def test_what_is_behind_a_late_request_whose_broker_has_gone_goes_on(proxy: KafkaProxy, echo: Echo) -> None:
    with socket.create_server((HOST, 0)) as server:
        proxy.target(server.getsockname()[1])
        late = proxy.add(Late(Api.END_TXN, "pod", cut=True))
        first = Client(proxy.address)
        first.send(Api.END_TXN, 1)
        broker, _ = server.accept()
        assert late.fired.wait(SECONDS)
    proxy.target(echo.port)
    proxy.add(Rule(Api.ADD_OFFSETS_TO_TXN, "pod", Moment.ARRIVED, behind=late))
    again = Client(proxy.address)
    again.send(Api.ADD_OFFSETS_TO_TXN, 2)
    assert broker.recv(1)
    broker.close()
    assert again.answer() == 2
    assert not late.answered.is_set()
    first.socket.close()
    again.socket.close()


def test_a_rule_that_is_removed_holds_no_longer(client: Client, proxy: KafkaProxy, echo: Echo) -> None:
    gone, stays = (proxy.add(Rule(Api.END_TXN, "pod", Moment.ARRIVED, times=9)) for _ in range(2))
    proxy.remove(gone)
    client.send(Api.END_TXN, 1)
    assert client.answer() == 1
    assert (gone.seen, stays.seen) == (0, 1)


def test_a_late_request_is_the_first_that_the_rule_wants(client: Client, proxy: KafkaProxy, echo: Echo) -> None:
    late = proxy.add(Late(Api.END_TXN, "pod", only=lambda request: request.body == b"abort"))
    passed = client.send(Api.END_TXN, 1, body=b"commit")
    assert client.answer() == 1
    client.send(Api.END_TXN, 2, body=b"abort")
    assert late.fired.wait(SECONDS)
    assert echo.got == [passed]


def test_what_is_kept_when_the_rules_are_cleared_never_arrives(client: Client, proxy: KafkaProxy, echo: Echo) -> None:
    late = proxy.add(Late(Api.END_TXN, "pod"))
    client.send(Api.END_TXN, 1)
    assert late.fired.wait(SECONDS)
    proxy.clear()
    assert client.socket.recv(1) == b""
    assert echo.got == []


@pytest.mark.parametrize("moment", [Moment.ARRIVED, Moment.ANSWERED])
def test_a_gate_holds_requests_of_several_connections_until_it_is_open(
    client: Client, proxy: KafkaProxy, moment: Moment
) -> None:
    gate, other = Gate(), Client(proxy.address)
    rule = proxy.add(Rule(Api.END_TXN, "", moment, times=2, gate=gate))
    for each in (client, other):
        each.send(Api.END_TXN, 1)
    until(lambda: rule.seen == 2, SECONDS, "both wait")
    assert client.hears_nothing()
    gate.open()
    assert [client.answer(), other.answer()] == [1, 1]
    other.socket.close()


@linux
def test_lost_packets_arrive_when_the_loss_is_over_without_being_sent_again(
    client: Client, proxy: KafkaProxy, echo: Echo
) -> None:
    """The client's kernel repeats them, also for a connection that the client has closed."""
    other = Client(proxy.address)
    for number, each in enumerate((client, other)):  # both connections stand
        each.send(Api.FETCH, number)
        assert each.answer() == number
    with proxy.packets_lost():
        sent = [client.send(Api.END_TXN, 2), other.send(Api.END_TXN, 3)]
        other.socket.close()
        assert client.hears_nothing()
        assert len(echo.got) == 2
    assert client.answer() == 2
    until(lambda: len(echo.got) == 4, SECONDS, "both arrive")
    assert sorted(echo.got[2:]) == sorted(sent)


@linux
def test_no_connection_is_made_while_packets_are_lost(proxy: KafkaProxy, echo: Echo) -> None:
    with proxy.packets_lost(), pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", int(proxy.address.split(":")[1])), SOON)
    after = Client(proxy.address)
    after.send(Api.FETCH, 1)
    assert after.answer() == 1
    after.socket.close()


def test_a_broker_that_is_down_closes_the_clients_connection(proxy: KafkaProxy) -> None:
    """As a killed broker does: the client is to notice at once."""
    with socket.create_server((HOST, 0)) as nobody:
        proxy.target(nobody.getsockname()[1])
    client = Client(proxy.address)
    assert client.socket.recv(1) == b""
    client.socket.close()
