"""Stands in for a Unity build: an executable that speaks the protocol of ML-Agents (1.5) over gRPC, as a client.

It runs in the interpreter that has mlagents-envs, whose messages it speaks with; what it says and when follows Unity's
package: one call to shake hands, one more for the first order, then a frame a call. `--scene NAME` chooses what is
played; `scenes.py` has them.
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


class Line:
    """The client's side of the line."""

    def __init__(self, port: int):
        channel = grpc.insecure_channel(f"localhost:{port}", (("grpc.enable_http_proxy", 0),))
        self._stub = UnityToExternalProtoStub(channel)

    def call(self, output=None, status: int = 200):
        message = unity_message_pb2.UnityMessageProto()
        message.header.status = status
        if output is not None:
            message.unity_output.CopyFrom(output)
        answer = self._stub.Exchange(message, wait_for_ready=True)
        if answer.header.status != 200:
            sys.exit(0)  # told to quit
        return answer.unity_input


def settings_of(content: bytes) -> dict[str, float]:
    """What side channels say: the time scale and environment parameters."""
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
    """A message of Unity's StatsRecorder, which scenes send unasked."""
    name = b"Goals"
    message = struct.pack("<i", len(name)) + name + struct.pack("<fi", 1.0, 0)
    return STATS.bytes_le + struct.pack("<i", len(message)) + message


def frame(infos: list[Info], kinds: dict, told: set[str]):
    """The message of one frame; behaviours that are new are described in it."""
    output = unity_message_pb2.UnityMessageProto().unity_output
    for info in infos:
        if info.behaviour not in told:
            told.add(info.behaviour)
            continuous, branches = kinds[info.behaviour].continuous, kinds[info.behaviour].branches
            brain = output.rl_initialization_output.brain_parameters.add()
            brain.brain_name, brain.is_training = info.behaviour, True
            brain.action_spec.num_continuous_actions = continuous
            brain.action_spec.num_discrete_actions = len(branches)
            brain.action_spec.discrete_branch_sizes.extend(branches)
        said = output.rl_output.agentInfos[info.behaviour].value.add()
        said.id, said.reward, said.done, said.max_step_reached = info.id, info.reward, info.done, info.interrupted
        said.group_id, said.group_reward = info.group, info.group_reward
        if info.barred is not None and not info.done:
            said.action_mask.extend(info.barred)
        for sensor, seen in zip(kinds[info.behaviour].sensors, info.seen, strict=True):
            observation = said.observations.add()
            observation.name = sensor.name
            observation.shape.extend(sensor.shape)
            observation.dimension_properties.extend(sensor.properties)
            if sensor.compressed:
                observation.compression_type = 1
                observation.compressed_data = sensor.png(seen)
                observation.compressed_channel_mapping.extend([0, 1, 2])
            else:
                observation.float_data.data.extend(np.ravel(seen).tolist())
    output.rl_output.side_channel = stats_message()
    return output


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", type=int, required=True)
    parser.add_argument("--scene", required=True)
    parser.add_argument("--once", help="a file: whatever goes wrong does so only where it is not there yet")
    parser.add_argument("-logFile", dest="log", default=os.devnull)
    options, _ = parser.parse_known_args()
    sys.stderr = open(options.log, "w")  # noqa: SIM115 (until the end)
    line = Line(options.mlagents_port)
    hello = unity_message_pb2.UnityMessageProto().unity_output
    hello.rl_initialization_output.name = "stand-in"
    hello.rl_initialization_output.communication_version = "1.5.0"
    hello.rl_initialization_output.package_version = "2.0.1"
    hello.rl_initialization_output.capabilities.baseRLCapabilities = True
    if options.scene == "mute":
        import time

        time.sleep(600)
    begun = line.call(hello).rl_initialization_input
    trouble = options.once is None or not os.path.exists(options.once)
    order = line.call().rl_input
    settings = {"seed": begun.seed, "areas": begun.num_areas, "trouble": float(trouble), "port": options.mlagents_port}
    settings["no_graphics"] = float("-nographics" in sys.argv)
    settings |= settings_of(order.side_channel)
    scene = SCENES[options.scene](settings, options.once)
    told: set[str] = set()
    asked: dict[str, list[int]] = {}
    while True:
        settings |= settings_of(order.side_channel)
        if order.command == command_pb2.RESET:
            infos = scene.reset()
        else:
            done = {}
            for name, ids in asked.items():
                actions = order.agent_actions[name].value
                if len(actions) != len(ids):
                    sys.exit(9)  # an answer to who did not ask, or none to who did
                for number, action in zip(ids, actions, strict=True):
                    done[name, number] = (list(action.continuous_actions), list(action.discrete_actions))
            infos = scene.step(done)
        asked = {}
        for info in infos:
            if not info.done:
                asked.setdefault(info.behaviour, []).append(info.id)
        order = line.call(frame(infos, scene.kinds, told)).rl_input


main()
