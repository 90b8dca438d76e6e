# Two images. `app`, the last stage, is for the SuperLink and the SuperNodes; `proxy` stands before the SuperLink.
#
#   docker build -t isoproto:0.1.0 .                             with the package index that pip knows
#   docker build --target proxy -t isoproto-proxy:0.1.0 .
#
# PyTorch's version is the one in constraints.txt. An index that has it as a build for CPUs makes the image small:
# give its address as PIP_EXTRA_INDEX_URL. Without any index (PIP_NO_INDEX=1), put wheels into the folder WHEELS.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS proxy
RUN apt-get update \
    && apt-get install --yes --no-install-recommends nginx-light \
    && rm -rf /var/lib/apt/lists/*
COPY deploy/nginx.conf /etc/nginx/nginx.conf
USER 1000:1000
CMD ["nginx", "-e", "stderr", "-g", "daemon off;"]

# Everything that is not ours, in one layer that changes with constraints.txt only.
FROM ${BASE} AS packages
# pip passes over those that are empty.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS=/wheels
ARG WHEELS=deploy/wheels
# As variables, since the stage after this one asks an index too, for what builds our wheel.
ENV PIP_NO_CACHE_DIR=1 \
    PIP_INDEX_URL=$PIP_INDEX_URL \
    PIP_EXTRA_INDEX_URL=$PIP_EXTRA_INDEX_URL \
    PIP_TRUSTED_HOST=$PIP_TRUSTED_HOST \
    PIP_NO_INDEX=$PIP_NO_INDEX \
    PIP_FIND_LINKS=$PIP_FIND_LINKS
COPY ${WHEELS} /wheels
RUN python3 -m venv /opt/isoproto
WORKDIR /src
COPY pyproject.toml constraints.txt ./
RUN python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        >requirements.txt \
    && /opt/isoproto/bin/pip install --constraint constraints.txt --requirement requirements.txt

# Our five packages, with the shebang of the environment that they are going to lie in.
FROM packages AS product
COPY . .
RUN /opt/isoproto/bin/pip wheel --no-deps --wheel-dir /dist . \
    && /opt/isoproto/bin/pip install --no-deps --no-index --prefix /opt/product /dist/*.whl

FROM ${BASE} AS app
COPY --from=packages /opt/isoproto /opt/isoproto
COPY --from=product /opt/product /opt/isoproto
COPY deploy/entrypoint.sh /usr/local/bin/entrypoint
# Open to any user id: the id that a container runs under is the one that owns its keys. Volumes take this over.
RUN chmod 755 /usr/local/bin/entrypoint \
    && for folder in . runs state; do install -d -m 1777 "/var/lib/isoproto/$folder"; done
ENV PATH=/opt/isoproto/bin:$PATH \
    HOME=/var/lib/isoproto \
    USER=isoproto \
    ISOPROTO_HOME=/var/lib/isoproto \
    FLWR_HOME=/var/lib/isoproto/flower \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    MPLCONFIGDIR=/tmp/matplotlib \
    OMP_NUM_THREADS=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/isoproto
USER 1000:1000
ENTRYPOINT ["entrypoint"]
CMD ["isoproto", "--help"]
