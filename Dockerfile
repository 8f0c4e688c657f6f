# The engine for production: give it DATABASE_URL and the keys of the providers that config/engine.toml names.
#   docker build -t affidavit . && docker run -p 8000:8000 -v affidavit:/data affidavit
FROM python:3.12-slim AS wheel

WORKDIR /source
COPY requirements-build.lock ./
RUN pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: -r requirements-build.lock
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY engine engine
COPY ingest ingest
COPY audit audit
COPY sql sql
COPY config config
COPY supply supply
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.12-slim

RUN useradd --create-home --uid 10001 affidavit && install -d -o affidavit /data
COPY requirements.lock /tmp/
RUN pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: -r /tmp/requirements.lock
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl  # its .dist-info/sboms/ is the bill of materials of all that is installed here

USER affidavit
ENV AFFIDAVIT_DATA_DIR=/data
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz')"]
CMD ["affidavit", "serve", "--host", "0.0.0.0"]
