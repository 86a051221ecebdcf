"""Who gets in: anyone on this machine without keys, holders of keys where there are some."""

from __future__ import annotations

import time

import pytest
from guarded import client_of_app, code_of

from coinkv.errors import InputError
from coinkv.serve.security import access, key_file
from coinkv.serve.security import keys as keys_module
from coinkv.serve.security.access import is_loopback, require_safe_binding
from coinkv.serve.security.keys import Keys
from coinkv.serve.settings import ServeSettings

OPEN = ["/", "/healthz", "/assets/page.js", "/openapi.json"]


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch):
    monkeypatch.setattr(keys_module, "_LOOK_SECONDS", 0.0)


@pytest.fixture
def settings(tmp_path):
    return ServeSettings(data_dir=tmp_path)


@pytest.fixture
def alice(tmp_path):
    """The authorization of a key in a namespace of its own."""
    return bearer(Keys(tmp_path).add("alice", namespace="team")[1])


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def test_without_keys_everyone_is_the_default_namespace_under_his_address(settings):
    client = client_of_app(settings, client=("127.0.0.1", 5))
    assert client.get("/v1/who").json() == {"namespace": "default", "client": "127.0.0.1"}
    # OpenAI's clients always send a key
    assert client.get("/v1/who", headers=bearer("sk-none")).status_code == 200


def test_a_key_says_who_asks_and_what_it_sees(settings, alice):
    client = client_of_app(settings)
    assert client.get("/v1/who", headers=alice).json() == {"namespace": "team", "client": "alice"}


def test_where_there_are_keys_a_request_without_a_valid_one_is_refused(settings, alice):
    client = client_of_app(settings)
    good = alice["authorization"]
    bad = ["", "Bearer", "Bearer ", "Bearer nonsense", good + "x", good[7:], f"Basic {good[7:]}"]
    for value in bad:
        refused = client.get("/v1/who", headers={"authorization": value})
        assert refused.status_code == 401, value
        assert code_of(refused) == "invalid_api_key"
        assert refused.json()["error"]["type"] == "authentication_error"
        assert refused.headers["www-authenticate"].startswith('Bearer realm="coinkv"')
    assert client.get("/v1/who").status_code == 401
    assert client.get("/v1/who", headers={"authorization": good.lower()}).status_code == 401
    assert client.get("/v1/who", headers={"authorization": "bearer" + good[6:]}).status_code == 200


def test_a_request_with_two_authorizations_is_refused(settings, alice):
    client = client_of_app(settings)
    twice = [("authorization", "Bearer other"), ("authorization", alice["authorization"])]
    assert client.get("/v1/who", headers=twice).status_code == 401


def test_a_key_is_taken_from_its_header_only(settings, alice):
    secret = alice["authorization"][7:]
    client = client_of_app(settings, cookies={"authorization": secret, "api_key": secret})
    tried = {"api_key": secret, "authorization": secret, "access_token": secret}
    assert client.get("/v1/who", params=tried, headers={"x-api-key": secret}).status_code == 401


def test_an_expired_key_is_refused_and_says_so(settings, tmp_path, monkeypatch):
    _, secret = Keys(tmp_path).add("alice", expires=int(time.time()) + 1000)
    client = client_of_app(settings)
    assert client.get("/v1/who", headers=bearer(secret)).status_code == 200
    now = time.time()
    monkeypatch.setattr(key_file.time, "time", lambda: now + 1000)
    refused = client.get("/v1/who", headers=bearer(secret))
    assert refused.status_code == 401
    assert "expired" in refused.json()["error"]["message"]
    assert client.get("/healthz", headers=bearer(secret)).status_code == 200


def test_the_page_and_the_probes_need_no_key_and_take_a_wrong_one(settings, alice):
    client = client_of_app(settings)
    for path in OPEN:
        assert client.get(path).status_code == 200, path
        assert client.get(path, headers=bearer("wrong")).status_code == 200, path


def test_whatever_is_not_named_as_open_needs_a_key(settings, alice):
    client = client_of_app(settings)
    for path in ("/v1", "/v2/who", "//v1/who", "/V1/who", "/docs/x", "/assets", "/x"):
        assert client.get(path).status_code == 401, path
        assert client.get(path, headers=alice).status_code == 404, path
    assert client.get("/v1%2fwho").status_code == 401
    assert client.get("/v1%2fwho", headers=alice).status_code == 200


def test_the_first_key_closes_a_running_server_and_removing_it_does_not_open_it(settings, tmp_path):
    client = client_of_app(settings)
    assert client.get("/v1/who").status_code == 200
    Keys(tmp_path).add("alice")
    assert client.get("/v1/who").status_code == 401
    Keys(tmp_path).remove("alice")
    assert client.get("/v1/who").status_code == 401
    (tmp_path / "keys.json").unlink()
    assert client.get("/v1/who").status_code == 401


def test_a_proxy_cannot_say_who_asks(settings):
    client = client_of_app(settings, client=("192.0.2.7", 5))
    told = {"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1", "x-real-ip": "10.0.0.1"}
    assert client.get("/v1/who", headers=told).json()["client"] == "192.0.2.7"


def test_an_ipv6_peer_is_its_network_and_an_ipv4_peer_in_ipv6_itself(settings):
    peers = {
        "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64",
        "2001:db8:1:2::9": "2001:db8:1:2::/64",
        "fe80::1%eth0": "fe80::/64",
        "::ffff:192.0.2.7": "192.0.2.7",
    }
    for peer, name in peers.items():
        told = client_of_app(settings, client=(peer, 5)).get("/v1/who").json()
        assert told["client"] == name


def test_metrics_are_open_on_loopback_and_the_operators_elsewhere(settings, tmp_path, alice):
    operator = bearer(Keys(tmp_path).add("prometheus")[1])
    assert client_of_app(settings).get("/metrics").status_code == 200
    public = client_of_app(ServeSettings(data_dir=tmp_path, host="0.0.0.0"))
    assert public.get("/metrics").status_code == 401
    refused = public.get("/metrics", headers=alice)
    assert (refused.status_code, code_of(refused)) == (403, "wrong_namespace")
    assert public.get("/metrics", headers=operator).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_a_loopback_address_is_safe_without_keys(tmp_path, host):
    assert is_loopback(host)
    require_safe_binding(ServeSettings(host=host), Keys(tmp_path))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.0.1", "example.org", "127.1"])
def test_any_other_address_needs_keys_or_a_word(tmp_path, host):
    assert not is_loopback(host)
    settings = ServeSettings(host=host, data_dir=tmp_path)
    with pytest.raises(InputError, match="coinkv keys add"):
        require_safe_binding(settings, Keys(tmp_path))
    require_safe_binding(settings.model_copy(update={"open_access": True}), Keys(tmp_path))
    Keys(tmp_path).add("alice")
    require_safe_binding(settings, Keys(tmp_path))


def test_a_public_server_without_keys_lets_nobody_in_unless_told_to(tmp_path):
    public = ServeSettings(data_dir=tmp_path, host="0.0.0.0")
    assert client_of_app(public).get("/v1/who").status_code == 401
    told = public.model_copy(update={"open_access": True})
    assert client_of_app(told).get("/v1/who").status_code == 200
    assert client_of_app(told).get("/metrics").status_code == 200
    Keys(tmp_path).add("alice")
    assert client_of_app(told).get("/v1/who").status_code == 401


def test_the_openapi_document_says_that_routes_take_a_key(settings):
    from fastapi import APIRouter, Depends, FastAPI

    router = APIRouter()
    router.get("/v1/x", dependencies=[Depends(access.namespace_of)])(lambda: None)
    app = FastAPI()
    app.include_router(router)
    assert app.openapi()["paths"]["/v1/x"]["get"]["security"] == [{"HTTPBearer": []}]
