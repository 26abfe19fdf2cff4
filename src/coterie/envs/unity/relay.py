"""The helper: runs in the interpreter that has mlagents-envs, starts one Unity environment and hands its frames on.

It needs numpy and mlagents-envs and nothing of Coterie but `framing`, which lies beside it. Orders come in on the
standard input and answers go out on the standard output. When the input ends, whoever gave the orders is gone: Unity is
killed and this process ends, whatever it waits for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import numpy as np

if __package__:
    from coterie.envs.unity.framing import packed, unpacked
else:
    from framing import packed, unpacked  # pyright: ignore[reportMissingImports]

EDITOR = 5004
"""The port at which the editor calls."""
_TRIES = 64
"""Ports that are tried one after the other."""
_GRACE = 5
"""Seconds that Unity has to quit by itself."""


class StrictVersion:
    """Of distutils, all that mlagents-envs 0.28 wants of it: Python 3.12 has no distutils, and setuptools, which can
    stand in for it, takes longer to import than all the rest.
    """

    def __init__(self, said: str):
        self.version = tuple(int(number) for number in re.findall(r"\d+", said)[:3])


def _without_distutils() -> None:
    version = types.ModuleType("distutils.version")
    version.StrictVersion = StrictVersion  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["distutils"], sys.modules["distutils.version"] = types.ModuleType("distutils"), version


class Wire:
    """The lines to whoever gives the orders."""

    def __init__(self) -> None:
        # Unity and libraries get others in their place, so that nobody writes or reads in between.
        self._orders = os.fdopen(os.dup(0), "rb")
        self._answers = os.fdopen(os.dup(1), "wb")
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self._waiting: queue.Queue[tuple[dict, dict[str, np.ndarray]]] = queue.Queue()
        self.unity: Any = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                self._waiting.put(unpacked(self._exactly))
        except BaseException:
            end(self.unity)
            os._exit(1)

    def _exactly(self, size: int) -> bytes:
        found = self._orders.read(size)
        if len(found) < size:
            raise EOFError
        return found

    def order(self) -> tuple[dict, dict[str, np.ndarray]]:
        """The next order, as soon as it is there."""
        return self._waiting.get()

    def answer(self, said: dict, arrays: dict[str, np.ndarray] | None = None) -> None:
        self._answers.write(packed(said, arrays or {}))
        self._answers.flush()


def end(unity: Any) -> None:
    """Kills Unity and what it started."""
    process = getattr(unity, "_process", None)
    if process is None:
        return
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)  # mlagents-envs starts it as the head of a group
        else:
            process.kill()
    except OSError:
        pass  # it is gone


# ------------------------------------------------------------------------------------------------------------ the line


def line(wire: Wire, ports: list[int], timeout: float) -> Any:
    """A communicator of mlagents-envs with three differences.

    It listens on this machine only, at a port that nobody else can have at the same time; messages may be of any size;
    and it waits for a seed before it answers Unity's first call, so that several builds can start side by side.
    """
    import grpc  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from mlagents_envs import rpc_communicator as rpc  # pyright: ignore[reportMissingImports]
    from mlagents_envs.exception import UnityTimeOutException  # pyright: ignore[reportMissingImports]

    options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

    class Line(rpc.RpcCommunicator):
        def create_server(self) -> None:
            for port in ports:
                server = grpc.server(ThreadPoolExecutor(max_workers=10), options=options)
                try:
                    self.port = server.add_insecure_port(f"127.0.0.1:{port}")
                except RuntimeError:
                    self.port = 0
                if self.port and _six(server, self.port):
                    break
                server.stop(None)
            else:
                asked = f"{ports[0]}" if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
                raise OSError(errno.EADDRINUSE, f"port {asked} is in use")
            self.server = server
            self.unity_to_external = rpc.UnityToExternalServicerImplementation()
            rpc.add_UnityToExternalProtoServicer_to_server(self.unity_to_external, server)
            server.start()
            self.is_open = True

        def poll_for_timeout(self, poll_callback: Any = None) -> None:
            until = time.monotonic() + timeout
            while time.monotonic() < until:
                if self.unity_to_external.parent_conn.poll(0.1):
                    return
                if poll_callback:
                    poll_callback()
            raise UnityTimeOutException

        def initialize(self, inputs: Any, poll_callback: Any = None) -> Any:
            self.poll_for_timeout(poll_callback)
            process = getattr(wire.unity, "_process", None)
            wire.answer({"ready": self.port, "pid": process and process.pid})
            said, _ = wire.order()
            if said["order"] != "seed":
                raise SystemExit
            inputs.rl_initialization_input.seed = said["seed"]
            return super().initialize(inputs, poll_callback)

    return Line(0, 0, timeout)


def _six(server: Any, port: int) -> bool:
    """Listens at the same port of IPv6 too, which Unity may try first. False if somebody else has it."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("::1", port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE  # else there is no IPv6 here
    try:
        return bool(server.add_insecure_port(f"[::1]:{port}"))
    except RuntimeError:
        return False


# --------------------------------------------------------------------------------------------------------------- Unity


class Relay:
    """One Unity environment.

    said: what to start, see `player.py`.
    """

    def __init__(self, wire: Wire, said: dict):
        from mlagents_envs.environment import UnityEnvironment  # pyright: ignore[reportMissingImports]
        from mlagents_envs.side_channel import (  # pyright: ignore[reportMissingImports]
            engine_configuration_channel,
            environment_parameters_channel,
            stats_side_channel,
        )

        _read_either_order()
        self._wire, self._flat = wire, set(said["flat"])
        base = said["base_port"]
        ports = [base + k for k in range(_TRIES)] if base else [0] * _TRIES
        listening = line(wire, ports if said["file"] else [EDITOR], said["timeout"])
        engine = engine_configuration_channel.EngineConfigurationChannel()
        engine.set_configuration_parameters(time_scale=said["time_scale"], target_frame_rate=-1, capture_frame_rate=60)
        self._parameters = environment_parameters_channel.EnvironmentParametersChannel()
        self.parameters(said["parameters"])
        self._stats = stats_side_channel.StatsSideChannel()

        class Unity(UnityEnvironment):
            def __init__(self, **settings: Any):
                wire.unity = self  # from now on whoever ends this process finds it
                super().__init__(**settings)

            @staticmethod
            def _get_communicator(worker_id: int, base_port: int, timeout_wait: int) -> Any:
                return listening

        self.unity = Unity(
            file_name=said["file"],
            base_port=listening.port,
            no_graphics=said["no_graphics"],
            timeout_wait=said["timeout"],
            additional_args=list(said["args"]),
            side_channels=[engine, self._parameters, self._stats],
            num_areas=said["areas"],
        )
        self._known: dict[str, list[bool]] = {}

    def parameters(self, values: dict[str, float]) -> None:
        """Numbers that go to the scene with the next reset or step."""
        for name, value in values.items():
            self._parameters.set_float_parameter(name, value)

    def reset(self) -> tuple[dict, dict[str, np.ndarray]]:
        self.unity.reset()
        self._known.clear()  # so that all behaviours are described anew
        return self._frame()

    def step(self, actions: dict[str, np.ndarray]) -> tuple[dict, dict[str, np.ndarray]]:
        """actions: `continuous I` [n, C] and `discrete I` [n, K] of the I-th behaviour, those who asked in order."""
        from mlagents_envs.base_env import ActionTuple  # pyright: ignore[reportMissingImports]

        for i, name in enumerate(self._known):
            if f"discrete {i}" in actions:
                chosen = ActionTuple(actions[f"continuous {i}"], actions[f"discrete {i}"])
                self.unity.set_actions(name, chosen)
        self.unity.step()
        return self._frame()

    def _frame(self) -> tuple[dict, dict[str, np.ndarray]]:
        """Who asks for a decision and who ended, by behaviour, and behaviours that were not there before."""
        specs = self.unity.behavior_specs
        new = [self._described(name, specs[name]) for name in list(specs) if name not in self._known]
        self._stats.get_and_reset_stats()
        arrays = {}
        for i, (name, pictures) in enumerate(self._known.items()):
            for letter, steps in zip("dt", self.unity.get_steps(name), strict=True):
                arrays[f"{letter} id {i}"] = np.asarray(steps.agent_id, np.int64)
                arrays[f"{letter} group {i}"] = np.asarray(steps.group_id, np.int64)
                arrays[f"{letter} reward {i}"] = np.asarray(steps.reward, np.float32)
                arrays[f"{letter} group_reward {i}"] = np.asarray(steps.group_reward, np.float32)
                for k, (picture, seen) in enumerate(zip(pictures, steps.obs, strict=True)):
                    if picture:
                        shown = _picture(seen, specs[name].observation_specs[k])
                    else:
                        shown = seen.reshape(len(seen), int(np.prod(seen.shape[1:])))
                    arrays[f"{letter} obs {i} {k}"] = shown
            decisions, terminals = self.unity.get_steps(name)
            arrays[f"t interrupted {i}"] = np.asarray(terminals.interrupted, np.bool_)
            if decisions.action_mask is not None and len(decisions):
                arrays[f"d mask {i}"] = np.concatenate(decisions.action_mask, 1)
        return {"new": new}, arrays

    def _described(self, name: str, spec: Any) -> dict:
        """What JSON can say of a behaviour. Pictures are [height, width, channels]."""
        seen = [_described(sensor, self._flat) for sensor in spec.observation_specs]
        self._known[name] = [sensor["picture"] for sensor in seen]
        acts = spec.action_spec
        branches = [int(size) for size in acts.discrete_branches]
        return {"name": name, "observations": seen, "continuous": int(acts.continuous_size), "discrete": branches}


def _described(sensor: Any, flat: set[str]) -> dict:
    shape = [int(size) for size in sensor.shape]
    picture = len(shape) == 3 and sensor.name not in flat
    if picture and _channels_first(sensor):
        shape = [shape[1], shape[2], shape[0]]
    return {"name": sensor.name, "shape": shape, "picture": picture}


def _channels_first(sensor: Any) -> bool:
    """Whether a picture is [channels, height, width], as Unity's package has it from version 3 on."""
    properties = [int(p) for p in sensor.dimension_property]
    equivariant = 2  # of a dimension along which things can be shifted
    if properties[0] != properties[2]:
        return properties[2] == equivariant
    return min(sensor.shape[0], 4) < min(sensor.shape[2], 4)


def _picture(seen: np.ndarray, sensor: Any) -> np.ndarray:
    """float [n, ...] in [0, 1] as uint8 [n, height, width, channels]."""
    if _channels_first(sensor):
        seen = seen.transpose(0, 2, 3, 1)
    if seen.size and not (seen.min() >= -1e-3 and seen.max() <= 1 + 1e-3):
        raise ValueError(
            f"sensor '{sensor.name}' shows numbers from {seen.min():g} to {seen.max():g}, and a picture's are from 0 "
            f"to 1: env.flat=['{sensor.name}'] takes it as plain numbers"
        )
    return np.rint(np.clip(seen, 0, 1) * 255).astype(np.uint8)


def _read_either_order() -> None:
    """Lets mlagents-envs read compressed pictures whatever the order of their axes; it knows the one of its time."""
    from mlagents_envs import rpc_utils  # pyright: ignore[reportMissingImports]

    native = rpc_utils._observation_to_np_array
    if getattr(native, "either", False):
        return

    def read(obs: Any, expected_shape: Any = None) -> np.ndarray:
        shape = list(obs.shape)
        if obs.compression_type == rpc_utils.COMPRESSION_TYPE_NONE or list(expected_shape or shape) != shape:
            return native(obs, expected_shape)
        first = list(obs.dimension_properties)[2:] == [2]  # width can be shifted, so channels stand first
        channels = shape[0] if first else shape[2]
        picture = rpc_utils.process_pixels(obs.compressed_data, channels, list(obs.compressed_channel_mapping))
        if first:
            picture = picture.transpose(2, 0, 1)
        if list(picture.shape) != shape:
            raise ValueError(f"a compressed picture is {list(picture.shape)}, expected {shape}")
        return picture

    read.either = True  # pyright: ignore[reportFunctionMemberAccess]
    rpc_utils._observation_to_np_array = read


# -------------------------------------------------------------------------------------------------------------- orders


def main() -> None:
    _without_distutils()
    wire = Wire()
    relay: Relay | None = None
    while True:
        said, arrays = wire.order()
        order = said["order"]
        try:
            if order == "start":
                relay = Relay(wire, said)
                wire.answer({"begun": True})
            elif order == "close" or relay is None:
                break
            elif order == "parameters":
                relay.parameters(said["values"])
                wire.answer({"taken": True})
            else:
                wire.answer(*(relay.reset() if order == "reset" else relay.step(arrays)))
        except SystemExit:
            break
        except Exception as error:  # whoever gave the order decides
            said = " ".join(str(error).split())
            wire.answer({"error": said, "kind": type(error).__name__})
    if relay is not None:
        with contextlib.suppress(Exception):  # it goes either way
            relay.unity._close(_GRACE)
    end(wire.unity)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
