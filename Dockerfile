# Training where Docker or Apptainer runs: the wheel is built by CUDA's toolkit, and the image that is kept has none.
#   docker build -t robustdml . && docker run --rm --gpus all --entrypoint python3 robustdml -m robustdml_ops.doctor
# docs/clusters.md has the rest. The lines "hadolint ignore" say which of its rules do not fit, and why.

FROM nvidia/cuda:12.9.1-devel-ubuntu22.04 AS build
# Versions of a distribution's packages go away with their next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /build
WORKDIR /source
COPY . .
ENV ROBUSTDML_CUDA=ON TORCH_CUDA_ARCH_LIST="8.0 8.6 8.9 9.0 10.0 12.0+PTX"
RUN PIP_CONSTRAINT=/source/constraints.txt /build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . ./app

FROM nvidia/cuda:12.9.1-base-ubuntu22.04
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/robustdml
ENV PATH=/opt/robustdml/bin:$PATH ROBUSTDML_CACHE=/cache
COPY --from=build /wheels /wheels
# PyTorch brings its own CUDA libraries; the wheel links the runtime statically. Which PyTorch is the user's affair.
ARG TORCH=2.11.0
RUN pip install --no-cache-dir torch==${TORCH} numpy==2.2.6 /wheels/*.whl \
    && python3 -c "from robustdml_ops.backends import native_module; assert native_module.library.cuda_architectures" \
    && useradd --uid 1000 --create-home trainer && mkdir /cache && chown 1000 /cache
USER 1000
WORKDIR /home/trainer
ENTRYPOINT ["robustdml"]
CMD ["--help"]
