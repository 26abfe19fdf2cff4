"""Simulates a Unity build: an executable that implements the ML-Agents protocol (1.5) over gRPC, as a client.

It runs in the interpreter that has mlagents-envs and uses its messages. The sequence of messages is that of Unity's
package: a call to initialize, a call for the first command, then one call per frame. `--scene NAME` selects a scene of
`scenes.py`.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import uuid

import grpc
import numpy as np
from mlagents_envs.communicator_objects import command_pb2, unity_message_pb2
from mlagents_envs.communicator_objects.unity_to_external_pb2_grpc import UnityToExternalProtoStub

from scenes import SCENES, Info

ENGINE = uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
STATS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
TIME_SCALE = 2


class Connection:
    """The client's side of the connection."""

    def __init__(self, port: int):
        channel = grpc.insecure_channel(f"localhost:{port}", (("grpc.enable_http_proxy", 0),))
        self._stub = UnityToExternalProtoStub(channel)

    def call(self, output=None, status: int = 200):
        message = unity_message_pb2.UnityMessageProto()
        message.header.status = status
        if output is not None:
            message.unity_output.CopyFrom(output)
        reply = self._stub.Exchange(message, wait_for_ready=True)
        if reply.header.status != 200:
            sys.exit(0)  # the trainer ended the session
        return reply.unity_input


def settings_of(content: bytes) -> dict[str, float]:
    """Reads time scale and environment parameters from side channels."""
    found, at = {}, 0
    while at < len(content):
        channel = uuid.UUID(bytes_le=content[at : at + 16])
        (size,) = struct.unpack_from("<i", content, at + 16)
        message = content[at + 20 : at + 20 + size]
        at += 20 + size
        if channel == ENGINE and struct.unpack_from("<i", message)[0] == TIME_SCALE:
            (found["time_scale"],) = struct.unpack_from("<f", message, 4)
        elif channel == PARAMETERS:
            (letters,) = struct.unpack_from("<i", message)
            name = message[4 : 4 + letters].decode()
            (found[name],) = struct.unpack_from("<f", message, 8 + letters)
    return found


def stats_message() -> bytes:
    """A message of Unity's StatsRecorder, which scenes send on their own."""
    name = b"Goals"
    message = struct.pack("<i", len(name)) + name + struct.pack("<fi", 1.0, 0)
    return STATS.bytes_le + struct.pack("<i", len(message)) + message


def frame(infos: list[Info], behaviors: dict, described: set[str]):
    """The message of one frame, with descriptions of new behaviors."""
    output = unity_message_pb2.UnityMessageProto().unity_output
    for info in infos:
        if info.behavior not in described:
            described.add(info.behavior)
            continuous, branches = behaviors[info.behavior].continuous, behaviors[info.behavior].branches
            brain = output.rl_initialization_output.brain_parameters.add()
            brain.brain_name, brain.is_training = info.behavior, True
            brain.action_spec.num_continuous_actions = continuous
            brain.action_spec.num_discrete_actions = len(branches)
            brain.action_spec.discrete_branch_sizes.extend(branches)
        agent = output.rl_output.agentInfos[info.behavior].value.add()
        agent.id, agent.reward, agent.done, agent.max_step_reached = info.id, info.reward, info.done, info.interrupted
        agent.group_id, agent.group_reward = info.group, info.group_reward
        if info.disallowed is not None and not info.done:
            agent.action_mask.extend(info.disallowed)
        for sensor, values in zip(behaviors[info.behavior].sensors, info.observations, strict=True):
            observation = agent.observations.add()
            observation.name = sensor.name
            observation.shape.extend(sensor.shape)
            observation.dimension_properties.extend(sensor.properties)
            if sensor.compressed:
                observation.compression_type = 1
                observation.compressed_data = sensor.png(values)
                observation.compressed_channel_mapping.extend([0, 1, 2])
            else:
                observation.float_data.data.extend(np.ravel(values).tolist())
    output.rl_output.side_channel = stats_message()
    return output


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", type=int, required=True)
    parser.add_argument("--scene", required=True)
    parser.add_argument("--once", help="a file: failures happen only if it does not exist")
    parser.add_argument("-logFile", dest="log", default=os.devnull)
    options, _ = parser.parse_known_args()
    sys.stderr = open(options.log, "w")  # noqa: SIM115 (until the end)
    connection = Connection(options.mlagents_port)
    hello = unity_message_pb2.UnityMessageProto().unity_output
    hello.rl_initialization_output.name = "simulated"
    hello.rl_initialization_output.communication_version = "1.5.0"
    hello.rl_initialization_output.package_version = "2.0.1"
    hello.rl_initialization_output.capabilities.baseRLCapabilities = True
    if options.scene == "mute":
        import time

        time.sleep(600)
    initialization = connection.call(hello).rl_initialization_input
    may_fail = options.once is None or not os.path.exists(options.once)
    command = connection.call().rl_input
    settings = {
        "seed": initialization.seed,
        "areas": initialization.num_areas,
        "trouble": float(may_fail),
        "port": options.mlagents_port,
    }
    settings["no_graphics"] = float("-nographics" in sys.argv)
    settings |= settings_of(command.side_channel)
    scene = SCENES[options.scene](settings, options.once)
    described: set[str] = set()
    requesting: dict[str, list[int]] = {}
    while True:
        settings |= settings_of(command.side_channel)
        if command.command == command_pb2.RESET:
            infos = scene.reset()
        else:
            done = {}
            for name, ids in requesting.items():
                actions = command.agent_actions[name].value
                if len(actions) != len(ids):
                    sys.exit(9)  # actions do not match the requests
                for number, action in zip(ids, actions, strict=True):
                    done[name, number] = (list(action.continuous_actions), list(action.discrete_actions))
            infos = scene.step(done)
        requesting = {}
        for info in infos:
            if not info.done:
                requesting.setdefault(info.behavior, []).append(info.id)
        command = connection.call(frame(infos, scene.behaviors, described)).rl_input


main()
