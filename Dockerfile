# Coterie in a container. With the CPU build of PyTorch, from PyTorch's index of CPU builds:
#   docker build -t coterie --build-arg TORCH_INDEX=ADDRESS .
#   docker run --rm -v "$PWD/runs:/coterie/runs" coterie train steps=1M out=runs/first
# With CUDA, for `docker run --gpus all`:
#   docker build -t coterie:cuda --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
ARG BASE=ubuntu:24.04

FROM ${BASE} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE CITATION.cff ./
COPY src src
# Without an index of CPU builds, pip installs PyTorch with its CUDA libraries.
ARG TORCH_INDEX=
# The kernels are compiled into the image for these processor levels; empty for processors other than x86-64.
ARG KERNELS="x86-64-v3 x86-64-v4"
# For example [video,export]
ARG EXTRAS=
RUN python3 -m venv /opt/coterie \
    && COTERIE_KERNELS="${KERNELS}" PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" /opt/coterie/bin/pip install \
       --no-cache-dir --no-compile --constraint constraints.txt ".${EXTRAS}" \
    && rm -rf /opt/coterie/lib/python3*/site-packages/torch/test # programs that test PyTorch itself

FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends python3 libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 coterie \
    && install --directory --owner coterie /coterie /coterie/runs
COPY --from=build /opt/coterie /opt/coterie
ENV PATH=/opt/coterie/bin:$PATH
USER 10001
WORKDIR /coterie
ENTRYPOINT ["coterie"]
CMD ["--help"]
