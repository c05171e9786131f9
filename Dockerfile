# The server with its built-in model, on a processor:
#
#   docker build -t sysone .
#   docker run --rm -p 8000:8000 -e SYSONE_API_KEY=... -v sysone:/cache sysone
#
# The volume keeps converted models and compiled programs, so that only the first start compiles.
FROM python:3.12-slim

ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 SYSONE_CACHE=/cache
WORKDIR /app

COPY pyproject.toml README.md LICENSE ./
COPY sysone_jax sysone_jax
COPY converters converters
COPY serving serving
COPY eval eval
RUN pip install '.[serve,media]' \
    && useradd --create-home sysone \
    && install -d -o sysone /cache

USER sysone
VOLUME /cache
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=300s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
ENTRYPOINT ["sysone", "serve", "--host", "0.0.0.0"]
