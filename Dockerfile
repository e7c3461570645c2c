# Two images from one file:
#   docker build --target cpu -t mien:cpu .
#   docker build --target gpu -t mien:gpu .
# Packages are installed with their hashes from requirements/. YuNet's file is taken from this folder if it is here
# (face_detection_yunet_2023mar.onnx), else downloaded, and verified. Neither image needs the network or a writable file
# system when it runs. Without Docker: deploy/build_image.sh.

# An exact tag, which its publisher may still rebuild. For reproducible builds append the digest that
# `docker buildx imagetools inspect python:3.12.12-slim-bookworm` prints: python:3.12.12-slim-bookworm@sha256:...
ARG BASE=python:3.12.12-slim-bookworm
FROM ${BASE} AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# OpenCV's wheel links to these two. Nothing is drawn with OpenGL, so that Mesa's drivers and their compiler can go: 170 MB.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --no-install-recommends --yes libgl1 libglib2.0-0 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /usr/lib/*/dri /usr/lib/*/libLLVM* /usr/lib/*/libz3*

# ONNX Runtime Web for the page, with its hash from requirements/page/
FROM base AS runtime
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --no-install-recommends --yes npm
WORKDIR /src
COPY requirements/page/ requirements/page/
RUN sh requirements/page/install.sh /runtime

FROM base AS build
WORKDIR /src
COPY requirements/ requirements/
RUN python -m venv /opt/mien
ENV PATH=/opt/mien/bin:$PATH
# Plain ONNX Runtime, which is 400 MB smaller: the same version, pinned in serve.txt for other platforms.
RUN sed -e '/^onnxruntime-gpu==/,/[^\\]$/d' -e 's/^\(onnxruntime==[^ ]*\) ;.*/\1 \\/' requirements/serve.txt > cpu.txt \
 && pip install --require-hashes -r requirements/build.txt -r cpu.txt
COPY pyproject.toml README.md LICENSE ./
COPY app/ app/
COPY --from=runtime /runtime/ app/static/page/runtime/
COPY data/ data/
COPY mien/ mien/
COPY models/ models/
COPY training/ training/
# the pattern lets YuNet's file be absent
COPY LICENSE face_detection_yunet_2023mar.on[n]x /opt/models/
RUN pip install --no-deps --no-build-isolation . \
 && mien models pull --to /opt/models \
 && chmod -R a+rX /opt/models \
 && MIEN_MODELS_DIR=/opt/models mien models list \
 && python -m compileall -q /opt/mien/lib

FROM build AS build-gpu
RUN pip uninstall --yes onnxruntime \
 && pip install --require-hashes -r requirements/build.txt -r requirements/gpu.txt

FROM base AS run
RUN groupadd --gid 10001 mien && useradd --uid 10001 --gid mien --no-create-home --shell /usr/sbin/nologin mien
COPY --from=build /opt/models /opt/models
ENV PATH=/opt/mien/bin:$PATH \
    ORT_DISABLE_TELEMETRY=1 \
    MIEN_MODELS_DIR=/opt/models \
    MIEN_DETECTOR=yunet \
    MIEN_HOST=0.0.0.0 \
    MIEN_PORT=8000
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import http.client as h, os, sys; c = h.HTTPConnection('127.0.0.1', int(os.environ['MIEN_PORT']), timeout=4); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]
CMD ["mien", "serve"]

# The CUDA libraries come from pip; the driver comes from NVIDIA's container runtime.
FROM run AS gpu
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    MIEN_DEVICE=cuda
COPY --from=build-gpu /opt/mien /opt/mien

FROM run AS cpu
ENV MIEN_DEVICE=cpu
COPY --from=build /opt/mien /opt/mien
