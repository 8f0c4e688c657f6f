# The engine for production: give it DATABASE_URL and the keys of the providers that config/engine.toml names.
#   docker build -t affidavit . && docker run --read-only --tmpfs /tmp -p 8000:8000 -v affidavit:/data affidavit
# Other images of the same Python may stand in for these two; the first has binutils.
ARG BUILD=python:3.12
ARG BASE=python:3.12-slim

FROM ${BUILD} AS build
SHELL ["/bin/sh", "-euc"]
WORKDIR /source
COPY requirements-build.lock requirements.lock ./
RUN python -m venv /opt/build; \
    python -m venv --without-pip /opt/affidavit; \
    /opt/build/bin/pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: -r requirements-build.lock; \
    /opt/build/bin/pip --python /opt/affidavit/bin/python install --no-cache-dir --no-compile --require-hashes --no-deps --only-binary :all: -r requirements.lock
COPY supply supply
RUN python supply/image.py /opt/affidavit/lib/python3.*/site-packages
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY ingest ingest
COPY audit audit
COPY sql sql
COPY config config
COPY docs docs
# Its .dist-info/sboms/ is the bill of materials of all that is installed here.
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .; \
    /opt/build/bin/pip --python /opt/affidavit/bin/python install --no-cache-dir --no-compile --no-deps /wheels/*.whl

FROM ${BASE}
SHELL ["/bin/sh", "-euc"]
RUN useradd --create-home --uid 10001 affidavit; \
    install -d -o affidavit -g affidavit /data; \
    rm -rf /usr/local/bin/pip* /usr/local/lib/python3.*/site-packages/pip*
COPY --from=build /opt/affidavit /opt/affidavit
ENV PATH=/opt/affidavit/bin:$PATH
# Every module of ours with all that it needs: proves that nothing is missing, and leaves the bytecode that a container whose
# files cannot be written could not keep.
RUN python -c 'from importlib import import_module as load; from pkgutil import walk_packages as walk; \
    [load(found.name) for name in ("engine", "ingest", "audit") for found in walk(load(name).__path__, name + ".") if not found.name.endswith("__main__")]'

USER 10001
ENV AFFIDAVIT_DATA_DIR=/data
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz')"]
CMD ["affidavit", "serve", "--host", "0.0.0.0"]
