"""The helper process: runs in the interpreter that has mlagents-envs, starts Unity and passes on its frames.

It needs NumPy and mlagents-envs, and of Coterie only `framing` in the same folder. Commands arrive on standard input,
and replies go to standard output. When the input ends, so has the trainer: Unity is killed and this process exits, even
while it waits.
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
    from coterie.envs.external.unity.framing import pack_message, unpack_message
else:
    from framing import pack_message, unpack_message  # pyright: ignore[reportMissingImports]

EDITOR = 5004
"""Port to which the editor connects."""
_PORTS = 64
"""Number of ports to try."""
_QUIT_TIMEOUT = 5
"""Seconds for Unity to quit."""


class StrictVersion:
    """The only part of distutils that mlagents-envs 0.28 uses.

    Python 3.12 has no distutils, and its replacement in setuptools takes longer to import than everything else.
    """

    def __init__(self, text: str):
        self.version = tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _without_distutils() -> None:
    version = types.ModuleType("distutils.version")
    version.StrictVersion = StrictVersion  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["distutils"], sys.modules["distutils.version"] = types.ModuleType("distutils"), version


class HelperPipe:
    """Standard input and output as the connection to the trainer."""

    def __init__(self) -> None:
        # Replaced for Unity and libraries, so that their input and output cannot interfere.
        self._commands = os.fdopen(os.dup(0), "rb")
        self._replies = os.fdopen(os.dup(1), "wb")
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self._queue: queue.Queue[tuple[dict, dict[str, np.ndarray]]] = queue.Queue()
        self.unity: Any = None
        threading.Thread(target=self._read_commands, daemon=True).start()

    def _read_commands(self) -> None:
        try:
            while True:
                self._queue.put(unpack_message(self._read))
        except BaseException:
            kill_unity(self.unity)
            os._exit(1)

    def _read(self, size: int) -> bytes:
        found = self._commands.read(size)
        if len(found) < size:
            raise EOFError
        return found

    def command(self) -> tuple[dict, dict[str, np.ndarray]]:
        """Waits for the next command."""
        return self._queue.get()

    def reply(self, content: dict, arrays: dict[str, np.ndarray] | None = None) -> None:
        self._replies.write(pack_message(content, arrays or {}))
        self._replies.flush()


def kill_unity(unity: Any) -> None:
    """Kills Unity and its child processes."""
    process = getattr(unity, "_process", None)
    if process is None:
        return
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)  # mlagents-envs makes it the leader of a process group
        else:
            process.kill()
    except OSError:
        pass  # it has ended


# ------------------------------------------------------------------------------------------------------- the connection


def make_communicator(pipe: HelperPipe, ports: list[int], timeout: float) -> Any:
    """Returns an mlagents-envs communicator with three differences.

    It listens on this machine only, at a port that no other process can share. Messages may have any size. It waits for
    a seed before it replies to Unity's first call, so that several builds can start in parallel.
    """
    import grpc  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from mlagents_envs import rpc_communicator as rpc  # pyright: ignore[reportMissingImports]
    from mlagents_envs.exception import UnityTimeOutException  # pyright: ignore[reportMissingImports]

    options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

    class LocalCommunicator(rpc.RpcCommunicator):
        def create_server(self) -> None:
            for port in ports:
                server = grpc.server(ThreadPoolExecutor(max_workers=10), options=options)
                try:
                    self.port = server.add_insecure_port(f"127.0.0.1:{port}")
                except RuntimeError:
                    self.port = 0
                if self.port and _listen_ipv6(server, self.port):
                    break
                server.stop(None)
            else:
                requested = f"{ports[0]}" if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
                raise OSError(errno.EADDRINUSE, f"port {requested} is in use")
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
            process = getattr(pipe.unity, "_process", None)
            pipe.reply({"ready": self.port, "pid": process and process.pid})
            content, _ = pipe.command()
            if content["command"] != "seed":
                raise SystemExit
            inputs.rl_initialization_input.seed = content["seed"]
            return super().initialize(inputs, poll_callback)

    return LocalCommunicator(0, 0, timeout)


def _listen_ipv6(server: Any, port: int) -> bool:
    """Listens at the same IPv6 port, which Unity may try first. False if another process uses it."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("::1", port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE  # otherwise this machine has no IPv6
    try:
        return bool(server.add_insecure_port(f"[::1]:{port}"))
    except RuntimeError:
        return False


# --------------------------------------------------------------------------------------------------------------- Unity


class UnityHelper:
    """One Unity environment.

    Args:
        pipe: Connection to the trainer.
        content: Settings, see `UnityClient`.
    """

    def __init__(self, pipe: HelperPipe, content: dict):
        from mlagents_envs.environment import UnityEnvironment  # pyright: ignore[reportMissingImports]
        from mlagents_envs.side_channel import (  # pyright: ignore[reportMissingImports]
            engine_configuration_channel,
            environment_parameters_channel,
            stats_side_channel,
        )

        _support_both_image_layouts()
        self._flat = set(content["flat"])
        base = content["base_port"]
        ports = [base + k for k in range(_PORTS)] if base else [0] * _PORTS
        communicator = make_communicator(pipe, ports if content["file"] else [EDITOR], content["timeout"])
        engine = engine_configuration_channel.EngineConfigurationChannel()
        engine.set_configuration_parameters(
            time_scale=content["time_scale"], target_frame_rate=-1, capture_frame_rate=60
        )
        self._parameters = environment_parameters_channel.EnvironmentParametersChannel()
        self.parameters(content["parameters"])
        self._stats = stats_side_channel.StatsSideChannel()

        class Unity(UnityEnvironment):
            def __init__(self, **settings: Any):
                pipe.unity = self  # so that it is killed with this process
                super().__init__(**settings)

            @staticmethod
            def _get_communicator(worker_id: int, base_port: int, timeout_wait: int) -> Any:
                return communicator

        self.unity = Unity(
            file_name=content["file"],
            base_port=communicator.port,
            no_graphics=content["no_graphics"],
            timeout_wait=content["timeout"],
            additional_args=list(content["args"]),
            side_channels=[engine, self._parameters, self._stats],
            num_areas=content["areas"],
        )
        self._known: dict[str, list[bool]] = {}

    def parameters(self, values: dict[str, float]) -> None:
        """Sets environment parameters, which are sent with the next reset or step."""
        for name, value in values.items():
            self._parameters.set_float_parameter(name, value)

    def reset(self) -> tuple[dict, dict[str, np.ndarray]]:
        self.unity.reset()
        self._known.clear()  # so that all behaviors are described again
        return self._frame()

    def step(self, actions: dict[str, np.ndarray]) -> tuple[dict, dict[str, np.ndarray]]:
        """Takes a step; actions as in `UnityClient.step`."""
        from mlagents_envs.base_env import ActionTuple  # pyright: ignore[reportMissingImports]

        for i, name in enumerate(self._known):
            if f"discrete {i}" in actions:
                chosen = ActionTuple(actions[f"continuous {i}"], actions[f"discrete {i}"])
                self.unity.set_actions(name, chosen)
        self.unity.step()
        return self._frame()

    def _frame(self) -> tuple[dict, dict[str, np.ndarray]]:
        """New behaviors, and the arrays of a `Frame`."""
        specs = self.unity.behavior_specs
        new = [self._describe(name, specs[name]) for name in list(specs) if name not in self._known]
        self._stats.get_and_reset_stats()
        arrays = {}
        for i, (name, images) in enumerate(self._known.items()):
            for letter, steps in zip("dt", self.unity.get_steps(name), strict=True):
                arrays[f"{letter} id {i}"] = np.asarray(steps.agent_id, np.int64)
                arrays[f"{letter} group {i}"] = np.asarray(steps.group_id, np.int64)
                arrays[f"{letter} reward {i}"] = np.asarray(steps.reward, np.float32)
                arrays[f"{letter} group_reward {i}"] = np.asarray(steps.group_reward, np.float32)
                for k, (image, values) in enumerate(zip(images, steps.obs, strict=True)):
                    if image:
                        result = _image(values, specs[name].observation_specs[k])
                    else:
                        result = values.reshape(len(values), int(np.prod(values.shape[1:])))
                    arrays[f"{letter} obs {i} {k}"] = result
            decisions, terminals = self.unity.get_steps(name)
            arrays[f"t interrupted {i}"] = np.asarray(terminals.interrupted, np.bool_)
            if decisions.action_mask is not None and len(decisions):
                arrays[f"d mask {i}"] = np.concatenate(decisions.action_mask, 1)
        return {"new": new}, arrays

    def _describe(self, name: str, spec: Any) -> dict:
        """Describes a behavior for JSON. Images are [height, width, channels]."""
        values = [_describe(sensor, self._flat) for sensor in spec.observation_specs]
        self._known[name] = [sensor["image"] for sensor in values]
        action_spec = spec.action_spec
        branches = [int(size) for size in action_spec.discrete_branches]
        return {
            "name": name,
            "observations": values,
            "continuous": int(action_spec.continuous_size),
            "discrete": branches,
        }


def _describe(sensor: Any, flat: set[str]) -> dict:
    shape = [int(size) for size in sensor.shape]
    image = len(shape) == 3 and sensor.name not in flat
    if image and _channels_first(sensor):
        shape = [shape[1], shape[2], shape[0]]
    return {"name": sensor.name, "shape": shape, "image": image}


def _channels_first(sensor: Any) -> bool:
    """True if an image is [channels, height, width], as in Unity's package from version 3 on."""
    properties = [int(p) for p in sensor.dimension_property]
    equivariant = 2  # dimension property TRANSLATIONAL_EQUIVARIANCE
    if properties[0] != properties[2]:
        return properties[2] == equivariant
    return min(sensor.shape[0], 4) < min(sensor.shape[2], 4)


def _image(values: np.ndarray, sensor: Any) -> np.ndarray:
    """float [n, ...] in [0, 1] as uint8 [n, height, width, channels]."""
    if _channels_first(sensor):
        values = values.transpose(0, 2, 3, 1)
    if values.size and not (values.min() >= -1e-3 and values.max() <= 1 + 1e-3):
        raise ValueError(
            f"sensor '{sensor.name}' has values from {values.min():g} to {values.max():g}, but images have values from "
            f"0 to 1. Set env.flat=['{sensor.name}'] to treat it as a vector."
        )
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def _support_both_image_layouts() -> None:
    """Makes mlagents-envs read compressed images of both axis orders; it supports only the older one."""
    from mlagents_envs import rpc_utils  # pyright: ignore[reportMissingImports]

    native = rpc_utils._observation_to_np_array
    if getattr(native, "supports_both", False):
        return

    def read(obs: Any, expected_shape: Any = None) -> np.ndarray:
        shape = list(obs.shape)
        if obs.compression_type == rpc_utils.COMPRESSION_TYPE_NONE or list(expected_shape or shape) != shape:
            return native(obs, expected_shape)
        first = list(obs.dimension_properties)[2:] == [2]  # width is translation-equivariant, so channels come first
        channels = shape[0] if first else shape[2]
        image = rpc_utils.process_pixels(obs.compressed_data, channels, list(obs.compressed_channel_mapping))
        if first:
            image = image.transpose(2, 0, 1)
        if list(image.shape) != shape:
            raise ValueError(f"a compressed image is {list(image.shape)}, expected {shape}")
        return image

    read.supports_both = True  # pyright: ignore[reportFunctionMemberAccess]
    rpc_utils._observation_to_np_array = read


# ------------------------------------------------------------------------------------------------------------ commands


def main() -> None:
    _without_distutils()
    pipe = HelperPipe()
    helper: UnityHelper | None = None
    while True:
        content, arrays = pipe.command()
        command = content["command"]
        try:
            if command == "start":
                helper = UnityHelper(pipe, content)
                pipe.reply({"started": True})
            elif command == "close" or helper is None:
                break
            elif command == "parameters":
                helper.parameters(content["values"])
                pipe.reply({"set": True})
            else:
                pipe.reply(*(helper.reset() if command == "reset" else helper.step(arrays)))
        except SystemExit:
            break
        except Exception as error:  # reported to the trainer
            pipe.reply({"error": " ".join(str(error).split()), "kind": type(error).__name__})
    if helper is not None:
        with contextlib.suppress(Exception):  # it is killed below
            helper.unity._close(_QUIT_TIMEOUT)
    kill_unity(pipe.unity)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
