# The engine for production: give it DATABASE_URL and the keys of the providers that config/engine.toml names.
#   docker build -t affidavit . && docker run -p 8000:8000 -v affidavit:/data affidavit
FROM python:3.12-slim

RUN useradd --create-home --uid 10001 affidavit && install -d -o affidavit /data
WORKDIR /app

COPY requirements.lock pyproject.toml README.md ./
RUN pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: -r requirements.lock

COPY engine engine
COPY ingest ingest
COPY audit audit
COPY sql sql
COPY config config
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable .

USER affidavit
ENV AFFIDAVIT_DATA_DIR=/data
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz')"]
CMD ["affidavit", "serve", "--host", "0.0.0.0"]
