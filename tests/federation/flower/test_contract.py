"""What we rely on of Flower's insides. An upgrade that breaks any of it fails here, in words."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.config import get_fab_config
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    HEARTBEAT_MAX_INTERVAL,
    HEARTBEAT_MIN_INTERVAL,
    HEARTBEAT_PATIENCE,
    SUPERLINK_NODE_ID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import SqlLinkState
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TASK_TOKEN_HEADER,
    TaskType,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.error.catalog import API_ERROR_MAP
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, verify_signature
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.utils import int64_to_uint64
from flwr.superlink.main import create_app
from flwr.superlink.routers.fleet import node_auth
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.supernode.fleet_http_client import FleetHttpClient

from quietsum.federation.flower import flwr_calls, flwr_coordinator, flwr_node, gate
from quietsum.federation.flower.parcel import CHUNK, INLINE, cut


def test_the_version_is_the_one_that_was_read() -> None:
    assert importlib.metadata.version("flwr") == "1.41.0", (
        "read the new version's SuperLink before you change this line"
    )


@pytest.mark.parametrize(
    ("client", "calls"),
    [
        (
            FleetHttpClient,
            "ActivateNode DeactivateNode SendNodeHeartbeat PullMessages PushMessages PullObject PushObject "
            "ConfirmMessageReceived",
        ),
        (
            RuntimeHttpClient,
            "AcquireTask PullTaskInput PushTaskOutput SendTaskHeartbeat GetNodes PushMessages PullMessages PushObject "
            "PullObject ConfirmMessageReceived",
        ),
        (ControlHttpClient, "StartRun ListRuns ListNodes RegisterNode"),
    ],
)
def test_the_clients_have_the_calls_that_we_make(client: type[ProtobufClient], calls: str) -> None:
    for call in calls.split():
        assert list(inspect.signature(getattr(client, call)).parameters) == ["self", "request"], call
    assert {"interceptors", "verify"} <= set(inspect.signature(client.__init__).parameters)


def test_the_gate_knows_the_paths_by_which_nodes_call() -> None:
    fleet = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    assert fleet >= gate._FLEET
    assert fleet - gate._FLEET == {
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/get-run",
        "/v1/fleet/get-fab",
    }, "a new call for nodes: does it hand out code?"


def test_the_words_and_numbers_are_flowers() -> None:
    assert gate.KEY_HEADER == FLEET_HTTP_PUBLIC_KEY_HEADER
    assert (TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER) == ("flwr-timestamp", "flwr-signature")
    assert TASK_TOKEN_HEADER == "flwr-task-token"
    assert SUPERLINK_NODE_ID == flwr_calls.SUPERLINK_NODE
    assert TaskType.SERVER_APP == flwr_coordinator._SERVERAPP
    assert HEARTBEAT_MIN_INTERVAL <= flwr_node.HEARTBEAT <= HEARTBEAT_MAX_INTERVAL
    assert flwr_coordinator.TASK_HEARTBEAT * 2 < HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL
    assert ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED == flwr_calls._ACTIVATION_FAILED
    assert API_ERROR_MAP[ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED].http_status_code == 412
    assert API_ERROR_MAP[ApiErrorCode.RUNTIME_AUTHENTICATION_FAILED].http_status_code in (401, 403)


def test_our_objects_are_objects_to_flower() -> None:
    content = bytes(range(256)) * ((INLINE + CHUNK + 1000) // 256)
    parcel = cut(content)
    for name in (parcel.root, *parcel.chunks):
        validate_object_content(parcel.object(name))
    piece = content[INLINE : INLINE + CHUNK]
    flowers = ArrayChunk(memoryview(piece))
    assert flowers.object_id == parcel.chunks[0]
    assert flowers.deflate() == parcel.object(parcel.chunks[0])


def test_the_app_without_code_is_an_app_to_flower() -> None:
    config = get_fab_config(flwr_coordinator._empty_app())
    assert config["project"]["name"] == "quietsum"
    assert "agentapp" not in config["tool"]["flwr"]["app"]["components"]


def test_a_signature_of_ours_is_one_to_flower() -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    assert verify_signature(key.public_key(), b"now", flwr_node.sign_message(key, b"now"))
    assert not verify_signature(key.public_key(), b"then", flwr_node.sign_message(key, b"now"))
    assert public_key_to_bytes(key.public_key()).startswith(b"-----BEGIN PUBLIC KEY-----")


def test_a_superlink_can_be_built_and_its_activation_be_wrapped() -> None:
    program = importlib.import_module("flwr.superlink.cli.flower_superlink")
    assert not inspect.signature(program._parse_superlink_lifespan_config).parameters
    assert list(inspect.signature(create_app).parameters) == ["config", "superlink_lifespan_class"]
    assert inspect.isclass(program.SuperLinkLifespan)
    assert list(inspect.signature(fleet_handlers.activate_node).parameters) == ["request", "state"]
    assert list(inspect.signature(fleet_handlers.push_messages).parameters) == ["request", "state"]
    router = importlib.import_module("flwr.superlink.routers.fleet.router")
    for call in ("activate_node", "push_messages"):
        assert f"return fleet_handlers.{call}(" in inspect.getsource(router), "ours would be passed by"
    options = program._parse_args_run_superlink().format_help()
    tls = ["--insecure", "--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile", "--enable-supernode-auth"]
    for option in [*tls, "--isolation", "--database", "--disable-runtime-dependency-installation"]:
        assert option in options


def test_what_a_call_says_of_its_node_was_checked_and_what_a_message_says_was_not() -> None:
    """See :mod:`quietsum.federation.flower.replies`; over an unguarded SuperLink a test shows what comes of it."""
    checked = inspect.getsource(node_auth.authenticate_node)
    assert "get_node_id_by_public_key(public_key) != node_id" in checked, "request.node would be anybody's word"
    assert "src_node_id" not in checked
    pushed = PushMessagesRequest.DESCRIPTOR.fields_by_name
    assert set(pushed) == {"node", "messages_list", "message_object_trees", "clientapp_runtime_list"}, (
        "a new part of the call: does a guard look at it?"
    )
    assert set(ObjectTree.DESCRIPTOR.fields_by_name) == {"object_id", "children"}


def test_a_message_that_is_no_reply_is_one_to_a_node() -> None:
    kept = inspect.getsource(SqlLinkState.store_message_and_object_tree)
    reply, other = kept.index("store_message_res("), kept.index("store_message_ins(")
    assert kept.index("if message.metadata.reply_to_message_id:") < reply < kept.index("else:") < other
    assert list(inspect.signature(SqlLinkState.get_valid_message_ins).parameters) == ["self", "message_id"]
    assert int64_to_uint64(-1) == 2**64 - 1


def test_only_objects_that_were_announced_are_kept_and_their_size_is_nobodys_concern() -> None:
    """So the number of objects in a reply's tree, and the gate's bound on each, bound what a reply takes."""
    stored = inspect.getsource(SqlLinkState.store_object)
    assert stored.index("_claim_pending_object(") < stored.index("object_store.put(")
    assert "len(object_content)" not in stored


def test_a_refusal_of_ours_reaches_the_node_as_it_is() -> None:
    handled = inspect.getsource(importlib.import_module("flwr.supercore.error.http"))
    assert "except HTTPException as err:" in handled


def test_the_clocks_that_flower_takes() -> None:
    assert (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE) == (5, 300)  # seconds a site may be ahead, and behind
