import subprocess

import orders


def test_an_order_is_done(sidecar):
    record = sidecar.produce("orders", '{"sku": "A-17"}')
    sidecar.expect(record, "--done", "--retries", "0", "--within", "20s")


def test_an_order_that_fails_is_dead_after_all_retries(sidecar):
    record = sidecar.produce("orders", '{"sku": "A-99"}', "--key", "customer-7")
    sidecar.expect(record, "--dead", "--retries", "16", "--within", "60s")  # 4 h 46 min in production


def test_the_handler_alone(tmp_path):
    (tmp_path / "order.json").write_text('{"sku": "A-17"}')
    with orders.server() as service:
        service.timeout = 10
        words = [
            "--value-file",
            tmp_path / "order.json",
            "--set",
            f"deliver.url=http://127.0.0.1:{service.server_port}/",
        ]
        delivery = subprocess.Popen(["reconsume", "dev", "deliver", "-c", "reconsume.yaml", *words])
        service.handle_request()
        assert delivery.wait(10) == 0
